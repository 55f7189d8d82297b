from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(installation: Path) -> Home:
    installation.mkdir()
    return Home(settings_in(installation))


@pytest.fixture
def context() -> Any:
    """The parts of a task's context that sensors use."""
    return {"ti": SimpleNamespace(get_first_reschedule_date=lambda _context: None), "params": {"wait_for_tasks": True}}
