"""What opens both sides of a catalog works on: a home of two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home: two files."""
    return Home(settings_in(tmp_path))
