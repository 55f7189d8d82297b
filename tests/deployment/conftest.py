"""An older deployment that leads, and a newer one of the same home that stands by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def old(home: Settings, tmp_path: Path) -> Home:
    """Deployment 1, which leads: a collection that reads a buffer, with rows in it, and a sink that carries it."""
    made = Home(home, tmp_path, now_ms=1_700_000_000_000)
    made.declare_reader()
    made.declare_sink(mode="changes", to={"path": str(tmp_path / "out")})
    made.send_rows(0, 3)
    made.send_rows(1, 2)
    made.ingest()
    made.run_sink()
    return made


@pytest.fixture
def new(old: Home) -> Home:
    """Deployment 2, which stands by."""
    return old.of_generation(2)
