"""What compaction rewrites is sorted: the new files have narrow bounds, and the same rows."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, FloatType, LongType, NestedField, StringType, TimestamptzType

from tests.support.rows import local_path
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy, FileUse, chunk
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

EAGER = CompactionPolicy(min_small_files=2)
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "price", DecimalType(10, 2)),
    NestedField(3, "name", StringType()),
    NestedField(4, "at", TimestamptzType()),
    NestedField(5, "share", FloatType()),
)
ODD_COLUMNS = ("price", "name", "at", "share")
FILES, FILE_ROWS = 6, 40
MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)


def test_files_with_near_values_are_rewritten_together_and_those_without_a_bound_last() -> None:
    def use(path: str, smallest: object, partition: int = 0) -> FileUse:
        return FileUse(path, 10, 1, 0, (partition, ()), smallest=smallest)

    files = [use("a", 30), use("b", None), use("c", -5), use("d", 7), use("e", 0, partition=1), use("f", 8)]
    groups = [[each.path for each in group] for group in chunk(files, 20)]
    assert groups == [["c", "d"], ["f", "a"], ["b"], ["e"]]


def odd_rows(numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return a row for each number, with an id in no order; other columns grow, and have NULL, NaN, and long texts."""
    return [
        {
            "id": number * 53 % (FILES * FILE_ROWS),
            "price": None if number % 11 == 0 else Decimal(number - 100) / 4,
            "name": None if number % 13 == 0 else f"name {number:04}, which is longer than a bound",
            "at": None if number % 17 == 0 else MIDNIGHT + timedelta(minutes=number),
            "share": (None, float("nan"))[number % 2] if number % 19 < 2 else number - 100.5,
        }
        for number in numbers
    ]


def store(
    settings: Settings,
    batches: Iterable[Sequence[int]],
    *,
    name: str = "odd",
    key: Sequence[str] = (),
    buckets: int = 1,
) -> Shard:
    """Make a shard with a file, or one in each bucket, for each batch."""
    shard = Shards.connect(settings).create(name, schema=SCHEMA, key=key, buckets=buckets)
    writer = Writer.join(shard, 1)
    for step, numbers in enumerate(batches):
        table = shard.load().table
        time = step * 10
        schema = arrow_schema(table)
        rows = pa.Table.from_pylist(odd_rows(numbers), schema=schema.remove(6).remove(5))
        files = write_rows(table, with_constants(rows, (("_time", time), ("_diff", 1))))
        writer.publish(Batch(added=files), lower=time, new_upper=time + 10)
    return shard


def shuffled() -> list[list[int]]:
    """Return batches each of which has rows of the whole range."""
    count = FILES * FILE_ROWS
    numbers = [number * 97 % count for number in range(count)]
    return [numbers[start::FILES] for start in range(FILES)]


def as_counter(shard: Shard) -> tuple[Counter[str], Counter[str]]:
    """Return contents with their times, and the change log; as texts, in which NaN equals NaN."""
    rows, changes = read_arrow(shard, with_time=True), changes_arrow(shard, 0)
    return Counter(map(repr, rows.to_pylist())), Counter(map(repr, changes.to_pylist()))


def stored(shard: Shard, column: str) -> list[list[Any]]:
    """Return the values of each data file of main, in order, without NULL and NaN."""
    head = shard.load()
    tables = [pq.ParquetFile(local_path(path)).read([column]) for path in read_data_files(head.table.io, head.main)]
    return [[value for value in table[column].to_pylist() if value is not None and value == value] for table in tables]  # noqa: PLR0124 - NaN


def ranges(shard: Shard, column: str) -> list[tuple[Any, Any]]:
    """Return the bounds of the data files of main, as readers see them, in order."""
    head = shard.load()
    field = head.table.schema().find_field(column)
    files = read_data_files(head.table.io, head.main).values()
    bounds = [(file.lower_bounds[field.field_id], file.upper_bounds[field.field_id]) for file in files]
    return sorted((from_bytes(field.field_type, low), from_bytes(field.field_type, high)) for low, high in bounds)


def is_apart(found: list[tuple[Any, Any]]) -> bool:
    return all(high <= low for (_, high), (low, _) in pairwise(found))


