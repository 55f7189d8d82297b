"""Retention: which rows go, as the table of the policies says, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import TimestamptzType

from tests.support.events import switch
from tests.support.exploration import explore
from tests.support.statuses import DAY_MS, NOW_MS, Status, Statuses, read_statuses
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance import retain as retaining
from tidemark.collections.maintenance.retain import plan_retention, retain
from tidemark.collections.maintenance.retention_policies import choose_removal
from tidemark.errors import ConflictsUnsettled, FencedByGeneration, InputsGone, ReadOnly
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.newest_rows import drop_newest
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.maintenance.row_removal import Removal, remove_rows
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.time_travel import pin_contents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tidemark.collections.maintenance.retain import Retained
    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

AGE = Retention(age="2d", column="at")
WINDOW = Retention(time_window="2d", column="at", key=("id", "replica"))
LAST = Retention(last_n=2, key=("id", "replica"), order_by=("at",))
EDGE_MS = NOW_MS - 2 * DAY_MS


@pytest.fixture
def statuses(home: Settings) -> Statuses:
    return Statuses(home)


def retain_now(statuses: Statuses, retention: Retention) -> Retained:
    return retain(statuses.shard, retention, deployment=deployment_of(statuses.settings), now_ms=NOW_MS)


def at(time_ms: int | None, id_: int | None = 1, replica: str | None = "r", status: str = "running") -> Status:
    return Status(id_, replica, status, time_ms)


def test_row_at_the_edge_of_its_window_stays(statuses: Statuses) -> None:
    kept = [at(EDGE_MS), at(EDGE_MS + 1), at(None)]
    statuses.append(at(EDGE_MS - 1), *kept)
    done = retain_now(statuses, AGE)
    assert statuses.rows() == Counter(kept)
    assert (done.rows, done.files) == (1, 0)


def test_every_copy_of_a_row_goes(statuses: Statuses) -> None:
    old = at(EDGE_MS - 1)
    statuses.append(old, old, at(NOW_MS))
    statuses.append(old, old, at(NOW_MS))
    assert retain_now(statuses, AGE).rows == 4
    assert statuses.rows() == Counter([at(NOW_MS)] * 2)


def test_files_of_which_nothing_stays_go_whole_without_being_read(
    statuses: Statuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses.append(at(EDGE_MS - 2), at(EDGE_MS - 1))
    statuses.append(at(NOW_MS))
    monkeypatch.setattr("tidemark.iceberg.files.stored_rows.scan_file", None)
    done = retain_now(statuses, AGE)
    assert (done.rows, done.files) == (2, 1)
    assert statuses.rows() == Counter([at(NOW_MS)])


@pytest.mark.parametrize("more", [1, 2, 5])
def test_the_last_rows_of_each_key_stay(statuses: Statuses, more: int) -> None:
    keys = [(1, "r"), (1, "s"), (2, "r")]
    for number in range(2 + more):
        statuses.append(*(at(number, *key) for key in keys))
    assert retain_now(statuses, LAST).rows == more * len(keys)
    assert statuses.rows() == Counter(at(number, *key) for key in keys for number in (more, more + 1))


@pytest.mark.parametrize("policy", [LAST, WINDOW, AGE], ids=["last_n", "time_window", "age"])
def test_where_nothing_is_too_old_nothing_is_written(statuses: Statuses, policy: Retention) -> None:
    statuses.append(at(NOW_MS), at(NOW_MS, None))
    location = statuses.shard.load().table.metadata_location
    assert retain_now(statuses, policy).rows == 0
    assert statuses.shard.load().table.metadata_location == location


def test_columns_that_were_renamed_or_added_are_found_in_older_files(statuses: Statuses) -> None:
    statuses.append(at(EDGE_MS - 1), at(NOW_MS))
    with statuses.shard.load().table.update_schema() as update:
        update.rename_column("at", "seen_at")
        update.add_column("closed_at", TimestamptzType())
    never_closed = Retention(age="2d", column="closed_at")
    assert plan_retention(statuses.shard, never_closed, now_ms=NOW_MS).rows == 0
    assert retain_now(statuses, Retention(age="2d", column="seen_at")).rows == 1
    rows = statuses.shard.load().table.scan().to_arrow()
    assert (rows.num_rows, rows.column("closed_at").null_count) == (1, 1)


def test_null_is_a_key_of_its_own(statuses: Statuses) -> None:
    rows = [at(number, id_, replica) for number in range(3) for id_ in (1, None) for replica in ("r", None)]
    statuses.append(*rows)
    assert retain_now(statuses, LAST).rows == 4
    assert statuses.rows() == Counter(row for row in rows if row.at_ms)


def test_copies_count_one_by_one_among_the_last(statuses: Statuses) -> None:
    statuses.append(at(5), at(5), at(5), at(4))
    assert retain_now(statuses, LAST).rows == 2
    assert statuses.rows() == Counter([at(5), at(5)])


def test_ties_are_broken_by_the_declared_order_then_by_batch_then_by_place(statuses: Statuses) -> None:
    declared = Retention(last_n=1, key=("id",), order_by=("at", "status"))
    statuses.append(at(5, status="b"), at(5, status="c"), at(5, status="a"))
    retain_now(statuses, declared)
    assert statuses.rows() == Counter([at(5, status="c")])
    undeclared = Retention(last_n=1, key=("id",), order_by=("at",))
    for _ in range(9):  # past ten, so that the order is that of the numbers and not of their texts
        statuses.append(at(5, status="z"))
    statuses.append(at(5, status="y"), at(5, status="x"))
    retain_now(statuses, undeclared)
    assert statuses.rows() == Counter([at(5, status="x")])


def test_rows_without_a_time_are_the_oldest(statuses: Statuses) -> None:
    statuses.append(at(None), at(3), at(4))
    retain_now(statuses, LAST)
    assert statuses.rows() == Counter([at(3), at(4)])


def test_a_window_with_a_key_keeps_the_newest_row_of_each_key(statuses: Statuses) -> None:
    quiet, busy = [at(1, 1), at(2, 1)], [at(3, 2), at(EDGE_MS, 2), at(NOW_MS, 2)]
    statuses.append(*quiet, *busy)
    assert retain_now(statuses, WINDOW).rows == 2
    assert statuses.rows() == Counter([quiet[1], *busy[1:]])
    assert retain_now(statuses, Retention(time_window="2d", column="at")).rows == 1
    assert statuses.rows() == Counter(busy[1:])


def test_retention_is_one_commit_that_leaves_ledger_and_history(statuses: Statuses) -> None:
    statuses.append(at(EDGE_MS - 1), at(NOW_MS))
    before = statuses.shard.load()
    upper = before.state.upper
    assert isinstance(upper, int)
    retain_now(statuses, AGE)
    head = statuses.shard.load()
    assert head.main.parent_snapshot_id == before.main.snapshot_id
    assert head.main.summary is not None
    assert head.main.summary.operation.value == "delete", "a reader that follows appends passes over it"
    assert (head.state.kind, head.state.lower) == (CommitKind.RETAIN, upper)
    assert head.state.ledgers == {"p": Ledger((Range(1, 2),))}
    assert head.row_count == 1
    old = pin_contents(head, upper - 1, shard="statuses")
    assert read_statuses(statuses.shard, old.snapshot.snapshot_id) == Counter([at(EDGE_MS - 1), at(NOW_MS)])
    statuses.batches = 0
    assert statuses.append(at(EDGE_MS - 1)).outcome.value == "skipped", "what was retained away is done all the same"


def test_second_retention_finds_nothing_to_do(statuses: Statuses) -> None:
    statuses.append(at(EDGE_MS - 1), at(NOW_MS))
    retain_now(statuses, AGE)
    location = statuses.shard.load().table.metadata_location
    assert retain_now(statuses, AGE).rows == 0
    assert statuses.shard.load().table.metadata_location == location


def test_rows_deleted_before_are_not_counted_again(statuses: Statuses) -> None:
    statuses.append(at(EDGE_MS - 1), at(EDGE_MS), at(EDGE_MS + DAY_MS), at(NOW_MS))
    statuses.append(at(EDGE_MS - 1, 2), at(NOW_MS, 2))
    assert retain_now(statuses, AGE).rows == 2
    done = retain(statuses.shard, AGE, deployment=deployment_of(statuses.settings), now_ms=NOW_MS + DAY_MS)
    assert (done.rows, statuses.shard.load().row_count) == (1, 3)
    everything = retain(statuses.shard, AGE, deployment=deployment_of(statuses.settings), now_ms=NOW_MS + 9 * DAY_MS)
    head = statuses.shard.load()
    assert (everything.rows, everything.files, head.row_count) == (3, 2, 0)
    assert head.main.summary is not None
    assert head.main.summary["total-position-deletes"] == "0", "a delete file goes with the last file that it names"
    assert statuses.rows() == Counter()


def test_delete_file_that_names_a_dropped_file_is_written_anew_for_the_others(statuses: Statuses) -> None:
    statuses.append(at(EDGE_MS - 1, 1), at(EDGE_MS, 1))
    statuses.append(at(EDGE_MS - 1, 2), at(NOW_MS, 2), at(NOW_MS, 3))
    retain_now(statuses, AGE)
    retain(statuses.shard, AGE, deployment=deployment_of(statuses.settings), now_ms=NOW_MS + 1)
    head = statuses.shard.load()
    assert head.row_count == 2
    assert statuses.rows() == Counter([at(NOW_MS, 2), at(NOW_MS, 3)])
    assert head.main.summary is not None
    assert head.main.summary["total-position-deletes"] == "1"


def test_retention_before_anything_was_appended_or_after_the_seal_does_nothing(statuses: Statuses) -> None:
    assert retain_now(statuses, AGE).rows == 0
    statuses.append(at(1))
    Writer.join(statuses.shard, 1).seal(now_ms=NOW_MS)
    location = statuses.shard.load().table.metadata_location
    assert retain_now(statuses, AGE).rows == 0
    assert plan_retention(statuses.shard, AGE, now_ms=NOW_MS).rows == 0
    assert statuses.shard.load().table.metadata_location == location


def test_read_only_deployment_retains_nothing_and_may_ask(statuses: Statuses) -> None:
    statuses.append(at(1))
    switch(statuses.settings, Mode.READ_ONLY)
    location = statuses.shard.load().table.metadata_location
    with pytest.raises(ReadOnly):
        retain_now(statuses, AGE)
    assert plan_retention(statuses.shard, AGE, now_ms=NOW_MS).rows == 1
    assert statuses.shard.load().table.metadata_location == location


def test_deployment_that_a_newer_one_replaced_retains_nothing(statuses: Statuses) -> None:
    statuses.append(at(1))
    Writer.raise_token(statuses.shard, 2)
    with pytest.raises(FencedByGeneration):
        retain_now(statuses, AGE)
    assert statuses.rows() == Counter([at(1)])


def interfering(monkeypatch: pytest.MonkeyPatch, interfere: Sequence[object]) -> list[Removal]:
    """Do something between the choice of the rows and their removal, once for each of ``interfere``."""
    seen: list[Removal] = []
    left = list(interfere)

    def late(writer: Writer, head: ShardHead, removal: Removal, *, now_ms: int) -> Published:
        seen.append(removal)
        if left:
            left.pop(0)()  # type: ignore[operator]
        return remove_rows(writer, head, removal, now_ms=now_ms)

    monkeypatch.setattr(retaining, "remove_rows", late)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return seen


def test_append_that_comes_in_between_costs_nothing(statuses: Statuses, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses.append(at(1), at(NOW_MS))
    seen = interfering(monkeypatch, [lambda: statuses.append(at(NOW_MS, 2))])
    assert retain_now(statuses, AGE).rows == 1
    assert len(seen) == 1
    assert statuses.rows() == Counter([at(NOW_MS), at(NOW_MS, 2)])


def test_rewritten_files_and_other_deletes_are_looked_at_again(
    statuses: Statuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        statuses.append(at(number), at(NOW_MS, number))
    other = Retention(age="2d", column="at")

    def rewrite() -> None:
        compact(Writer.join(statuses.shard, 1), policy=CompactionPolicy(min_small_files=2))

    def delete() -> None:
        head = statuses.shard.load()
        removal = choose_removal(head, other, now_ms=2 * DAY_MS + 1)
        assert removal.rows == 1
        remove_rows(Writer.join(statuses.shard, 1), head, removal, now_ms=NOW_MS)

    seen = interfering(monkeypatch, [rewrite, delete])
    assert retain_now(statuses, AGE).rows == 2
    assert [removal.rows for removal in seen] == [3, 3, 2]
    assert statuses.rows() == Counter(at(NOW_MS, number) for number in range(3))
    assert statuses.shard.load().row_count == 3


def test_conflicts_that_do_not_settle_end_and_leave_no_file(
    statuses: Statuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses.append(at(1), at(NOW_MS))

    def gone(*_: object, **__: object) -> None:
        raise InputsGone("rewritten")

    monkeypatch.setattr("tidemark.iceberg.maintenance.row_removal._check_inputs", gone)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    files = set((statuses.settings.home / "warehouse").rglob("*.parquet"))
    with pytest.raises(ConflictsUnsettled):
        retain_now(statuses, AGE)
    assert set((statuses.settings.home / "warehouse").rglob("*.parquet")) == files
    assert statuses.rows() == Counter([at(1), at(NOW_MS)])


@pytest.mark.spark
def test_spark_sees_the_same_rows_and_follows_appends_past_a_retention(
    home: Settings, home_spark: SparkSession
) -> None:
    statuses = Statuses(home)
    statuses.append(at(EDGE_MS - 1), at(NOW_MS))
    statuses.append(at(EDGE_MS - 1, 2))
    start = statuses.shard.load().main.snapshot_id
    retain_now(statuses, AGE)
    statuses.append(at(NOW_MS, 3))
    assert [row.id for row in home_spark.table(statuses.shard.spark_name).orderBy("id").collect()] == [1, 3]
    followed = home_spark.read.format("iceberg").option("start-snapshot-id", start).load(statuses.shard.spark_name)
    assert [row.id for row in followed.collect()] == [3]


# -- ranking, against the obvious ---------------------------------------------------------------------------------

VALUES = st.one_of(st.none(), st.integers(0, 2))


@given(
    rows=st.lists(st.tuples(VALUES, VALUES), max_size=30),
    keep=st.integers(1, 3),
    at_once=st.integers(1, 10),
    piece=st.integers(1, 7),
)
@explore(60)
def test_stream_drops_what_sorting_everything_drops(
    rows: list[tuple[int | None, int | None]], keep: int, at_once: int, piece: int
) -> None:
    pieces = (
        pa.table(
            {
                "key": pa.array([key for key, _ in rows[start : start + piece]], pa.int64()),
                "time": pa.array([time for _, time in rows[start : start + piece]], pa.int64()),
                "place": pa.array(range(start, min(start + piece, len(rows))), pa.int64()),
            }
        )
        for start in range(0, len(rows), piece)
    )
    dropped = drop_newest(pieces, key=["key"], order=["time", "place"], keep=keep, at_once=at_once)
    expected: set[int] = set()
    for key in {key for key, _ in rows}:
        places = [place for place, row in enumerate(rows) if row[0] == key]
        places.sort(key=lambda place: (rows[place][1] is not None, rows[place][1] or 0, place), reverse=True)
        expected |= set(places[keep:])
    found = [place for each in dropped for place in each.column("place").to_pylist()]
    assert sorted(found) == sorted(expected)


def test_keys_that_are_no_numbers_and_zeros_of_either_sign_are_one_key() -> None:
    values = [float("nan"), float("nan"), 0.0, -0.0, None, None]
    table = pa.table({"key": pa.array(values, pa.float64()), "place": pa.array(np.arange(6))})
    dropped = list(drop_newest(iter([table]), key=["key"], order=["place"], keep=1))
    assert sorted(dropped[0].column("place").to_pylist()) == [0, 2, 4]
