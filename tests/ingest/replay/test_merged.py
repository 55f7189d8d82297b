"""Persisted rows with values of several entries: no replay takes one of these values away, whatever happened before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, RULES, at, partitions_by
from tests.ingest.persist.test_persist import lose_state, persist
from tests.ingest.replay.test_replay import delete, replay, replayed
from tests.support.dying import interrupted_at
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.shard.ledger import Range
from tidemark.interval import Unit, instant, time_text

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

TABLE = "gate"  # also the collection whose appends bring rows of it
COLUMNS = "id bigint, at timestamp, a int, b int"


def declare(home: Home, *, partition: str = "hour", key: tuple[str, ...] = ("id",), **lifecycle: object) -> None:
    rules = {**RULES, **({"merge": "fields"} if key else {}), **lifecycle}
    source = {"table": TABLE}
    home.declare_reader(schema=COLUMNS, event_time="at", partition=partition, key=key, lifecycle=rules, source=source)


@pytest.fixture
def merging(ingesting: Home) -> Home:
    """A collection that merges by fields, a minute after 05:00; nothing came yet."""
    at(ingesting, 1)
    declare(ingesting)
    return ingesting


def send(home: Home, sequencer_id: int = 0, **values: object) -> None:
    row = {"_table": TABLE, "id": 1, "at": time_text(FIVE), **values}
    home.send(sequencer_id, json.dumps(row).encode())


def append(home: Home, number: int, *, to: str = TABLE, **values: int) -> None:
    """Append a row into the buffer through another collection."""
    if not home.shards.exists(to):
        home.declare_writer(to, schema=COLUMNS)
    row = {"id": 1, "at": instant(FIVE), **values}
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "a": pa.int32(), "b": pa.int32()})
    name, rows = BatchName("p", Range(number, number + 1)), pa.Table.from_pylist([row], schema=schema)
    append_rows(home.shard(to), name, rows, deployment=home.deployment, clock=home.clock)


def values(home: Home) -> list[tuple[Any, ...]]:
    """Return the values of the rows on `main`."""
    return sorted(((row["a"], row["b"]) for row in home.rows()), key=repr)


def accepted(home: Home) -> list[tuple[Any, ...]]:
    """Return the values of all rows, also those that `main` does not show."""
    return sorted(((row["a"], row["b"]) for row in read_arrow(home.shard(), with_open=True).to_pylist()), key=repr)


def merge_two(home: Home) -> None:
    """Persist a row that has its values from two entries."""
    for value in ({"a": 19}, {"b": 40}):
        send(home, **value)
        home.ingest()
    assert persist(home, now=True).details["duplicates"] == 1
    assert (19, 40) in values(home)


def test_a_row_that_a_flush_brought_and_a_pass_merged_is_persisted(merging: Home) -> None:
    send(merging, a=19)
    merging.ingest()
    persist(merging, now=True)
    merging.switch(Mode.READ_ONLY)
    send(merging, b=40)
    merging.ingest()
    merging.switch(Mode.READ_WRITE)
    flush_all(merging.shards, merging.deployment, [], clock=merging.clock)
    persist(merging, now=True)
    assert values(merging) == [(19, 40)]
    assert replayed(merging).outcome == "unchanged", "also before an ingest has counted the row"
    merging.ingest()
    assert replayed(merging).outcome == "unchanged"
    persist(merging, now=True)
    assert values(merging) == [(19, 40)]
    (partition,) = partitions_by(merging).state.partitions.values()
    assert (partition.rows, partition.windows.is_persisted) == (2, True)


@pytest.mark.parametrize("ingests", [True, False])
@pytest.mark.parametrize("loses", [True, False])
def test_a_state_that_begins_anew_knows_what_is_persisted(merging: Home, *, loses: bool, ingests: bool) -> None:
    send(merging, a=1)
    merging.ingest()
    append(merging, 0, b=7)
    send(merging, a=2)
    merging.ingest()
    persist(merging, now=True)
    assert values(merging) == [(2, 7)]
    if loses:
        lose_state(merging)
    else:
        declare(merging, partition="day")
    if ingests:
        merging.ingest()
        unit = Unit.HOUR if loses else Unit.DAY
        assert [each.windows.is_persisted for each in partitions_by(merging, unit).state.partitions.values()] == [True]
    send(merging, a=3)
    merging.ingest()
    replayed(merging)
    persist(merging, now=True)
    assert values(merging) == [(3, 7)]


def test_merged_rows_that_another_engine_rewrote_are_not_replayed_by_a_new_state(merging: Home) -> None:
    send(merging, id=2, a=1)
    merge_two(merging)
    delete(merging, "id = 2")
    lose_state(merging)
    merging.ingest()
    replayed(merging)
    persist(merging, now=True)
    assert (19, 40) in values(merging)
    (partition,) = partitions_by(merging).state.partitions.values()
    assert partition.windows.is_persisted, "the pass took the rows for open ones"


def test_rows_that_are_visible_stay_visible_when_the_state_begins_anew(ingesting: Home) -> None:
    at(ingesting, 1)
    declare(ingesting, merge="rows", visible="when-persisted")
    for id_ in range(3):
        send(ingesting, id=id_, a=id_)
    ingesting.ingest()
    persist(ingesting, now=True)
    declare(ingesting, partition="day", merge="rows", visible="when-persisted")
    send(ingesting, id=3, a=3)
    ingesting.ingest()
    replayed(ingesting)
    assert ingesting.ids() == [0, 1, 2]
    assert accepted(ingesting) == [(0, None), (1, None), (2, None), (3, None)]


def test_a_pass_that_takes_rows_which_an_ingest_counts_meanwhile_is_discarded(merging: Home) -> None:
    send(merging, a=19)
    merging.ingest()
    merging.switch(Mode.READ_ONLY)
    send(merging, b=40)
    merging.ingest()
    merging.switch(Mode.READ_WRITE)
    flush_all(merging.shards, merging.deployment, [], clock=merging.clock)
    with interrupted_at("persist.after-files", merging.ingest) as failures:
        assert persist(merging, now=True).strategy == "discarded"
    assert not failures
    assert values(merging) == [(19, None), (None, 40)]
    persist(merging, now=True)
    replayed(merging)
    persist(merging, now=True)
    assert values(merging) == [(19, 40)]


def test_a_run_with_a_limit_takes_no_batch_before_rows_with_smaller_numbers(home: Settings, tmp_path: Path) -> None:
    one = Home(home, tmp_path, sequencers=1, now_ms=FIVE)
    assert len(one.buffer.logs) == 1
    declare(one)
    append(one, 0, b=1)
    for a in range(3):
        send(one, a=a)
    append(one, 1, b=7)
    while one.ingest(max_entries=1).batches:
        persist(one, now=True)
    assert values(one) == [(2, 7)]


def test_entries_that_the_buffer_lost_are_not_skipped_where_they_gave_values(merging: Home) -> None:
    merge_two(merging)
    merging.buffer.logs[0].expire(1)
    for skips_lost, kind in ((False, "NoLongerExists"), (True, "UsageError")):
        report = replay(merging, from_=("0:0",), skips_lost=skips_lost)
        assert report.error is not None
        assert report.error.kind == kind
    assert values(merging) == [(19, 40)]


@pytest.mark.parametrize("key", [("id",), ()])
def test_values_that_were_merged_by_former_rules_stay(merging: Home, key: tuple[str, ...]) -> None:
    merge_two(merging)
    declare(merging, key=key, **({"merge": "rows"} if key else {}))
    report = replay(merging, from_=("0:1",))
    assert report.error is not None
    assert (report.exit_code, report.error.hint) == (
        ExitCode.USAGE,
        "begin with the first numbers of all sequencers: --from 0:0",
    )
    assert values(merging) == [(19, 40)]


def test_batches_of_another_table_are_no_obstacle(merging: Home) -> None:
    append(merging, 0, to="other", a=5)
    send(merging, 1, id=2, a=1)
    merge_two(merging)
    assert replayed(merging, from_=("0:0", "1:0")).inserted == 3
    persist(merging, now=True)
    assert values(merging) == [(1, None), (19, 40)]


def test_values_that_a_persist_merges_meanwhile_stay(merging: Home) -> None:
    send(merging, a=1)
    merging.ingest()
    assert persist(merging, now=True).strategy == "persisted"
    send(merging)
    merging.ingest()
    with interrupted_at("replay.after-plan", lambda: persist(merging, now=True)) as failures:
        replayed(merging)
    assert not failures
    assert persist(merging, now=True).error is None
    assert [(row["a"], row["_entry"]) for row in merging.rows()] == [(1, 1)]


def test_values_of_merged_rows_come_back_from_all_first_numbers_alone(merging: Home) -> None:
    for sequencer_id in (0, 1):
        send(merging, sequencer_id, id=sequencer_id, a=1)
    merging.ingest()
    report = replay(merging, from_=("0:0",))
    assert report.error is not None
    assert report.error.hint == "begin with the first numbers of all sequencers: --from 0:0 --from 1:0"
    assert replayed(merging, from_=("0:0", "1:0")).inserted == 2
    append(merging, 0, b=7)
    merging.ingest()
    report = replay(merging, from_=("0:0", "1:0"))
    assert report.error is not None
    assert "rows that came another way, by gate.p" in report.error.message
