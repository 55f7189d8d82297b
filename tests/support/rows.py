"""Small rows written and read without a JVM, for tests of the storage layer: ``(id, name)``.

Where a shard has the column ``tree``, its rows have a third value: nested lists, structs and maps, as text.
"""

from __future__ import annotations

import ast
from collections import Counter
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.manifests import read_data_files, read_delete_files
from tidemark.locations import to_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.shard.head import ShardHead

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
LEAF = StructType(NestedField(25, "y", StringType()))
LEAVES = ListType(element_id=24, element=LEAF, element_required=False)
BRANCHES = MapType(key_id=22, key_type=StringType(), value_id=23, value_type=LEAVES, value_required=False)
LIMB = StructType(NestedField(20, "x", LongType()), NestedField(21, "by", BRANCHES))
TREE = ListType(element_id=4, element=LIMB, element_required=False)
NESTED_SCHEMA = Schema(*SCHEMA.fields, NestedField(3, "tree", TREE))
Row = tuple[int | None, str | None, *tuple[str | None, ...]]


class Place(NamedTuple):
    row: Row
    file: str
    position: int


def updates_table(rows: Iterable[Row], *, time: int, diff: int, schema: Schema = SCHEMA) -> pa.Table:
    listed = [*rows]
    columns: dict[str, list[Any]] = {
        "id": [row[0] for row in listed],
        "name": [row[1] for row in listed],
        "tree": [row[2] and ast.literal_eval(row[2]) for row in listed if len(row) > 2],
        "_time": [time] * len(listed),
        "_diff": [diff] * len(listed),
    }
    types = {**{field.name: field.type for field in schema.as_arrow()}, "_time": pa.int64(), "_diff": pa.int64()}
    names = [*column_names(schema), "_time", "_diff"]
    return pa.table({name: pa.array(columns[name], types[name]) for name in names})


def column_names(schema: Schema) -> list[str]:
    return ["id", "name", *(["tree"] if "tree" in schema.column_names else [])]


def row_of(*values: Any) -> Row:
    """Return a row as models have it: its tree, if there is one, as text."""
    return (values[0], values[1], *(each if each is None else repr(each) for each in values[2:]))


def local_path(uri: str) -> str:
    return str(to_path(uri))


def locate(head: ShardHead) -> list[Place]:
    """Find every live row of the contents with its position, by reading the Parquet files themselves."""
    io, snapshot = head.table.io, head.contents
    deleted = set()
    for path in read_delete_files(io, snapshot):
        table = pq.read_table(local_path(path)).to_pydict()
        deleted |= set(zip(table["file_path"], table["pos"], strict=True))
    places = []
    for path in sorted(read_data_files(io, snapshot)):
        table = pq.ParquetFile(local_path(path)).read().to_pydict()
        names = column_names(head.table.schema())
        for position, row in enumerate(zip(*(table[name] for name in names), strict=True)):
            if (path, position) not in deleted:
                places.append(Place(row_of(*row), path, position))
    return places


def correction(head: ShardHead, *, insert: Iterable[Row] = (), retract: Iterable[Row] = (), time: int) -> Batch:
    """Write a correction as the reconcile job does: rows, retractions, and the positions of the retracted rows."""
    table = head.table
    wanted = Counter(retract)
    positions = []
    for place in locate(head):
        if wanted[place.row] > 0:
            wanted[place.row] -= 1
            positions.append(place)
    assert not +wanted, f"rows to retract are not stored: {+wanted}"
    schema = table.schema()
    added = write_rows(table, updates_table(insert, time=time, diff=1, schema=schema))
    retracted = write_rows(table, updates_table([place.row for place in positions], time=time, diff=-1, schema=schema))
    deletes = ()
    if positions:
        named = pa.table(
            {
                "file_path": [each.file for each in positions],
                "pos": pa.array([each.position for each in positions], pa.int64()),
            }
        )
        deletes = write_position_deletes(table, named, read_data_files(table.io, head.contents))
    return Batch(
        added=added,
        retracted=retracted,
        deletes=deletes,
        pinned_snapshot_id=head.contents.snapshot_id,
        deleted_from=frozenset(place.file for place in positions),
        schema_id=table.schema().schema_id,
    )


def contents(head: ShardHead, snapshot: Snapshot | None = None) -> Counter[Row]:
    """Read rows through pyiceberg, as any reader would: main, or another snapshot."""
    scan = head.table.scan(snapshot_id=snapshot.snapshot_id) if snapshot else head.table.scan()
    table = scan.to_arrow().to_pydict()
    return Counter(starmap(row_of, zip(*(table[name] for name in column_names(head.table.schema())), strict=True)))


def change_log(head: ShardHead) -> Counter[tuple[Row, int]]:
    """Read ``updates`` through pyiceberg: summed diffs by row and time, zeros dropped."""
    assert head.updates is not None
    table = head.table.scan(snapshot_id=head.updates.snapshot_id).to_arrow().to_pydict()
    totals: Counter[tuple[Row, int]] = Counter()
    columns = (table[name] for name in (*column_names(head.table.schema()), "_time", "_diff"))
    for *row, time, diff in zip(*columns, strict=True):
        totals[row_of(*row), time] += diff
    return Counter({key: diff for key, diff in totals.items() if diff})
