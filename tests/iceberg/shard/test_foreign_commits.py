"""What other engines wrote: how it is counted, and what becomes of it; real commits by pyiceberg, no JVM."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate

from tests.support.rows import SCHEMA, change_log, contents, correction, updates_table
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.head import MAIN, OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.rows import Row
    from tidemark.iceberg.shard.foreign_commits import ForeignCommits
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def shard(home: Settings) -> Shard:
    """Two commits of ours: ten rows in a file, and five in another."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    writer = Writer.join(shard, 1)
    for step, numbers in enumerate((range(10), range(10, 15))):
        batch = correction(shard.load(), insert=[(number, "own") for number in numbers], time=step)
        writer.publish(batch, lower=step, new_upper=step + 1)
    return shard


def append(shard: Shard, rows: Iterable[Row], branch: str = MAIN) -> None:
    table = shard.load().table
    table.append(updates_table(rows, time=0, diff=1).cast(table.schema().as_arrow()), branch=branch)


def rewrite(shard: Shard) -> None:
    """Do as another engine's compaction does: the same rows in one file."""
    table = shard.load().table
    main = table.current_snapshot()
    assert main is not None
    rows = table.scan().to_arrow()
    change = SnapshotChange(
        operation=Operation.REPLACE, added=write_rows(table, rows), removed=frozenset(read_data_files(table.io, main))
    )
    snapshot = SnapshotBuilder(table, commit_uuid=uuid4(), attempt=1).build(main, change)
    updates = (AddSnapshotUpdate(snapshot=snapshot), set_ref(MAIN, snapshot, SnapshotRefType.BRANCH))
    shard.iceberg.commit_table(table, (), updates)


def delete(shard: Shard, which: str) -> None:
    with pytest.warns(UserWarning, match="copy-on-write"):
        shard.load().table.delete(which)


def foreign(shard: Shard) -> ForeignCommits:
    found = shard.load().foreign
    assert found is not None
    return found


def test_rows_written_are_counted_though_as_many_went(shard: Shard) -> None:
    delete(shard, "id >= 10")  # a whole file: nothing is copied
    assert (foreign(shard).rows, foreign(shard).added) == (-5, 0)
    append(shard, [(number, "foreign") for number in range(100, 105)])
    assert (len(foreign(shard).snapshot_ids), foreign(shard).rows, foreign(shard).added) == (2, 0, 5)
    assert str(foreign(shard)) == "2 foreign commits, +0 rows: 5 written, 5 taken away"


def test_rows_of_a_file_that_was_copied_to_delete_from_it_count_as_written(shard: Shard) -> None:
    delete(shard, "id == 0")
    assert (foreign(shard).rows, foreign(shard).added) == (-1, 9)


def test_replacements_below_and_above_foreign_rows_do_not_count(shard: Shard) -> None:
    rewrite(shard)
    assert shard.load().foreign is None
    append(shard, [(100, "foreign"), (101, "foreign")])
    rewrite(shard)
    assert contents(shard.load())[100, "foreign"] == 1
    assert (foreign(shard).rows, foreign(shard).added) == (2, 2)


def test_foreign_rows_above_an_older_state_of_ours_are_counted_all(shard: Shard) -> None:
    older = shard.load().main.parent_snapshot_id
    assert older is not None
    shard.load().table.manage_snapshots().set_current_snapshot(older).commit()
    assert (foreign(shard).snapshot_ids, foreign(shard).rows, foreign(shard).added) == ((), -5, 0)
    for number in (100, 101):
        append(shard, [(number, "foreign")])
    assert (len(foreign(shard).snapshot_ids), foreign(shard).rows, foreign(shard).added) == (1, -3, 2)


def test_rows_that_a_branch_moved_by_hand_shows_again_count(shard: Shard) -> None:
    older = shard.load().main.snapshot_id
    Writer.join(shard, 1).publish(correction(shard.load(), retract=[(0, "own")], time=2), lower=2, new_upper=3)
    shard.load().table.manage_snapshots().set_current_snapshot(older).commit()
    assert contents(shard.load()) == Counter({(number, "own"): 1 for number in range(15)})
    assert (foreign(shard).snapshot_ids, foreign(shard).rows, foreign(shard).added) == ((), 1, 1)


@pytest.mark.parametrize("how", ["advance", "empty batch"])
def test_change_log_is_taken_back_by_a_run_that_changes_nothing(shard: Shard, how: str) -> None:
    log = change_log(shard.load())
    append(shard, [(100, "foreign")], branch=UPDATES)
    head = shard.load()
    assert (head.foreign, head.foreign_updates is None) == (None, False)
    assert compact(Writer.join(shard, 1)).outcome == "skipped"
    hold(shard, "reader", expires_at_ms=10**15)
    assert shard.load().foreign_updates is not None, "a commit beside looked at nothing"
    if how == "advance":
        Writer.join(shard, 1).advance(lower=2, new_upper=3)
    else:
        Writer.join(shard, 1).publish(Batch(), lower=2, new_upper=3)
    head = shard.load()
    assert (head.foreign_updates, change_log(head)) == (None, log)
    assert head.table.metadata.refs[UPDATES].snapshot_id == head.table.metadata.refs[OWN_UPDATES].snapshot_id
    assert check_invariant(shard).holds
    assert compact(Writer.join(shard, 1)).outcome != "skipped"


def test_advance_leaves_foreign_rows_of_main_to_a_reset(shard: Shard) -> None:
    for branch in (MAIN, UPDATES):
        append(shard, [(100, "foreign")], branch=branch)
    Writer.join(shard, 1).advance(lower=2, new_upper=3)
    head = shard.load()
    assert (head.foreign is None, head.foreign_updates) == (False, None)


@pytest.fixture
def events(home: Settings) -> Shard:
    """Three small appends of ours, and a foreign one above them."""
    events = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    writer = Writer.join(events, 1)
    for number in range(3):
        rows = updates_table([(number, "own")], time=0, diff=1).drop_columns(["_time", "_diff"])
        rows = rows.append_column("_producer", [["p"]]).append_column("_batch", [[number]])
        batch = Batch(added=write_rows(events.load().table, rows), producer="p", range=Range(number, number + 1))
        writer.publish(batch, lower=number, new_upper=number + 1)
    table = events.load().table
    row = {"id": 9, "name": "foreign", "_producer": "?", "_batch": 0}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    return events


def test_foreign_appends_to_append_only_collections_are_compacted_like_all_rows(events: Shard) -> None:
    assert events.load().foreign is not None
    before = contents(events.load())
    assert compact(Writer.join(events, 1), policy=CompactionPolicy(min_small_files=2)).outcome == "compacted"
    head = events.load()
    assert (contents(head), before[9, "foreign"]) == (before, 1)
    assert len(read_data_files(head.table.io, head.main)) == 1
    assert head.state.ledgers["p"].ranges == (Range(0, 3),)


def test_append_only_collection_moved_back_by_hand_is_left_as_it_is(events: Shard) -> None:
    table = events.load().table
    older = table.refs()["tidemark-main"].snapshot_id
    parent = table.snapshot_by_id(older)
    assert parent is not None
    assert parent.parent_snapshot_id is not None
    table.manage_snapshots().set_current_snapshot(parent.parent_snapshot_id).commit()
    result = compact(Writer.join(events, 1), policy=CompactionPolicy(min_small_files=2))
    assert result.outcome == "skipped"
    assert "reconcile" not in result.reason
    assert events.load().own.snapshot_id == older
