"""Reading without a JVM; and that it sees equal rows where Spark does."""

from __future__ import annotations

import math
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.expressions.parser import parse
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import IntegerType, LongType

from tests.support.rows import SCHEMA, correction
from tidemark.errors import AsOfBeforeSince, NotYetAvailable, UsageError
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import lies_beyond, to_rows
from tidemark.iceberg.reading.arrow import changes_arrow, consolidate_arrow, read_arrow, scan_snapshot
from tidemark.iceberg.reading.spark import consolidate
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

AT_10 = Counter({(1, "a"): 2, (2, "b"): 1, (3, None): 1})
AT_20 = Counter({(1, "a"): 1, (2, "B"): 1, (3, None): 1})
AT_30 = Counter({(1, "a"): 1, (4, "d"): 1})


@pytest.fixture
def shard(home: Settings) -> Shard:
    """Corrections at 10, 20 and 30; upper 40."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    writer = Writer.join(shard, 1)
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


def rows_of(table: pa.Table) -> Counter[object]:
    return Counter(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def expire_all_but_refs(shard: Shard) -> None:
    """What another tool's aggressive expiry leaves."""
    table = shard.load().table
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    doomed = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
    shard.iceberg.commit_table(table, (), (RemoveSnapshotsUpdate(**{"snapshot-ids": doomed}),))


def test_contents_at_each_time(shard: Shard) -> None:
    expected = {0: Counter(), 9: Counter(), 10: AT_10, 19: AT_10, 20: AT_20, 29: AT_20, 30: AT_30, 39: AT_30}
    assert {time: rows_of(read_arrow(shard, time)) for time in expected} == expected
    assert rows_of(read_arrow(shard)) == AT_30
    assert read_arrow(shard).column_names == ["id", "name"]
    assert read_arrow(shard, 10, limit=2).num_rows == 2


def test_old_contents_are_computed_when_their_snapshots_were_expired(shard: Shard) -> None:
    expire_all_but_refs(shard)
    assert rows_of(read_arrow(shard, 10)) == AT_10
    old = read_arrow(shard, 25, with_time=True)
    assert rows_of(old) == AT_20
    assert dict(zip(old["id"].to_pylist(), old["_time"].to_pylist(), strict=True)) == {1: 10, 2: None, 3: None}


def test_days_beyond_the_years_of_python_are_told_as_text() -> None:
    days = pa.array([3_000_000, 1, None, -800_000], pa.int32()).cast(pa.date32())
    moments = pa.array([253_402_300_800_000_000, 5, None, -(7 * 10**16) - 1], pa.int64()).cast(
        pa.timestamp("us", "UTC")
    )
    nested = pa.StructArray.from_arrays([days, moments], ["day", "moment"])
    lists = pa.array([[3_000_000], None, [], [1, None]], pa.list_(pa.date32()))
    maps = pa.array([[(3_000_000, 1)], None, [], [(1, None)]], pa.map_(pa.date32(), pa.int32()))
    table = pa.table({"day": days, "moment": moments, "nested": nested, "list": lists, "map": maps})
    first, second, third, fourth = to_rows(table)
    late, early = "10183-09-21", "-0221-09-04"
    assert (first["day"], first["moment"]) == (late, "10000-01-01T00:00:00+00:00")
    assert first["nested"] == {"day": late, "moment": first["moment"]}
    assert (first["list"], first["map"]) == ([late], [(late, 1)])
    assert second == table.slice(1, 1).to_pylist()[0]
    assert third == table.slice(2, 1).to_pylist()[0]
    assert (fourth["day"], fourth["moment"]) == (early, "-0249-10-15T19:33:19.999999+00:00")
    assert (fourth["list"], fourth["map"]) == ([date(1970, 1, 2), None], [(date(1970, 1, 2), None)])
    assert to_rows(table.slice(0, 0)) == []
    assert all(lies_beyond(column) for column in table.columns)
    assert not any(lies_beyond(column) for column in table.slice(1, 2).columns)


