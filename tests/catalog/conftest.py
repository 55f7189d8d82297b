"""Places for the catalog's back ends: each test gets an empty one; the marker says what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.catalog.stash_places import StashPlace
from tests.conftest import settings_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> StashPlace:
    """An empty place for a stash: a file, and an empty database of a server."""
    if request.param == "sqlite":
        return StashPlace(settings_in(tmp_path))
    server = request.getfixturevalue("postgres")
    uri = server.create_database("stash_" + unique_name[-50:])
    return StashPlace(settings_in(tmp_path, TIDEMARK_STASH_URI=uri), server)
