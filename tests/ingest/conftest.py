"""A home whose collections read a file buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import FIVE, declare
from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def ingesting(home: Settings, tmp_path: Path) -> Home:
    """Two sequencers, and nothing declared yet."""
    opened = Home(home, tmp_path, now_ms=1_000_000)
    assert opened.buffer.logs, "made now: a run may come before the first message"
    return opened


@pytest.fixture
def hourly(ingesting: Home) -> Home:
    """A collection in hours, at 05:00; nothing came yet."""
    ingesting.clock.step(FIVE - ingesting.clock.now_ms())
    declare(ingesting)
    return ingesting
