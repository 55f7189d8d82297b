"""What consolidation leaves: the same contents, and in the end no row with a negative diff."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.items_of import name, setting
from tidemark.catalog.items.kinds import SETTING
from tidemark.catalog.stash.collections import AppendBatch, Entry
from tidemark.catalog.stash.connection import Conflict, LostConnection, MissingTable
from tidemark.catalog.stash.handle import consolidate
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.errors import Unreachable
from tidemark.frontier import EMPTY

if TYPE_CHECKING:
    from tests.support.catalog.stash_places import StashPlace
    from tidemark.catalog.stash.connection import StashConnection

RETRACTED = "SELECT COUNT(*) FROM data WHERE diff < 0"


def connection_to(place: StashPlace) -> StashConnection:
    if place.server is None:
        return SqliteConnection(place.settings.home / "stash.db")
    from tidemark.catalog.stash.postgres import PostgresConnection

    return PostgresConnection(place.settings.stash_uri, connect_timeout_s=3)


def consolidate_in(place: StashPlace, connection: StashConnection, number: int) -> None:
    since = place.sql(f"SELECT since FROM sinces WHERE collection_id = {number}")[0][0]
    consolidate(connection, number, since)


@pytest.fixture
def id_of_one(place: StashPlace) -> int:
    """The id of a collection with two changed values, in a stash that nobody consolidates."""
    with place.open() as handle:
        handle.run(lambda collections: collections.create("one"))
    with place.join() as handle:
        handle._consolidates = False
        for time_ms in range(3):
            entries = [Entry(key, str(time_ms), 1) for key in "ab"]
            entries += [Entry(key, str(time_ms - 1), -1) for key in "ab" if time_ms]
            batch = AppendBatch.at("one", time_ms, [*entries, Entry(f"kept {time_ms}", "", 1)], lower=time_ms)
            handle.run(lambda collections, batch=batch: collections.append([batch]))
        return handle.run(lambda collections: collections.stored())["one"].collection_id


def contents(place: StashPlace) -> dict[str, str]:
    with place.join() as handle:
        return handle.run(lambda collections: collections.peek_one("one"), write=False)


WANTED = {"a": "2", "b": "2", "kept 0": "", "kept 1": "", "kept 2": ""}


def test_retractions_are_gone_after_a_change(place: StashPlace) -> None:
    with place.open() as handle:
        for value in "12345":
            handle.transact(lambda transaction, value=value: transaction.put(SETTING, name("a"), setting(value)))
            assert place.sql(RETRACTED) == [(0,)]
        assert handle.snapshot().counts()["setting"] == 1
    assert place.sql("SELECT COUNT(*) FROM data WHERE key LIKE '%\"a\"%'") == [(1,)]


def test_the_next_writer_finishes_what_was_left(place: StashPlace, id_of_one: int) -> None:
    assert place.sql(RETRACTED) == [(4,)]
    with place.open():
        assert place.sql(RETRACTED) == [(0,)]
    assert contents(place) == WANTED


def test_only_keys_with_retractions_are_rewritten_and_a_second_time_changes_nothing(
    place: StashPlace, id_of_one: int
) -> None:
    connection = connection_to(place)
    consolidate_in(place, connection, id_of_one)
    rows = place.sql(f"SELECT key, value, time, diff FROM data WHERE collection_id = {id_of_one} ORDER BY key")
    assert rows == [("a", "2", 2, 1), ("b", "2", 2, 1), *((f"kept {each}", "", each, 1) for each in range(3))]
    dumped = list(place.stash.dump())
    consolidate_in(place, connection, id_of_one)
    connection.close()
    assert list(place.stash.dump()) == dumped


def test_what_lies_beyond_the_since_stays_apart(place: StashPlace, id_of_one: int) -> None:
    with place.join() as handle:
        handle._consolidates = False
        handle.run(lambda collections: collections.update("one", 7, [Entry("a", "2", -1)]))
        connection = connection_to(place)
        consolidate_in(place, connection, id_of_one)
        connection.close()
        assert handle.run(lambda collections: collections.peek_one("one")) == WANTED
        assert (Entry("a", "2", -1), 7) in place.updates("one")


def test_an_empty_since_gives_everything_up(place: StashPlace, id_of_one: int) -> None:
    with place.join() as handle:
        handle.run(lambda collections: (collections.seal("one", EMPTY), collections.compact("one", EMPTY)))
    with place.open():
        assert place.sql(f"SELECT COUNT(*) FROM data WHERE collection_id = {id_of_one}") == [(0,)]


def test_several_at_once_beside_a_writer_change_no_contents(place: StashPlace) -> None:
    """Each reader sees exactly one value, whatever the consolidators do meanwhile."""
    with place.open() as handle, ThreadPoolExecutor(3) as pool:
        handle._consolidates = False  # only those of the test, which never rest
        number = handle.run(lambda collections: collections.stored())["setting"].collection_id
        writing = True

        def work(_: int) -> int:
            rounds, connection = 0, connection_to(place)
            while writing:
                consolidate_in(place, connection, number)
                rounds += 1
            connection.close()
            return rounds

        working = [pool.submit(work, each) for each in range(2)]
        try:
            for value in map(str, range(40)):
                handle.transact(lambda transaction, value=value: transaction.put(SETTING, name("a"), setting(value)))
                seen = handle.transact(lambda transaction: list(transaction.items(SETTING)))
                assert seen == [(name("a"), setting(value))]
        finally:
            writing = False
        assert all(each.result(30) > 0 for each in working)


@pytest.mark.parametrize("error", [LostConnection("x"), Conflict("x"), MissingTable("x"), Unreachable("x")])
def test_a_change_that_is_not_consolidated_is_committed_all_the_same(
    place: StashPlace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object) -> None:
        raise error

    with place.open() as handle, monkeypatch.context() as patch:
        patch.setattr(type(handle._transactions.connection), "consolidate", failing)
        for value in "12":
            handle.transact(lambda transaction, value=value: transaction.put(SETTING, name("a"), setting(value)))
        assert handle.transact(lambda transaction: transaction.get(SETTING, name("a"))) == setting("2")
    assert place.sql(RETRACTED) == [(1,)]
    with place.open():
        assert place.sql(RETRACTED) == [(0,)]
