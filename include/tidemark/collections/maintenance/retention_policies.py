"""Which rows a declared retention lets go, read from a few columns of the stored files, file by file.

Memory is bounded by 8 bytes for each row that goes without its file, and for policies by key by the rows that stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.types import DateType, PrimitiveType

from tidemark.iceberg.files.newest_rows import drop_newest
from tidemark.iceberg.files.stored_rows import FILE, POSITION, StoredRows
from tidemark.iceberg.maintenance.row_removal import Removal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.collections.declarations.append_only import Retention
    from tidemark.iceberg.shard.head import ShardHead

DAY_MS = 86_400_000


def choose_removal(head: ShardHead, retention: Retention, *, now_ms: int) -> Removal:
    """Return the rows that are to go at ``now_ms``; a row exactly at the edge of its window stays."""
    contents = StoredRows.in_contents(head)
    if retention.last_n is not None:
        older = _drop_newest(contents, retention.key, retention.order_by, keep=retention.last_n)
        return _removal(contents, _by_file(contents, older))
    column, window_ms = retention.column, retention.window_ms
    if column is None or window_ms is None:
        raise TypeError(f"a retention without a window: {retention}")
    edge = _edge(head, column, now_ms - window_ms)
    if retention.key:
        older = _drop_newest(contents, retention.key, [column], keep=1)
        return _removal(
            contents,
            _by_file(contents, (each.filter(pa.array(_is_before(each.column(column), edge))) for each in older)),
        )
    return _before(contents, column, edge)


def _removal(
    contents: StoredRows, positions: dict[str, NDArray[np.int64]], dropped: frozenset[str] = frozenset()
) -> Removal:
    """Return the removal of rows by position, and of whole files; a file of which no row stays goes whole."""
    live = {file.file_path: contents.live(file) for file in contents.files}
    whole = dropped | {path for path, each in positions.items() if len(each) == live[path]}
    rest = {path: each for path, each in positions.items() if path not in whole}
    rows = sum(live[path] for path in whole) + sum(map(len, rest.values()))
    return Removal(dropped=frozenset(whole), positions=rest, rows=rows, deletes=contents.deletes)


def _before(contents: StoredRows, column: str, edge: int) -> Removal:
    """Return the rows whose time is before the edge; files on either side of it are not opened."""
    dropped: set[str] = set()
    positions: dict[str, NDArray[np.int64]] = {}
    for file in contents.files:
        first, last, has_nulls = _bounds(contents.table, file, column)
        if first is not None and first >= edge:
            continue
        if last is not None and last < edge and not has_nulls:
            if contents.live(file):
                dropped.add(file.file_path)
            continue
        found = [each.positions[_is_before(each.rows.column(column), edge)] for each in contents.scan(file, [column])]
        if found and len(gone := np.concatenate(found)):
            positions[file.file_path] = gone
    return _removal(contents, positions, frozenset(dropped))


def _drop_newest(contents: StoredRows, key: Sequence[str], order: Sequence[str], *, keep: int) -> Iterator[pa.Table]:
    pieces, complete = contents.by_age(key, order)
    return drop_newest(pieces, key=key, order=complete, keep=keep)


def _by_file(contents: StoredRows, pieces: Iterator[pa.Table]) -> dict[str, NDArray[np.int64]]:
    found: dict[int, list[NDArray[np.int64]]] = {}
    for piece in (each for each in pieces if each.num_rows):
        numbers, positions = piece.column(FILE).to_numpy(), piece.column(POSITION).to_numpy()
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        for start, each in zip(starts, np.split(positions[order], starts[1:]), strict=True):
            found.setdefault(int(numbers[order[start]]), []).append(each)
    return {contents.files[number].file_path: np.sort(np.concatenate(found[number])) for number in sorted(found)}


def _edge(head: ShardHead, column: str, edge_ms: int) -> int:
    """Return the first time that stays, as the column stores it: days, or microseconds."""
    if isinstance(head.table.schema().find_field(column).field_type, DateType):
        return edge_ms // DAY_MS  # a day of which a part is inside the window stays
    return edge_ms * 1_000


def _is_before(times: pa.ChunkedArray, edge: int) -> NDArray[np.bool_]:
    """Return which times are before the edge; NULL is not."""
    if pa.types.is_date32(times.type):
        stored = times.cast(pa.int32()).cast(pa.int64())
    else:
        stored = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    before = pc.fill_null(pc.less(stored, pa.scalar(edge, pa.int64())), fill_value=False)
    return np.asarray(before.to_numpy(), dtype=np.bool_)


def _bounds(table: Table, file: DataFile, column: str) -> tuple[int | None, int | None, bool]:
    """Return the first and last time in a file by its statistics, and whether some may be NULL."""
    stored = table.schema().find_field(column)
    kind, field_id = stored.field_type, stored.field_id
    if not isinstance(kind, PrimitiveType):
        raise TypeError(f"{column} is no time")  # the declaration was checked
    first, last = (
        None if each is None else int(from_bytes(kind, each))
        for each in (file.lower_bounds.get(field_id), file.upper_bounds.get(field_id))
    )
    return first, last, (file.null_value_counts or {}).get(field_id) != 0
