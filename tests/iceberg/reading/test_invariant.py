"""The invariant check finds what is wrong, and passes what is right."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation

from tests.iceberg.reading.test_arrow import expire_all_but_refs
from tests.support.clock import SteppedClock
from tests.support.rows import SCHEMA, correction, updates_table
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.reading.invariant import check_invariant, check_ledgers
from tidemark.iceberg.shard.head import OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


@pytest.fixture
def shard(home: Settings) -> Shard:
    """Corrections at 10 and 20; since 15, upper 21."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA)
    writer = Writer.join(shard, 1)
    batch = correction(shard.load(), insert=[(1, "a"), (1, "a"), (2, None)], time=10)
    writer.publish(batch, lower=0, new_upper=11)
    batch = correction(shard.load(), insert=[(2, "b")], retract=[(1, "a"), (2, None)], time=20)
    writer.publish(batch, lower=11, new_upper=21)
    downgrade_since(shard, 15, now_ms=0)
    return shard


def falsify_change_log(shard: Shard) -> None:
    """Put a retraction of a row that never was into the change log, as a bug of ours would."""
    from uuid import uuid4

    from pyiceberg.table.update import AddSnapshotUpdate

    head = shard.load()
    files = write_rows(head.table, updates_table([(9, "never")], time=20, diff=1))
    builder = SnapshotBuilder(head.table, commit_uuid=uuid4(), attempt=1)
    summary = head.state.summary()
    wrong = builder.build(head.updates, SnapshotChange(operation=Operation.APPEND, added=files, summary=summary))
    updates = (
        AddSnapshotUpdate(snapshot=wrong),
        set_ref(UPDATES, wrong, SnapshotRefType.BRANCH),
        set_ref(OWN_UPDATES, wrong, SnapshotRefType.TAG),
    )
    shard.iceberg.commit_table(head.table, (), updates)


def test_it_holds_from_a_snapshot_of_sinces_time_on(shard: Shard) -> None:
    assert check_invariant(shard) == check_invariant(shard)
    check = check_invariant(shard)
    assert (check.holds, check.grounded, check.sample) == (True, True, [])


def test_a_wrong_change_log_is_found_with_a_sample(shard: Shard) -> None:
    falsify_change_log(shard)
    check = check_invariant(shard)
    assert (check.holds, check.wrong_rows, check.grounded) == (False, 1, True)
    assert check.sample == [{"id": 9, "name": "never", "_diff": -1}]


def test_without_old_snapshots_a_negative_row_is_still_found(shard: Shard) -> None:
    expire_all_but_refs(shard)
    assert (check_invariant(shard).holds, check_invariant(shard).grounded) == (True, False)
    falsify_change_log(shard)
    assert check_invariant(shard).wrong_rows == 1


def test_shards_with_nothing_to_check_pass(shard: Shard, home: Settings) -> None:
    shards = Shards.connect(home)
    assert check_invariant(shards.create("empty", schema=SCHEMA)).holds
    assert check_invariant(shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)).holds
    Writer.join(shard, 1).seal(now_ms=0)
    assert check_invariant(shard).holds


@pytest.mark.spark
def test_spark_finds_the_same(home_spark: SparkSession, shard: Shard) -> None:
    assert check_invariant(shard, spark=home_spark) == check_invariant(shard)
    falsify_change_log(shard)
    assert check_invariant(shard, spark=home_spark) == check_invariant(shard)
    expire_all_but_refs(shard)
    assert check_invariant(shard, spark=home_spark) == check_invariant(shard)


def test_the_ledgers_have_the_batches_of_all_rows(home: Settings) -> None:
    shard = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    for start, count in ((0, 2), (10, 0), (20, 3)):
        rows = pa.table({"id": pa.array(range(count), pa.int64()), "name": pa.array(["a"] * count, pa.string())})
        name = BatchName("p", Range(start, start + 5))
        append_rows(shard, name, rows, deployment=deployment_of(home), clock=SteppedClock(1))
    assert check_ledgers(shard.load()) == (Counter(), ["[10, 15) of 'p'"])
    with shard.load().table.transaction() as edit:
        edit.set_properties({"tidemark.ledger.p": "0:15"})  # the batch from 20 on is lost, and its rows are not
    assert check_ledgers(shard.load()) == (Counter(p=3), [])
    with shard.load().table.transaction() as edit:
        edit.set_properties({"tidemark.ledger.p.rows": "777:778"})  # single rows of batches, as a retry takes them
    assert check_ledgers(shard.load()) == (Counter(), [])
