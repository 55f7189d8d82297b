"""Small batches staged without a JVM, published with ledger and raised token in one commit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.rows import SCHEMA, Row, contents
from tidemark.errors import FencedByGeneration, InputsGone, RangeOverlap
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name, drop_staged, list_staged, read_intact
from tidemark.iceberg.staging.files import stage_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch
    from tidemark.settings import Settings

ONE, TWO = (1, "a"), (2, "b")


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


def event_rows(rows: Sequence[Row], batch: str = "0:1") -> pa.Table:
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "name": pa.array([row[1] for row in rows], pa.string()),
            "_producer": ["p"] * len(rows),
            "_batch": [int(batch.partition(":")[0])] * len(rows),
        }
    )


def stage_rows(shard: Shard, rows: Sequence[Row], batch: str = "0:1") -> StagedBatch:
    table = shard.load().table
    return stage_files(
        shard,
        write_rows(table, event_rows(rows, batch)),
        branch=branch_name(generation=1, writer="p", batch=batch),
        fingerprint=batch,
        schema_id=table.metadata.current_schema_id,
    )


def published(staged: StagedBatch, numbers: Range) -> Batch:
    return Batch(added=staged.files, branches=((staged.branch, staged.snapshot_id),), producer="p", range=numbers)


def test_staged_rows_are_invisible_and_listed_with_their_size(shard: Shard) -> None:
    before = shard.load()
    staged = stage_rows(shard, [ONE, TWO])
    head = shard.load()
    assert (head.main, head.state, contents(head)) == (before.main, before.state, Counter())
    [listed] = list_staged(head)
    assert (listed.branch, listed.rows, listed.snapshot_id) == (staged.branch, 2, staged.snapshot_id)
    assert listed.size_bytes == sum(file.file_size_in_bytes for file in staged.files) > 0


def test_same_batch_is_staged_once(shard: Shard) -> None:
    first = stage_rows(shard, [ONE])
    assert stage_rows(shard, [ONE]).snapshot_id == first.snapshot_id
    assert len(shard.load().staged_branches) == 1


def test_branch_with_a_second_snapshot_is_staged_again(shard: Shard) -> None:
    first = stage_rows(shard, [ONE])
    table = shard.load().table
    table.append(event_rows([TWO]).cast(table.schema().as_arrow()), branch=first.branch)
    assert read_intact(shard.load().table, first.branch, None) is None
    again = stage_rows(shard, [ONE])
    assert again.snapshot_id != first.snapshot_id
    assert sum(file.record_count for file in again.files) == 1


def test_publish_makes_ledger_token_and_branches_one_commit(shard: Shard) -> None:
    one, two = stage_rows(shard, [ONE], "0:1"), stage_rows(shard, [TWO], "1:2")
    writer = Writer.join(shard, 1)
    snapshots = len(shard.load().table.metadata.snapshots)
    done = writer.publish(published(one, Range(0, 1)), published(two, Range(1, 2)), lower=0, new_upper=5, raise_to=3)
    head = shard.load()
    assert len(head.table.metadata.snapshots) == snapshots + 1
    assert (head.state.token.generation, head.state.token.epoch) == (3, writer.token.epoch + 1)
    assert head.state == done.state
    assert (contents(head), head.staged_branches) == (Counter([ONE, TWO]), {})
    assert head.state.ledgers == {"p": Ledger((Range(0, 2),))}
    with pytest.raises(FencedByGeneration):
        writer.advance(lower=5, new_upper=6)


def test_branch_that_is_gone_is_not_published(shard: Shard) -> None:
    staged = stage_rows(shard, [ONE])
    assert drop_staged(shard, [staged.branch]) == [staged.branch]
    with pytest.raises(InputsGone, match="gone or was staged again"):
        Writer.join(shard, 1).publish(published(staged, Range(0, 1)), lower=0, new_upper=5)
    assert contents(shard.load()) == Counter()


def test_overlap_with_a_published_range_names_both(shard: Shard) -> None:
    staged = stage_rows(shard, [ONE])
    Writer.join(shard, 1).publish(published(staged, Range(0, 4)), lower=0, new_upper=1)
    other = stage_rows(shard, [TWO], "3:6")
    with pytest.raises(RangeOverlap, match=r"range \[3, 6\) of producer 'p' overlaps \[0, 4\)"):
        Writer.join(shard, 1).publish(published(other, Range(3, 6)), lower=1, new_upper=2)


def test_properties_of_a_commit_are_read_without_pyiceberg(shard: Shard, home: Settings) -> None:
    Writer.join(shard, 1).publish(Batch(), lower=0, new_upper=1, properties={"tidemark.mode": "{}"})
    assert read_state(home, "events").properties["tidemark.mode"] == "{}"
    Writer.join(shard, 1).publish(Batch(), lower=1, new_upper=2)
    assert read_state(home, "events").properties["tidemark.mode"] == "{}", "kept until somebody sets it anew"
