"""What the tests of reconciliation start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def installation(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all corrections the way of those that do not fit into the driver."""
    monkeypatch.setattr("tidemark.collections.reconcile.comparison.candidates_fit_driver", lambda *_: False)
    monkeypatch.setattr("tidemark.collections.reconcile.comparison.fits_driver", lambda **_: False)
    monkeypatch.setattr("tidemark.collections.reconcile.spark_corrections.fits_driver", lambda **_: False)
