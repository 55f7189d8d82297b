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
