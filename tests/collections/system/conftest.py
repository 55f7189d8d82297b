from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tests.support.recorded import NOW_MS
from tidemark.collections.deployment import Mode

if TYPE_CHECKING:
    from tidemark.settings import Settings


@pytest.fixture
def seen(home: Settings) -> Home:
    """A home with the collection `planes`, at a time that only tests move."""
    made = Home(home, now_ms=NOW_MS)
    made.apply(made.declaration("planes"))
    made.switch(Mode.READ_WRITE)
    return made
