"""A process holds a lease while it works: what is stored, and what does not fail the work."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from tests.support.leases import leases_of, live_operations, run_sql, wait_for
from tidemark.iceberg.leases import statements
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.protection import protect_writers
from tidemark.iceberg.leases.watching import end_lapsed

if TYPE_CHECKING:
    from tidemark.settings import Settings

DAY_MS = 24 * 3600 * 1000


def tables_of(settings: Settings) -> set[str]:
    with closing(sqlite3.connect(settings.catalog_path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_lease_is_there_while_the_work_goes_on_and_says_whose_it_is(store: Settings) -> None:
    with holding(store, "reconcile", ["planes", "flights"]):
        (lease,) = leases_of(store)
        assert (lease.operation, lease.collections, lease.generation) == ("reconcile", ("planes", "flights"), 1)
        assert lease.writer == f"{socket.gethostname()}:{os.getpid()}"
        wait_for(lambda: leases_of(store)[0].beat > lease.beat)
        renewed = leases_of(store)[0]
        assert (renewed.id, renewed.began_ms) == (lease.id, lease.began_ms)
        assert renewed.renewed_ms >= lease.renewed_ms
    assert leases_of(store) == []


def test_a_lease_ends_with_an_error_too(store: Settings) -> None:
    with pytest.raises(ValueError, match="a bug"), holding(store, "reconcile"):
        raise ValueError("a bug")
    assert leases_of(store) == []


def test_an_older_store_gets_the_table_from_the_first_writer_and_not_from_a_reader(store: Settings) -> None:
    before = tables_of(store)
    assert leases_of(store) == []
    end_lapsed(store, ())
    assert protect_writers(store) is None
    assert tables_of(store) == before
    with holding(store, "append"):
        assert tables_of(store) == before | {"tidemark_leases"}
        assert len(leases_of(store)) == 1


def test_nothing_is_written_to_a_copy_that_can_only_be_read(store: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "is_read_only", lambda _: True)  # the tests may run as root, who may write anywhere
    before = store.catalog_path.read_bytes()
    with holding(store, "append"):
        assert leases_of(store) == []
    assert store.catalog_path.read_bytes() == before


def test_a_store_without_a_database_is_left_alone_until_there_is_one(store: Settings) -> None:
    hidden = store.catalog_path.with_name("hidden")
    store.catalog_path.rename(hidden)
    with holding(store, "init"):
        assert not store.catalog_path.exists()
        hidden.rename(store.catalog_path)
        wait_for(lambda: leases_of(store))
    assert leases_of(store) == []


def test_a_database_that_is_busy_for_longer_than_a_lease_fails_nothing(
    store: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = replace(store, lease_s=0.1, connect_timeout_s=0.05)
    with holding(impatient, "reconcile"):
        with closing(sqlite3.connect(store.catalog_path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            wait_for(lambda: "the lease of reconcile has run out" in caplog.text)
        beat = leases_of(store)[0].beat
        wait_for(lambda: leases_of(store)[0].beat > beat)


def test_an_operation_inside_another_one_needs_no_lease_of_its_own(store: Settings) -> None:
    with holding(store, "append", ["events"]):
        with holding(store, "append", ["events"]):
            assert len(leases_of(store)) == 1
        with holding(store, "reconcile", ["planes"]):
            assert [lease.collections for lease in leases_of(store)] == [("events",), ("planes",)]
    assert leases_of(store) == []


def test_two_threads_hold_a_lease_each_since_one_may_end_first(store: Settings) -> None:
    found = []

    def append() -> None:
        with holding(store, "append", ["events"]):
            found.extend(leases_of(store))

    with holding(store, "append", ["events"]):
        other = Thread(target=append)
        other.start()
        other.join()
        assert len({lease.id for lease in found}) == 2
        assert len(leases_of(store)) == 1


def test_a_lease_that_somebody_ended_comes_back_as_another_one(store: Settings) -> None:
    with holding(store, "append"):
        (first,) = leases_of(store)
        run_sql(store, "DELETE FROM tidemark_leases")
        wait_for(lambda: leases_of(store))
        (second,) = leases_of(store)
        assert (second.id != first.id, second.operation) == (True, "append")
    assert leases_of(store) == []


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_jumps_by_a_day_leaves_a_lease_live(store: Settings, jump_ms: int) -> None:
    with holding(store, "append"):
        jump = f"UPDATE tidemark_leases SET began_ms = began_ms + {jump_ms}, renewed_ms = renewed_ms + {jump_ms}"
        run_sql(store, jump)
        assert live_operations(store) == {"append"}


def test_leases_that_nobody_removed_are_forgotten_after_a_month(store: Settings) -> None:
    with holding(store, "append", ["a"]):
        run_sql(store, "INSERT INTO tidemark_leases SELECT 'old', operation, collections, generation, writer, "
                f"length_s, began_ms, 0, renewed_ms - {31 * DAY_MS} FROM tidemark_leases")  # fmt: skip
        assert {lease.id for lease in leases_of(store)} > {"old"}
        end_lapsed(store, ())
        assert [lease.operation for lease in leases_of(store)] == ["append"]


@pytest.mark.postgres
def test_a_catalog_in_postgres_has_leases_as_well(postgres_home: Settings) -> None:
    store = replace(postgres_home, lease_s=1.0)
    assert leases_of(store) == []
    with holding(store, "reconcile", ["planes"]):
        (lease,) = leases_of(store)
        assert (lease.operation, lease.collections) == ("reconcile", ("planes",))
        wait_for(lambda: leases_of(store)[0].beat > lease.beat)
        assert live_operations(store) == {"reconcile"}
    assert leases_of(store) == []
