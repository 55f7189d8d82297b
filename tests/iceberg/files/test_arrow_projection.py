"""NULL at every level of nested types, two and three deep, stays NULL in everything that is written and read."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice, product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

from tests.support.rows import local_path
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files import arrow_projection
from tidemark.iceberg.files.arrow_projection import keeps_values
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

NESTED = ("array<{}>", "map<string,{}>", "struct<f:{},g:int>")
TYPES = [outer.format(middle.format(inner.format("int"))) for outer, middle, inner in product(NESTED, NESTED, NESTED)]
COLUMNS = parse_columns(", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES)))
NAMES = [column.name for column in COLUMNS]
NAN = float("nan")
FILLED: dict[str, tuple[Any, Any]] = {
    "double": (NAN, 1.0),
    "list<item: float>": ([NAN, None], [NAN, 1.0]),
    "large_list<item: double>": ([NAN], [NAN, NAN]),
    "map<string, double>": ([("a", NAN), ("b", None)], [("a", NAN), ("b", 1.0)]),
    "struct<f: list<item: double>, g: string>": ({"f": [NAN], "g": None}, {"f": None, "g": "x"}),
}


def values(type_: pa.DataType) -> list[Any]:
    """Return values of a type that are NULL, empty and filled, at every level."""
    if pa.types.is_struct(type_):
        first, second = type_.field(0), type_.field(1)
        return [None, *({first.name: value, second.name: None} for value in values(first.type))]
    if pa.types.is_map(type_):
        inside = values(type_.item_type)
        return [
            None,
            [],
            *([("k", value)] for value in inside),
            [(str(key), value) for key, value in enumerate(inside)],
        ]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        inside = values(type_.value_type)
        return [None, [], *([value] for value in inside), inside]
    return [None, 1]


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).create("nested", schema=to_iceberg(COLUMNS), layout=ShardKind.APPEND_ONLY)


def rows_of(shard: Shard) -> pa.Table:
    schema = arrow_schema(shard.load().table)
    columns = {name: values(schema.field(name).type) for name in NAMES}
    count = max(map(len, columns.values()))
    arrays = {name: pa.array(islice(cycle(column), count), schema.field(name).type) for name, column in columns.items()}
    return pa.table({**arrays, "_producer": ["p"] * count, "_batch": pa.array([0] * count, pa.int64())})


def publish(shard: Shard, rows: pa.Table, numbers: Range) -> Batch:
    batch = Batch(added=write_rows(shard.load().table, rows), producer="p", range=numbers)
    Writer.join(shard, 1).publish(batch, lower=numbers.start, new_upper=numbers.end)
    return batch


def as_counter(rows: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in rows.select(NAMES).to_pylist())


def test_what_is_written_is_what_pyarrow_and_we_read(shard: Shard) -> None:
    rows = rows_of(shard)
    [file] = publish(shard, rows, Range(0, 1)).added
    assert as_counter(pq.read_table(local_path(file.file_path))) == as_counter(rows)
    assert as_counter(read_arrow(shard)) == as_counter(rows)


def test_rows_out_of_the_middle_of_a_table_are_written_as_they_are(shard: Shard) -> None:
    part = rows_of(shard).slice(2, 9)
    publish(shard, part, Range(0, 1))
    assert as_counter(read_arrow(shard)) == as_counter(part)


def test_compaction_leaves_the_contents_alone(shard: Shard) -> None:
    rows = rows_of(shard)
    for number in range(2):
        publish(shard, rows, Range(number, number + 1))
    assert compact(Writer.join(shard, 1), policy=CompactionPolicy(min_small_files=2)).files_before == 2
    assert as_counter(read_arrow(shard)) == Counter({row: 2 * count for row, count in as_counter(rows).items()})


@pytest.mark.spark
def test_spark_reads_the_same(shards: Shards, unique_name: str, spark: SparkSession) -> None:
    shard = shards.create(unique_name, schema=to_iceberg(COLUMNS), layout=ShardKind.APPEND_ONLY)
    rows = rows_of(shard)
    publish(shard, rows, Range(0, 1))
    assert as_counter(spark.table(shard.spark_name).toArrow()) == as_counter(rows)


def test_pyiceberg_is_still_to_be_mended(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this test fails, pyiceberg keeps NULL by itself: remove the mended methods of ``arrow_projection``."""
    monkeypatch.setattr(ArrowProjectionVisitor, "list", arrow_projection.PROJECT_LIST)
    monkeypatch.setattr(ArrowProjectionVisitor, "map", arrow_projection.PROJECT_MAP)
    with pytest.raises(ValueError, match="would be written with other values"):
        write_rows(shard.load().table, rows_of(shard))


@pytest.mark.parametrize(
    "type_",
    [
        pa.float64(), pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.map_(pa.string(), pa.float64()),
        pa.struct([("f", pa.list_(pa.float64())), ("g", pa.string())]),
    ],
)  # fmt: skip
def test_values_are_compared_one_by_one(type_: pa.DataType) -> None:
    nan, one = FILLED[str(type_)]
    given = pa.array([None, nan, one, None, nan], type_)
    assert keeps_values(given, pa.array([None, nan, one, None, nan], type_))
    assert keeps_values(given.slice(1, 3), pa.array([nan, one, None], type_))
    for other in ([None, nan, one, one, nan], [None, nan, None, None, nan], [None, one, one, None, nan]):
        assert not keeps_values(given, pa.array(other, type_))


def test_widths_of_offsets_are_no_values() -> None:
    assert keeps_values(pa.array(["a", None]), pa.array(["a", None], pa.large_string()))
    assert not keeps_values(pa.array(["a", None]), pa.array(["a", ""], pa.large_string()))
    assert not keeps_values(pa.array([[1], []]), pa.array([[], [1]]))
