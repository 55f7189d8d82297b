"""Looking again and again at a stash through one connection: what a wait for the tombstone does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.stash_places import StashPlace
from tidemark.catalog.back_end import Head
from tidemark.errors import ConflictsUnsettled, Unreachable

if TYPE_CHECKING:
    from tidemark.settings import Settings

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tidemark-stash' AND datname = current_database()"


def test_each_look_sees_the_present(place: StashPlace) -> None:
    with closing(place.stash.watch()) as watch:
        assert watch.head() == Head(None, {})
        for epoch in (2, 3):
            place.open().close()
            assert watch.head().epoch == epoch == place.stash.head().epoch


def test_stash_made_anew_is_seen(place: StashPlace) -> None:
    with closing(place.stash.watch()) as watch:
        for _ in range(2):
            place.open().close()
        assert watch.head().epoch == 3
        place.drop()
        assert watch.head().epoch is None
        place.open().close()
        assert watch.head().epoch == 2


@pytest.mark.postgres
def test_one_connection_serves_all_looks_until_it_is_lost(server_place: StashPlace) -> None:
    server_place.open().close()
    before = {pid for (pid,) in server_place.sql(SESSIONS)}
    with closing(server_place.stash.watch()) as watch:
        for _ in range(5):
            watch.head()
        (own,) = {pid for (pid,) in server_place.sql(SESSIONS)} - before
        server_place.sql(f"SELECT pg_terminate_backend({own})")
        with pytest.raises(Unreachable):
            watch.head()
        assert watch.head().epoch == 2


@pytest.mark.slow  # waits for a lock
def test_dump_of_a_locked_file_is_tried_again_by_whoever_wants_it(home: Settings) -> None:
    place = StashPlace(home)
    place.open().close()
    with closing(sqlite3.connect(home.home / "stash.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConflictsUnsettled):
            list(place.stash.dump())
