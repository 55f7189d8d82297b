"""Small rows written and read without a JVM, for tests of the storage layer: ``(id, name)``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.manifests import read_data_files, read_delete_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.shard.head import ShardHead

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
Row = tuple[int | None, str | None]


class Place(NamedTuple):
    row: Row
    file: str
    position: int


def updates_table(rows: Iterable[Row], *, time: int, diff: int) -> pa.Table:
    listed = list(rows)
    return pa.table(
        {
            "id": pa.array([row[0] for row in listed], pa.int64()),
            "name": pa.array([row[1] for row in listed], pa.string()),
            "_time": pa.array([time] * len(listed), pa.int64()),
            "_diff": pa.array([diff] * len(listed), pa.int64()),
        }
    )


def local_path(uri: str) -> str:
    return unquote(urlsplit(uri).path)


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
        for position, row in enumerate(zip(table["id"], table["name"], strict=True)):
            if (path, position) not in deleted:
                places.append(Place(row, path, position))
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
    added = write_rows(table, updates_table(insert, time=time, diff=1))
    retracted = write_rows(table, updates_table([place.row for place in positions], time=time, diff=-1))
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
    return Counter(zip(table["id"], table["name"], strict=True))


def change_log(head: ShardHead) -> Counter[tuple[Row, int]]:
    """Read ``updates`` through pyiceberg: summed diffs by row and time, zeros dropped."""
    assert head.updates is not None
    table = head.table.scan(snapshot_id=head.updates.snapshot_id).to_arrow().to_pydict()
    totals: Counter[tuple[Row, int]] = Counter()
    for number, name, time, diff in zip(table["id"], table["name"], table["_time"], table["_diff"], strict=True):
        totals[(number, name), time] += diff
    return Counter({key: diff for key, diff in totals.items() if diff})
