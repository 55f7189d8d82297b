"""Persisting changes files, and no row: what is due is sorted by event time, what is young stays open."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform

from tests.ingest.event_rows import FIVE, MINUTE_MS, at, declare, partitions_by, send
from tests.support.dying import Crash, dying_at
from tests.support.leftovers import leftovers, named_files, stored_files
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.maintenance.row_removal import Removal, remove_rows
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.ingest.partitions.state import PROPERTY
from tidemark.ingest.persist import persist as persisting
from tidemark.ingest.persist import split as splitting
from tidemark.ingest.persist import time_order
from tidemark.ingest.persist.persist import Engine, choose_persisted, persist_all
from tidemark.ingest.persist.time_order import find_time_order
from tidemark.interval import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.manifest import DataFile
    from pyspark.sql import SparkSession

    from tests.support.homes import Home
    from tidemark.report import CollectionReport

pytestmark = pytest.mark.slow  # stores that are really written, again and again

EAGER = CompactionPolicy(min_small_files=2)
LATER_MS = 10**15


def persist(home: Home, *, spark: SparkSession | None = None, now: bool = False) -> CollectionReport:
    deployment = home.deployment
    chosen = choose_persisted(deployment, ["events"])
    engine = Engine(everything=now) if spark is None else Engine(start_spark=lambda: spark, small_rows=0)
    report, left = persist_all(home.shards, deployment, chosen, clock=home.clock, engine=engine)
    assert not left
    return report.collections["events"]


class Stored(NamedTuple):
    minutes: list[int]  # event times in the order of the file
    is_persisted: bool


def old(*minutes: int) -> Stored:
    return Stored([*minutes], is_persisted=True)


def young(*minutes: int) -> Stored:
    return Stored([*minutes], is_persisted=False)


def stored(home: Home) -> list[Stored]:
    """Return the data files of `main`, by their first event times."""
    head = home.shard().load()
    order_id = find_time_order(head.table, "at")
    found = []
    for path, file in read_data_files(head.table.io, head.contents).items():
        times = pq.read_table(path.removeprefix("file://")).column("at").to_pylist()
        minutes = [(milliseconds(time) - FIVE) // MINUTE_MS for time in times]
        found.append(Stored(minutes, order_id is not None and file.sort_order_id == order_id))
    return sorted(found)


def files_of(home: Home) -> list[DataFile]:
    head = home.shard().load()
    return list(read_data_files(head.table.io, head.contents).values())


def reasons(report: CollectionReport) -> list[str]:
    return [f"{each['action']} {each['partition']}: {each['reason']}" for each in report.details["decisions"]]


def test_what_is_due_is_sorted_and_what_is_young_stays_open(hourly: Home) -> None:
    at(hourly, 65)
    send(hourly, 0, 50, 10, 61)
    hourly.ingest()
    send(hourly, 1, 30, 64, 20)
    hourly.ingest()
    assert reasons(persist(hourly)) == []
    assert stored(hourly) == [young(30, 64, 20), young(50, 10, 61)]
    at(hourly, 68)
    send(hourly, 0, 40, 67)
    hourly.ingest()
    at(hourly, 96)
    send(hourly, 0, 95)
    hourly.ingest()
    report = persist(hourly)
    assert reasons(report) == [
        "persist 2013-01-03T05: oldest open row 31 min >= 30 min",
        "persist 2013-01-03T06: oldest open row 31 min >= 30 min",
    ]
    assert (report.strategy, report.details["files_before"]) == ("persisted", 3)
    assert stored(hourly) == [old(10, 20, 30, 40, 50, 61, 64, 67), young(95)]
    assert hourly.ids() == list(range(9))
    assert partitions_by(hourly).state.partitions["2013-01-03T05"].windows.is_persisted


def test_a_pass_splits_at_the_newest_row_that_is_old_enough(hourly: Home) -> None:
    declare(hourly, persist_rows=2, persist_when_cold=False)
    at(hourly, 10)
    send(hourly, 0, 3, 8)
    hourly.ingest()
    at(hourly, 14)
    send(hourly, 0, 5, 12)
    hourly.ingest()
    at(hourly, 15)
    report = persist(hourly)
    assert reasons(report) == ["persist 2013-01-03T05: 2 persistable rows >= 2"]
    assert report.details["decisions"][0]["until"] == "2013-01-03 05:08:00.001"
    assert stored(hourly) == [old(3, 5, 8), young(12)]
    assert (persist(hourly).strategy, hourly.ids()) == ("unchanged", [0, 1, 2, 3])
    assert persist(hourly, now=True).strategy == "persisted"
    assert stored(hourly) == [old(3, 5, 8, 12)], "a partition does not get a file more with every pass"
    assert partitions_by(hourly).state.partitions["2013-01-03T05"].windows.is_persisted


def test_cold_partitions_are_persisted_unless_that_is_switched_off(hourly: Home) -> None:
    send(hourly, 0, -1)
    hourly.ingest()
    at(hourly, 6)
    assert reasons(persist(hourly)) == ["persist 2013-01-03T04: cold: no row for 6 min >= 5 min"]
    declare(hourly, persist=False)
    send(hourly, 0, 5)
    hourly.ingest()
    at(hourly, 600)
    assert reasons(persist(hourly)) == []


def test_cold_partitions_are_compacted_where_nothing_is_persisted(hourly: Home) -> None:
    declare(hourly, persist=False)
    for minute in range(6):
        send(hourly, 0, minute)
        hourly.ingest()
    assert persist(hourly).strategy == "unchanged"
    at(hourly, 6)
    report = persist(hourly)
    assert (report.strategy, report.details["files_before"], report.details["files_after"]) == ("compacted", 6, 1)
    assert reasons(report) == [
        "compact 2013-01-03T05: no row for 6 min >= 5 min; 1 chunks to merge, 1 of them in small files"
    ]
    (merged,) = stored(hourly)
    assert (sorted(merged.minutes), merged.is_persisted, hourly.ids()) == ([*range(6)], False, [*range(6)])
    report = persist(hourly)
    assert (report.strategy, reasons(report)) == ("unchanged", [])


def send_in_small_files(home: Home) -> None:
    declare(home, persist=False)
    for minute in range(6):
        send(home, 0, minute)
        home.ingest()
    at(home, 6)


def test_many_rows_in_small_files_are_left_for_spark(hourly: Home) -> None:
    send_in_small_files(hourly)
    deployment, engine = hourly.deployment, Engine(small_rows=5)
    chosen = choose_persisted(deployment, ["events"])
    report, left = persist_all(hourly.shards, deployment, chosen, clock=hourly.clock, engine=engine)
    assert (report.collections, left, len(stored(hourly))) == ({}, ["events"], 6)


@pytest.mark.spark
def test_spark_merges_many_rows_in_small_files(home_spark: SparkSession, hourly: Home) -> None:
    send_in_small_files(hourly)
    assert persist(hourly, spark=home_spark).strategy == "compacted"
    assert (len(stored(hourly)), hourly.ids()) == (1, [*range(6)])


def test_small_files_of_many_open_rows_are_merged_while_more_come(hourly: Home) -> None:
    declare(hourly, open_rows=6)
    for minute in range(5):
        send(hourly, 0, minute)
        hourly.ingest()
    assert persist(hourly).strategy == "unchanged"
    send(hourly, 0, 6)
    hourly.ingest()
    report = persist(hourly)
    assert (report.strategy, reasons(report)[0].partition(";")[0]) == (
        "compacted",
        "compact 2013-01-03T05: 6 rows >= 6",
    )
    assert (len(stored(hourly)), hourly.ids()) == (1, [*range(6)])


def test_rows_arrive_and_partitions_close_while_a_pass_works(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    at(hourly, 66)
    send(hourly, 0, 10, 66)
    send(hourly, 1, 20, 65)
    hourly.ingest()
    at(hourly, 72)
    write = persisting._write

    def ingest_first(run: Any) -> None:
        monkeypatch.undo()
        send(hourly, 1, 15, 71)
        assert hourly.ingest().details["late_rows"] == 1
        write(run)

    monkeypatch.setattr(persisting, "_write", ingest_first)
    assert persist(hourly).strategy == "persisted"
    assert hourly.ids() == list(range(6))
    assert [each.minutes for each in stored(hourly) if not each.is_persisted] == [[15, 71]]
    found = partitions_by(hourly).state.partitions["2013-01-03T05"]
    assert (found.rows, found.late_rows, found.windows.is_persisted) == (3, 1, False)
    at(hourly, 78)
    persist(hourly)
    assert stored(hourly) == [old(10, 15, 20, 65, 66, 71)], "late rows come into the order of the others"
    assert hourly.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 3, "late_rows": 1}]


@pytest.mark.parametrize(
    "point", [*persisting.FAIL_POINTS, "publish.before-commit", "publish.after-commit", "publish.before-commit:2"]
)
def test_a_pass_that_dies_changes_no_row_and_the_next_one_persists(hourly: Home, point: str) -> None:
    send(hourly, 0, 30, 10)
    hourly.ingest()
    at(hourly, 6)
    with pytest.raises(Crash), dying_at(point):
        persist(hourly)
    assert hourly.ids() == [0, 1]
    send(hourly, 0, 35)
    hourly.ingest()
    at(hourly, 12)
    persist(hourly)
    assert persist(hourly).strategy == "unchanged"
    assert sorted(minute for each in stored(hourly) for minute in each.minutes) == [10, 30, 35]
    assert all(each.is_persisted for each in stored(hourly))
    assert (hourly.ids(), hourly.branches()) == ([0, 1, 2], set())
    flushes = [each.windows.flush for each in partitions_by(hourly).state.partitions.values()]
    assert flushes == [None] * len(flushes)
    assert_no_orphan_stays(hourly)


def assert_no_orphan_stays(home: Home) -> None:
    """Remove orphans as if each of them were old: exactly the files that the table names are left."""
    rows = home.rows()
    remove_orphans(home.shard(), older_than_ms=LATER_MS)
    assert leftovers(home.settings, home.shard()) == set()
    assert named_files(home.shard()) <= {path.name for path in stored_files(home.settings)}
    assert home.rows() == rows


def test_of_two_passes_at_once_one_is_discarded(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    send(hourly, 0, 3, 1)
    hourly.ingest()
    at(hourly, 6)
    write = persisting._write

    def persist_first(run: Any) -> None:
        monkeypatch.undo()
        other = persist(hourly)
        assert (other.strategy, other.details["given_up"]) == ("persisted", ["2013-01-03T05"])
        write(run)

    monkeypatch.setattr(persisting, "_write", persist_first)
    before = leftovers(hourly.settings, hourly.shard())
    assert persist(hourly).strategy == "discarded"
    assert (stored(hourly), hourly.ids()) == ([old(1, 3)], [0, 1])
    assert leftovers(hourly.settings, hourly.shard()) == before


def test_a_read_only_deployment_persists_nothing(hourly: Home) -> None:
    send(hourly, 0, 3)
    hourly.ingest()
    at(hourly, 6)
    hourly.switch(Mode.READ_ONLY)
    assert persist(hourly).exit_code == ExitCode.FENCED
    assert stored(hourly) == [young(3)]


def test_a_flush_brings_open_rows(hourly: Home) -> None:
    send(hourly, 0, 3)
    hourly.switch(Mode.READ_ONLY)
    hourly.ingest()
    hourly.switch(Mode.READ_WRITE)
    flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
    at(hourly, 6)
    assert persist(hourly).strategy == "unchanged", "the state knows the rows after the next ingest"
    hourly.ingest()
    at(hourly, 12)
    assert persist(hourly).strategy == "persisted"
    assert stored(hourly) == [old(3)]


def test_a_compaction_leaves_persisted_files_alone(hourly: Home) -> None:
    for minute in (-181, -121, -61):
        send(hourly, 0, minute)
        hourly.ingest()
        persist(hourly, now=True)
    for minute in (9, 8):
        send(hourly, 0, minute)
        hourly.ingest()
    assert compact(Writer.join(hourly.shard(), 1), policy=EAGER).files_before == 2
    *persisted, merged = stored(hourly)
    assert persisted == [old(-181), old(-121), old(-61)]
    assert (sorted(merged.minutes), merged.is_persisted) == ([8, 9], False)
    assert hourly.ids() == list(range(5))


def test_rows_without_an_event_time_stay_open(ingesting: Home) -> None:
    ingesting.clock.step(FIVE - ingesting.clock.now_ms())
    ingesting.declare_reader(schema="id bigint, at timestamp")
    ingesting.send(0, b'{"id":7}')
    send(ingesting, 0, 2, 1)
    ingesting.ingest()
    declare(ingesting)
    ingesting.ingest()
    assert persist(ingesting, now=True).strategy == "persisted"
    assert ingesting.ids() == [0, 1, 7]
    head = ingesting.shard().load()
    sizes = {file.record_count: file.sort_order_id for file in read_data_files(head.table.io, head.contents).values()}
    assert (sizes[1], sizes[2]) == (None, find_time_order(head.table, "at"))
    at(ingesting, 10)
    assert persist(ingesting, now=True).strategy == "unchanged"


def test_only_collections_with_event_times_are_persisted(ingesting: Home) -> None:
    ingesting.declare_reader()
    with pytest.raises(UsageError, match="has no event times"):
        choose_persisted(ingesting.deployment, ["events"])
    assert choose_persisted(ingesting.deployment, []) == []


def test_much_that_is_due_is_left_for_spark(hourly: Home) -> None:
    send(hourly, 0, 3, 1)
    hourly.ingest()
    at(hourly, 6)
    before = hourly.upper("events")
    deployment = hourly.deployment
    chosen, engine = choose_persisted(deployment, []), Engine(small_rows=1)
    _, left = persist_all(hourly.shards, deployment, chosen, clock=hourly.clock, engine=engine)
    assert (left, hourly.upper("events")) == (["events"], before), "nothing was begun"


def test_above_the_soft_limit_the_oldest_rows_are_persisted_however_young(hourly: Home) -> None:
    declare(hourly, soft_limit=4)
    at(hourly, 61)
    send(hourly, 0, 60)
    hourly.ingest()
    at(hourly, 62)
    send(hourly, 0, 58, 59)
    hourly.ingest()
    assert reasons(persist(hourly)) == []
    send(hourly, 0, 57)
    hourly.ingest()
    assert reasons(persist(hourly)) == [
        "persist 2013-01-03T06: 4 open rows >= `soft_limit` 4; of all partitions, its rows wait for the longest time"
    ]
    assert stored(hourly) == [young(57), young(58, 59), old(60)]
    declare(hourly, soft_limit="1MiB")
    assert reasons(persist(hourly)) == []


def test_the_soft_limit_holds_for_rows_that_are_to_be_merged(hourly: Home) -> None:
    declare(hourly, soft_limit=3, persist_when_cold=False, persist_age="3h")
    for minute in (1, 2, 3):
        at(hourly, minute)
        send(hourly, 0, minute)
        hourly.ingest()
    at(hourly, 50)
    told = [*reasons(persist(hourly)), *reasons(persist(hourly))]
    assert [text.partition(";")[0] for text in told] == ["persist 2013-01-03T05: 3 open rows >= `soft_limit` 3"]


@pytest.mark.parametrize("limit", [3, "1KiB"])
def test_above_the_hard_limit_an_ingest_pauses_and_loses_nothing(hourly: Home, limit: int | str) -> None:
    declare(hourly, hard_limit=limit)
    send(hourly, 0, 1, 2, 3)
    assert hourly.ingest().inserted == 3
    assert hourly.ingest().error is None, "nothing waits"
    send(hourly, 0, 4)
    send(hourly, 1, 5, 6)
    report = hourly.ingest()
    assert report.error is not None
    assert (report.error.kind, report.exit_code) == ("HardLimit", ExitCode.TRANSIENT)
    lags = {name: each["sequence_number_lag"] for name, each in report.details["sequencers"].items()}
    assert (lags, hourly.ids()) == ({"0": 1, "1": 2}, [0, 1, 2])
    hourly.switch(Mode.READ_ONLY)
    assert hourly.ingest().rows_source == 3, "what is staged is not there yet"
    hourly.switch(Mode.READ_WRITE)
    assert "pause" in reasons(persist(hourly))[-1]
    persist(hourly, now=True)
    flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
    send(hourly, 0, 7)
    assert hourly.ingest().error is None, "of flushed rows the state learns by an ingest"
    assert hourly.ids() == list(range(7))


def test_rows_that_no_pass_takes_are_no_limit(hourly: Home) -> None:
    declare(hourly, hard_limit=2)
    at(hourly, 10)
    send(hourly, 0, 1, 2, 3)
    hourly.ingest()
    lose_state(hourly)
    send(hourly, 0, 4)
    assert hourly.ingest().inserted == 1, "nobody knows yet what is open"
    send(hourly, 0, 5)
    assert hourly.ingest().error is not None
    lose_state(hourly)
    assert persist(hourly, now=True).strategy == "persisted", "also what the state does not know"
    assert stored(hourly) == [old(1, 2, 3, 4)]
    assert hourly.ingest().inserted == 1
    assert hourly.ids() == list(range(5))


def lose_state(home: Home) -> None:
    table = home.shards.iceberg.load_table(("collections", "events"))
    with table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)


def test_an_ingest_that_loses_against_the_end_of_a_persist_knows_that_it_ended(
    hourly: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(hourly, 0, 3, 1)
    hourly.ingest()
    at(hourly, 6)
    finish = persisting._finish
    publish = Writer.publish

    def finish_within_an_ingest(run: Any) -> None:
        def finish_first(writer: Writer, *batches: Any, **more: Any) -> Any:
            monkeypatch.undo()
            finish(run)
            return publish(writer, *batches, **more)

        monkeypatch.setattr(Writer, "publish", finish_first)
        send(hourly, 1, 5)
        assert hourly.ingest().inserted == 1

    monkeypatch.setattr(persisting, "_finish", finish_within_an_ingest)
    assert persist(hourly).strategy == "persisted"
    windows = partitions_by(hourly).state.partitions["2013-01-03T05"].windows
    assert (windows.flush, [window.rows for window in windows.unpersisted]) == (None, [1])
    assert (stored(hourly), hourly.ids()) == ([old(1, 3), young(5)], [0, 1, 2])


@pytest.mark.parametrize("change", ["compaction", "lost state", "other unit", "mode"])
def test_what_changes_while_a_pass_works_costs_no_row(
    hourly: Home, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    for minute in (3, 2):
        send(hourly, 0, minute)
        hourly.ingest()
    at(hourly, 6)
    write = persisting._write

    def change_first(run: Any) -> None:
        monkeypatch.undo()
        if change == "compaction":
            compact(Writer.join(hourly.shard(), 1), policy=EAGER)
        elif change == "lost state":
            lose_state(hourly)
        elif change == "other unit":
            hourly.declare_reader(schema="id bigint, at timestamp", event_time="at")
            hourly.ingest()
        else:
            hourly.switch(Mode.READ_ONLY)
            hourly.switch(Mode.READ_WRITE)
        write(run)

    monkeypatch.setattr(persisting, "_write", change_first)
    assert persist(hourly).strategy == "discarded"
    assert all(not each.is_persisted for each in stored(hourly))
    hourly.ingest()
    assert persist(hourly, now=True).strategy == "persisted"
    assert (stored(hourly), hourly.ids()) == ([old(2, 3)], [0, 1])


def test_a_pass_that_died_is_forgotten_even_if_nothing_is_due(hourly: Home) -> None:
    send(hourly, 0, 3)
    hourly.ingest()
    with pytest.raises(Crash), dying_at("persist.after-begin"):
        persist(hourly, now=True)
    assert persist(hourly).details["given_up"] == ["2013-01-03T05"]
    assert "given_up" not in persist(hourly).details


def test_deleted_rows_stay_deleted_and_their_delete_files_go_with_the_files(hourly: Home) -> None:
    send(hourly, 0, 3, 2, 1)
    hourly.ingest()
    shard = hourly.shard()
    head = shard.load()
    (path,) = read_data_files(head.table.io, head.contents)
    removal = Removal(positions={path: np.array([1], np.int64)}, rows=1)
    remove_rows(Writer.join(shard, 1), head, removal, now_ms=hourly.clock.now_ms())
    assert persist(hourly, now=True).strategy == "persisted"
    assert (stored(hourly), shard.load().row_count) == ([old(1, 3)], 2)
    head = shard.load()
    (path,) = read_data_files(head.table.io, head.contents)
    remove_rows(Writer.join(shard, 1), head, Removal(positions={path: np.array([0], np.int64)}, rows=1), now_ms=1)
    assert compact(Writer.join(shard, 1), policy=EAGER).outcome == "compacted"
    assert stored(hourly) == [old(3)], "a file that loses rows keeps its order"


def test_texts_of_files_with_and_without_deleted_rows_are_persisted_together(ingesting: Home) -> None:
    at(ingesting, 1)
    columns = "id bigint, at timestamp, name string, tags array<string>"
    ingesting.declare_reader(schema=columns, event_time="at")
    for run in range(2):
        for number in range(3):
            row = {"id": 3 * run + number, "at": "2013-01-03T05:00:00", "name": "n", "tags": ["a", None]}
            ingesting.send(0, json.dumps(row).encode())
        ingesting.ingest()
        shard = ingesting.shard()
        head = shard.load()
        paths = [path for path, file in read_data_files(head.table.io, head.contents).items() if not file.sort_order_id]
        removal = Removal(positions={path: np.array([1], np.int64) for path in paths}, rows=1)
        remove_rows(Writer.join(shard, 1), head, removal, now_ms=ingesting.clock.now_ms())
        assert persist(ingesting, now=True).strategy == "persisted"
    assert (ingesting.ids(), len(files_of(ingesting))) == ([0, 2, 3, 5], 1)


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date"])
def test_odd_event_times_are_persisted(ingesting: Home, type_: str) -> None:
    columns = f"id bigint, at {type_}"
    ingesting.declare_reader(schema=columns)
    for number, time in enumerate(["9999-12-31T23:59:59.999999", "0001-01-01", "1969-12-31", "2013-01-03"]):
        text = time[:10] if type_ == "date" else time
        ingesting.send(0, json.dumps({"id": number, "at": text}).encode())
    ingesting.ingest()
    ingesting.declare_reader(schema=columns, event_time="at", partition="month", lifecycle={"max_ahead": "1h"})
    ingesting.ingest()
    at(ingesting, 60 * 24 * 365 * 200)
    report = persist(ingesting)
    assert (report.error, report.strategy, len(report.details["decisions"])) == (None, "persisted", 4)
    head = ingesting.shard().load()
    order_id = find_time_order(head.table, "at")
    assert {file.sort_order_id for file in read_data_files(head.table.io, head.contents).values()} == {order_id}
    assert ingesting.ids() == list(range(4))


def test_a_table_that_asks_for_another_order_does_not_get_it_here(hourly: Home) -> None:
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    with table.update_sort_order() as order:
        order.desc("id", IdentityTransform())
    send(hourly, 0, 1, 2, 3)
    hourly.ingest()
    persist(hourly, now=True)
    assert stored(hourly) == [old(1, 2, 3)]


@pytest.mark.spark
def test_spark_persists_as_one_process_does(home_spark: SparkSession, hourly: Home) -> None:
    at(hourly, 65)
    send(hourly, 0, 50, 10, 61, 64)
    hourly.ingest()
    send(hourly, 1, 30, 64, 20)
    hourly.ingest()
    at(hourly, 96)
    send(hourly, 0, 95)
    hourly.ingest()
    assert persist(hourly, spark=home_spark).strategy == "persisted"
    persisted = [each.minutes for each in stored(hourly) if each.is_persisted]
    assert [minute for minutes in persisted for minute in minutes] == [10, 20, 30, 50, 61, 64, 64]
    assert [each.minutes for each in stored(hourly) if not each.is_persisted] == [[95]]
    assert (hourly.ids(), hourly.branches()) == (list(range(8)), set())
    assert partitions_by(hourly).state.partitions["2013-01-03T05"].windows.is_persisted
    send(hourly, 1, 25)
    hourly.ingest()
    at(hourly, 160)
    assert persist(hourly, spark=home_spark).strategy == "persisted"
    assert [minute for each in stored(hourly) for minute in each.minutes] == [10, 20, 25, 30, 50, 61, 64, 64, 95]
    assert all(each.is_persisted for each in stored(hourly)), "late rows come into the order of the others"
    assert (hourly.ids(), hourly.branches()) == (list(range(9)), set())
    send(hourly, 0, 26)
    hourly.ingest()
    assert persist(hourly, now=True).strategy == "persisted", "this process reads what Spark wrote"
    assert hourly.ids() == list(range(10))


@pytest.mark.spark
def test_spark_persists_dates_and_leaves_rows_without_one(home_spark: SparkSession, ingesting: Home) -> None:
    columns = "id bigint, at date"
    ingesting.declare_reader(schema=columns)
    ingesting.send(0, b'{"id":0}', *(b'{"id":%d,"at":"2013-01-0%d"}' % (day, day) for day in (3, 1, 2)))
    ingesting.ingest()
    ingesting.declare_reader(schema=columns, event_time="at")
    ingesting.ingest()
    at(ingesting, 60)
    assert persist(ingesting, spark=home_spark).strategy == "persisted"
    head = ingesting.shard().load()
    order_id = find_time_order(head.table, "at")
    sizes = {file.sort_order_id == order_id: file.record_count for file in files_of(ingesting)}
    assert (sizes, ingesting.ids()) == ({True: 3, False: 1}, [0, 1, 2, 3])


@pytest.mark.spark
@pytest.mark.parametrize("key", [[], ["id"]])
@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date"])
def test_spark_reads_only_files_with_a_remainder_again(
    home_spark: SparkSession, ingesting: Home, monkeypatch: pytest.MonkeyPatch, type_: str, key: list[str]
) -> None:
    """Of three days two are due: there are files of these alone, one of all, and two that say too little."""
    noon = {"timestamp": "T12:00:00+00:00", "timestamp_ntz": "T12:00:00", "date": ""}[type_]
    days = [f"2013-01-0{day}{noon}" for day in (1, 2, 3)]
    value = date.fromisoformat if type_ == "date" else datetime.fromisoformat
    at(ingesting, 600)
    ingesting.declare_reader(schema=f"id bigint, at {type_}", event_time="at", partition="day", key=key)

    def ingest(*rows: tuple[int, str]) -> str:
        for id_, time in rows:
            ingesting.send(0, json.dumps({"id": id_, "at": time}).encode())
        return added_by(ingesting.ingest)

    def append(*rows: tuple[int, str | None]) -> str:
        table = ingesting.shards.iceberg.load_table(("collections", "events"))
        found = [{"id": id_, "at": time and value(time), "_producer": "other", "_batch": 0} for id_, time in rows]
        return added_by(lambda: table.append(pa.Table.from_pylist(found, schema=arrow_schema(table))))

    def added_by(write: Callable[[], object]) -> str:
        before = {file.file_path for file in files_of(ingesting)}
        write()
        (new,) = {file.file_path for file in files_of(ingesting)} - before
        return new

    first = ingest((0, days[0]), (1, days[1]), (2, days[0]))
    removal = Removal(positions={first: np.array([2], np.int64)}, rows=1)
    shard = ingesting.shard()
    remove_rows(Writer.join(shard, 1), shard.load(), removal, now_ms=ingesting.clock.now_ms())
    whole = {first, ingest((3, days[1]))}
    at(ingesting, 633)
    again = {ingest((1, days[1]), (5, days[2])), append((6, None), (7, days[1]))}
    with ingesting.shards.iceberg.load_table(("collections", "events")).transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    again.add(append((8, days[0]), (9, days[2])))
    at(ingesting, 636)
    reads: list[set[str]] = []
    read_rows_of = splitting.read_rows_of

    def watch(spark: SparkSession, shard: Any, head: Any, rewrite: Any, **more: Any) -> Any:
        reads.append({*rewrite.tasks})
        return read_rows_of(spark, shard, head, rewrite, **more)

    monkeypatch.setattr(splitting, "read_rows_of", watch)
    assert persist(ingesting, spark=home_spark).strategy == "persisted"
    assert reads == [whole | again, again]
    assert ingesting.ids() == sorted([0, 1, 3, 5, 6, 7, 8, 9, *([] if key else [1])]), "the duplicate goes by key"
    order_id = find_time_order(shard.load().table, "at")
    is_persisted = {
        row["id"]: file.sort_order_id == order_id
        for file in files_of(ingesting)
        for row in pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
    }
    assert is_persisted == {**dict.fromkeys([0, 1, 3, 7, 8], True), **dict.fromkeys([5, 6, 9], False)}


@pytest.mark.spark
@pytest.mark.parametrize(
    "point", ["stage.after-branch", "stage.after-rows", "stage.after-rows:2", "persist.after-files"]
)
def test_a_pass_of_spark_that_dies_leaves_no_file_behind(home_spark: SparkSession, hourly: Home, point: str) -> None:
    send(hourly, 0, 50, 10)
    hourly.ingest()
    at(hourly, 96)
    send(hourly, 0, 20, 95)
    hourly.ingest()
    with pytest.raises(Crash), dying_at(point):
        persist(hourly, spark=home_spark)
    assert persist(hourly, spark=home_spark).strategy == "persisted"
    assert stored(hourly) == [old(10, 20, 50), young(95)]
    shard = hourly.shard()
    drop_staged(shard, find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0))  # as maintenance does
    assert hourly.branches() == set()
    assert_no_orphan_stays(hourly)


@pytest.mark.spark
def test_columns_that_are_called_as_ours_keep_their_values(home_spark: SparkSession, ingesting: Home) -> None:
    at(ingesting, 0)
    ingesting.declare_reader(
        schema="id bigint, `.x` timestamp, _Tidemark_at string, _tidemark_start bigint", event_time=".x"
    )
    rows = [{"id": n, ".x": "2013-01-03T04:00:00", "_Tidemark_at": "mine", "_tidemark_start": n} for n in range(3)]
    ingesting.send(0, *(json.dumps(row).encode() for row in rows))
    ingesting.ingest()
    before = ingesting.user_rows("events")
    at(ingesting, 60)
    for spark in (home_spark, None):
        assert persist(ingesting, spark=spark, now=spark is None).strategy == "persisted"
        assert ingesting.user_rows("events") == before
        ingesting.send(0, b'{"id":9,".x":"2013-01-03T04:00:00"}')
        ingesting.ingest()
        before = ingesting.user_rows("events")
    home_spark.sql("ALTER TABLE tidemark.collections.events UNSET TBLPROPERTIES ('tidemark.lifecycle')")
    assert PROPERTY not in ingesting.shard().load().table.properties, "as the docs say"


def test_two_first_passes_add_one_sort_order(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = hourly.shard()
    commit = time_order.commit_beside

    def add_first(*arguments: Any, **more: Any) -> None:
        monkeypatch.undo()
        assert time_order.add_time_order(shard, "at") == 1
        commit(*arguments, **more)

    monkeypatch.setattr(time_order, "commit_beside", add_first)
    assert time_order.add_time_order(shard, "at") == 1
    assert [each.order_id for each in shard.load().table.metadata.sort_orders] == [0, 1]


def test_event_times_that_another_engine_renamed_are_told(hourly: Home) -> None:
    send(hourly, 0, 1)
    hourly.ingest()
    with hourly.shards.iceberg.load_table(("collections", "events")).update_schema() as schema:
        schema.rename_column("at", "then")
    send(hourly, 0, 2)
    for report in (hourly.ingest(), persist(hourly, now=True)):
        assert report.error is not None
        assert (report.error.kind, report.exit_code) == ("NotPossible", ExitCode.NOT_POSSIBLE)
