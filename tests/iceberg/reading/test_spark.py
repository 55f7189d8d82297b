"""Reading with Spark: now, at a time, and changes; after schema changes and when another tool expired snapshots."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.table import snapshots
from pyiceberg.types import LongType

from tests.support.rows import SCHEMA, correction
from tests.support.spark_rows import GENERATION, rows_of
from tidemark.clock import SystemClock
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import AsOfBeforeSince, NotYetAvailable, UsageError
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.reading.spark import changes, pinned, read, read_snapshot
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.frames import stage
from tidemark.interval import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards

pytestmark = pytest.mark.spark

AT_10 = Counter({(1, "a"): 2, (2, "b"): 1, (3, None): 1})
AT_20 = Counter({(1, "a"): 1, (2, "B"): 1, (3, None): 1})
AT_30 = Counter({(1, "a"): 1, (4, "d"): 1})


@pytest.fixture
def shard(shards: Shards, unique_name: str) -> Shard:
    """Corrections at 10, 20 and 30; upper 40."""
    shard = shards.create(unique_name, schema=SCHEMA, key=["id"])
    writer = Writer.join(shard, GENERATION)
    before: Counter[object] = Counter()
    lower = 0
    for time, after in ((10, AT_10), (20, AT_20), (30, AT_30)):
        batch = correction(
            shard.load(), insert=(after - before).elements(), retract=(before - after).elements(), time=time
        )
        writer.publish(batch, lower=lower, new_upper=time + 1)
        before, lower = after, time + 1
    writer.advance(lower=31, new_upper=40)
    return shard


def test_contents_at_each_time_come_from_its_snapshot(spark: SparkSession, shard: Shard) -> None:
    expected = {0: Counter(), 9: Counter(), 10: AT_10, 19: AT_10, 20: AT_20, 29: AT_20, 30: AT_30, 39: AT_30}
    assert {time: rows_of(read(spark, shard, time)) for time in expected} == expected
    assert rows_of(read(spark, shard)) == AT_30
    assert {row["_time"] for row in read(spark, shard, with_time=True).collect()} == {10, 30}


def test_times_outside_since_and_upper_are_refused(spark: SparkSession, shard: Shard) -> None:
    with pytest.raises(NotYetAvailable, match="upper is 40"):
        read(spark, shard, 40)
    downgrade_since(shard, 15, now_ms=0)
    with pytest.raises(AsOfBeforeSince, match="starts at 15"):
        read(spark, shard, 14)
    with pytest.raises(AsOfBeforeSince):
        changes(spark, shard, 14)
    with pytest.raises(NotYetAvailable):
        changes(spark, shard, 15, 41)
    with pytest.raises(UsageError, match="reversed"):
        changes(spark, shard, 20, 19)


MAPS = [None, [], [("a", None)], [("a", 1.0), ("b", None)], [("b", None), ("a", 1.0)]]  # the last two are equal


def test_maps_with_null_values_are_summed_up(spark: SparkSession, shards: Shards, unique_name: str) -> None:
    columns = parse_columns("m map<string,double>, n array<map<string,int>>")
    shard = shards.create(unique_name, schema=to_iceberg(columns))
    rows = pa.table(
        {
            "m": pa.array(MAPS, pa.map_(pa.string(), pa.float64())),
            "n": pa.array([[[("k", None)]]] * len(MAPS), pa.list_(pa.map_(pa.string(), pa.int32()))),
            "_time": pa.array([10] * len(MAPS)),
            "_diff": pa.array([1] * len(MAPS)),
        }
    )
    batch = Batch(added=write_rows(shard.load().table, rows))
    Writer.join(shard, GENERATION).publish(batch, lower=0, new_upper=11)
    found = changes(spark, shard, 0)
    assert found.columns == ["m", "n", "_time", "_diff"]
    counts = [(row.m and sorted(row.m.items()), row.n, row._diff) for row in found.collect()]
    values = [None, {}, [("a", None)], [("a", 1.0), ("b", None)]]
    assert sorted(counts, key=repr) == sorted(
        [(value, [{"k": None}], 2 if value == values[-1] else 1) for value in values], key=repr
    )


def test_changes_are_consolidated_and_replay_to_the_contents(spark: SparkSession, shard: Shard) -> None:
    at_10 = {(row["id"], row["name"], row["_time"]): row["_diff"] for row in changes(spark, shard, 0, 11).collect()}
    assert at_10 == {(1, "a", 10): 2, (2, "b", 10): 1, (3, None, 10): 1}
    assert changes(spark, shard, 31).count() == 0
    assert changes(spark, shard, 20, 20).count() == 0
    replayed: Counter[object] = Counter()
    for row in changes(spark, shard, 0).collect():
        replayed[row["id"], row["name"]] += row["_diff"]
    assert +replayed == AT_30
    assert -replayed == Counter()


def test_old_contents_are_computed_when_their_snapshots_were_expired(spark: SparkSession, shard: Shard) -> None:
    ids = [each.snapshot_id for each in shard.load().table.metadata.snapshots]
    keep = {ref.snapshot_id for ref in shard.load().table.metadata.refs.values()}
    literal = ", ".join(str(each) for each in ids if each not in keep)
    spark.sql(
        f"CALL tidemark.system.expire_snapshots(table => '{shard.spark_name}', snapshot_ids => ARRAY({literal}))"
    ).collect()
    assert rows_of(read(spark, shard, 10)) == AT_10
    assert rows_of(read(spark, shard, 25)) == AT_20
    times = {(row["id"], row["_time"]) for row in read(spark, shard, 25, with_time=True).collect()}
    assert times == {(1, 10), (2, None), (3, None)}


def test_old_snapshots_are_read_under_the_present_schema(spark: SparkSession, shard: Shard) -> None:
    with shard.load().table.update_schema() as update:
        update.rename_column("name", "label")
        update.add_column("size", LongType())
    assert read(spark, shard).columns == ["id", "label", "size"]
    rows = read(spark, shard, 20).collect()
    assert {(row["id"], row["label"], row["size"]) for row in rows} == {(1, "a", None), (2, "B", None), (3, None, None)}
    assert {"label", "size", "_file", "_pos"} <= set(pinned(spark, shard, shard.load()).columns)
    assert changes(spark, shard, 0).where("label = 'b' AND size IS NULL").count() == 2


def test_append_only_shards_have_contents_and_no_changes(spark: SparkSession, shards: Shards, unique_name: str) -> None:
    events = shards.create(f"{unique_name}_events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    assert rows_of(read(spark, events)) == Counter()
    with pytest.raises(UsageError, match="append-only"):
        changes(spark, events, 0)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_spark_reads_and_writes_what_a_wrong_clock_has_written(
    spark: SparkSession, shards: Shards, unique_name: str, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    shard = shards.create(unique_name, schema=SCHEMA)
    for number in (1, 2, 3):
        with monkeypatch.context() as wrong:
            if number == 2:
                now_s = (SystemClock().now_ms() + ahead_ms) / 1000
                wrong.setattr(snapshots, "time", SimpleNamespace(time=lambda now_s=now_s: now_s))
            upper = shard.load().state.upper
            batch = correction(shard.load(), insert=[(number, "a")], time=number)
            Writer.join(shard, 1).publish(batch, lower=upper, new_upper=number + 1)
        spark.catalog.refreshTable(shard.spark_name)
        assert spark.table(shard.spark_name).count() == number
        rows = read_snapshot(spark, shard, shard.load(), shard.load().contents)
        stage(shard, rows, branch=branch_name(generation=1, writer="w", batch=str(number)))