def test_changes_are_consolidated_sorted_and_limited(shard: Shard) -> None:
    first = changes_arrow(shard, 0, 11).to_pylist()
    assert [tuple(row.values()) for row in first] == [(1, "a", 10, 2), (2, "b", 10, 1), (3, None, 10, 1)]
    assert changes_arrow(shard, 0)["_time"].to_pylist() == [10] * 3 + [20] * 3 + [30] * 3
    assert changes_arrow(shard, 0, limit=4).num_rows == 4
    assert changes_arrow(shard, 31).num_rows == 0
    replayed: Counter[object] = Counter()
    for row in changes_arrow(shard, 0).to_pylist():
        replayed[row["id"], row["name"]] += row["_diff"]
    assert +replayed == AT_30
    assert -replayed == Counter()


def test_times_outside_since_and_upper_are_refused(shard: Shard) -> None:
    with pytest.raises(NotYetAvailable):
        read_arrow(shard, 40)
    with pytest.raises(UsageError):
        changes_arrow(shard, 20, 19)
    downgrade_since(shard, 15, now_ms=0)
    with pytest.raises(AsOfBeforeSince):
        read_arrow(shard, 14)
    with pytest.raises(AsOfBeforeSince):
        changes_arrow(shard, 14)


def test_old_snapshots_are_read_under_the_present_schema(shard: Shard) -> None:
    with shard.load().table.update_schema() as update:
        update.rename_column("name", "label")
        update.add_column("size", IntegerType())
    with shard.load().table.update_schema() as update:
        update.update_column("size", LongType())
    rows = read_arrow(shard, 20).to_pylist()
    assert {tuple(row.values()) for row in rows} == {(1, "a", None), (2, "B", None), (3, None, None)}
    assert changes_arrow(shard, 0).column_names == ["id", "label", "size", "_time", "_diff"]


def test_a_filter_on_the_rows_of_a_snapshot(shard: Shard) -> None:
    head = shard.load()
    assert rows_of(scan_snapshot(head, head.main, row_filter=parse("id > 1"))) == Counter({(4, "d"): 1})


ONE = Decimal("1.10")
AWKWARD = pa.table(
    {
        "double": pa.array([math.nan, math.nan, 0.0, -0.0, None, None, 1.5], pa.float64()),
        "text": pa.array(["n", "n", "z", "z", None, None, ""], pa.string()),
        "decimal": pa.array([ONE, ONE, None, None, None, None, ONE], pa.decimal128(9, 2)),
        "binary": pa.array([b"", b"", b"\0", b"\0", None, None, b""], pa.binary()),
        "list": pa.array([[1.0, -0.0], [1.0, 0.0], [], [], None, None, [None]], pa.list_(pa.float64())),
        "map": pa.array(
            [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [], [], None, None, [("a", None)]],
            pa.map_(pa.string(), pa.int64()),
        ),
        "struct": pa.array(
            [(1, "1"), (1, "1"), (None, None), (None, None), None, None, (1, None)],
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
        "_diff": pa.array([1, 1, 2, -1, 1, -1, 1], pa.int64()),
    }
)  # fmt: skip
AWKWARD_COLUMNS = [name for name in AWKWARD.column_names if name != "_diff"]


def test_awkward_values_are_equal_where_sql_says_so() -> None:
    summed = consolidate_arrow(AWKWARD, AWKWARD_COLUMNS)
    assert summed["_diff"].to_pylist() == [2, 1, 1], "NaN, then zero of either sign, then the NULLs cancelled, then one"
    assert summed["text"].to_pylist() == ["n", "z", ""]


@pytest.mark.spark
def test_spark_sees_the_same_rows_as_equal(spark: SparkSession) -> None:
    frame = spark.createDataFrame(AWKWARD)
    diffs = {row["text"]: row["_diff"] for row in consolidate(frame, AWKWARD_COLUMNS).collect()}
    assert diffs == {"n": 2, "z": 1, "": 1}
