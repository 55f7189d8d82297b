"""Stores whose leases are short: a test sees them run out, and a busy machine still renews them in time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemark.settings import Settings


@pytest.fixture
def store(home: Settings) -> Settings:
    """A catalog in SQLite."""
    return replace(home, lease_s=2.0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def any_store(request: pytest.FixtureRequest) -> Settings:
    """A catalog in either database; the one in PostgreSQL has no table yet, not even Iceberg's."""
    settings: Settings = request.getfixturevalue("home" if request.param == "sqlite" else "postgres_home")
    return replace(settings, lease_s=3.0)
