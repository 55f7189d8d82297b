"""A home whose collection `events` keeps the latest row of each key of a file buffer: corrections without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def carrying(home: Settings, tmp_path: Path) -> Home:
    opened = Home(home, tmp_path, now_ms=1_000_000)
    opened.declare_latest(delete_when={"op": "d"})
    return opened