@pytest.mark.slow
@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_rows_come_in_order_and_contents_changes_and_digest_stay(home: Settings, column: str) -> None:
    shard = store(home, shuffled(), key=["id"])
    before, digest = as_counter(shard), shard.load().state.digest
    writer = Writer.join(shard, 1)
    assert compact(writer, policy=EAGER, cluster_by=[column]).outcome == "compacted"
    [values] = stored(shard, column)
    assert values == sorted(values)
    assert (as_counter(shard), shard.load().state.digest) == (before, digest)
    assert check_invariant(shard).holds
    assert compact(writer, policy=EAGER, cluster_by=[column]).outcome == "unchanged"


@pytest.mark.slow
def test_without_columns_rows_come_by_key_and_those_of_a_multiset_as_they_are(home: Settings) -> None:
    keyed = store(home, shuffled(), key=["id"])
    compact(Writer.join(keyed, 1), policy=EAGER)
    assert stored(keyed, "id") == [list(range(FILES * FILE_ROWS))]
    multiset = store(home, shuffled(), name="multiset")
    compact(Writer.join(multiset, 1), policy=EAGER)
    [values] = stored(multiset, "id")
    pieces = [values[start : start + FILE_ROWS] for start in range(0, len(values), FILE_ROWS)]
    assert sorted(pieces) == sorted([row["id"] for row in odd_rows(batch)] for batch in shuffled())


@pytest.mark.slow
def test_equal_values_come_by_key_and_columns_that_are_not_there_do_not_matter(home: Settings) -> None:
    shard = store(home, shuffled(), key=["id"])
    compact(Writer.join(shard, 1), policy=EAGER, cluster_by=["renamed", "share"])
    [path] = read_data_files(shard.load().table.io, shard.load().main)
    rows = pq.ParquetFile(local_path(path)).read(["id", "share"]).to_pylist()
    missing = [row["id"] for row in rows if row["share"] is None]
    assert len(missing) > 1
    assert missing == sorted(missing)


@pytest.mark.slow
@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_the_pieces_of_the_driver_have_narrow_bounds_where_their_files_have(home: Settings, column: str) -> None:
    slices = [list(range(start, start + FILE_ROWS)) for start in range(0, FILES * FILE_ROWS, FILE_ROWS)]
    order = [4, 1, 5, 0, 3, 2]  # neighbours are never written one after the other
    shard = store(home, [slices[number] for number in order])
    before = as_counter(shard)
    size = max(file.file_size_in_bytes for file in read_data_files(shard.load().table.io, shard.load().main).values())
    policy = CompactionPolicy(min_small_files=2, chunk_bytes=2 * size)
    compact(Writer.join(shard, 1), policy=policy, cluster_by=[column])
    values = sorted(stored(shard, column))
    assert len(values) == 3
    assert all(one[-1] < other[0] for one, other in pairwise(values))
    assert as_counter(shard) == before


@pytest.mark.spark
@pytest.mark.parametrize("column", ["id", *ODD_COLUMNS])
def test_spark_writes_files_whose_bounds_do_not_overlap(home_spark: SparkSession, home: Settings, column: str) -> None:
    shard = store(home, shuffled(), key=["id"])
    before, digest = as_counter(shard), shard.load().state.digest
    size = sum(file.file_size_in_bytes for file in read_data_files(shard.load().table.io, shard.load().main).values())
    policy = CompactionPolicy(min_small_files=2, driver_bytes=0, chunk_bytes=size // 3)
    columns = [] if column == "id" else [column]
    compact(Writer.join(shard, 1), spark=home_spark, policy=policy, cluster_by=columns)
    values = [each for each in stored(shard, column) if each]
    assert len(values) > 2
    assert all(each == sorted(each) for each in values)
    assert is_apart([(each[0], each[-1]) for each in sorted(values)])
    assert is_apart(ranges(shard, column))
    assert (as_counter(shard), shard.load().state.digest) == (before, digest)
    assert check_invariant(shard, spark=home_spark).holds


@pytest.mark.spark
def test_spark_sorts_the_rows_of_each_bucket(home_spark: SparkSession, home: Settings) -> None:
    shard = store(home, shuffled(), key=["id"], buckets=4)
    before = as_counter(shard)
    policy = CompactionPolicy(min_small_files=2, driver_bytes=0, chunk_bytes=1)
    compact(Writer.join(shard, 1), spark=home_spark, policy=policy, cluster_by=["at"])
    values = stored(shard, "at")
    assert len(values) == 4
    assert all(each == sorted(each) for each in values)
    assert as_counter(shard) == before
    assert check_invariant(shard, spark=home_spark).holds
