"""A home whose collections read a file buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ingesting import Ingesting

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def ingesting(home: Settings, tmp_path: Path) -> Ingesting:
    """Two sequencers, and nothing declared yet."""
    return Ingesting(home, tmp_path / "buffer")
