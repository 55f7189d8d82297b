"""Chooses the rows that a declared retention removes, from a few columns of the stored files, file by file.

Memory: 8 bytes for each removed row whose file stays, and, for policies by key, the rows that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DateType, PrimitiveType

from tidemark.collections.declarations.append_only import Retention
from tidemark.iceberg.files.newest_rows import drop_newest
from tidemark.iceberg.files.stored_rows import FILE, POSITION, StoredRows
from tidemark.iceberg.maintenance.row_removal import Removal
from tidemark.iceberg.shard.head import ShardHead

DAY_MS = 86_400_000


def choose_removal(head: ShardHead, retention: Retention, *, now_ms: int) -> Removal:
    """Return the rows to remove at ``now_ms``; a row exactly at the edge of its window stays."""
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
        expired = (rows.filter(pa.array(_is_before(rows.column(column), edge))) for rows in older)
        return _removal(contents, _by_file(contents, expired))
    return _before(contents, column, edge)


def _removal(
    contents: StoredRows, positions: dict[str, NDArray[np.int64]], dropped: frozenset[str] = frozenset()
) -> Removal:
    """Return the removal of rows by position, and of whole files; a file without a remaining row is removed whole."""
    live = {file.file_path: contents.live(file) for file in contents.files}
    whole = dropped | {path for path, removed in positions.items() if len(removed) == live[path]}
    rest = {path: removed for path, removed in positions.items() if path not in whole}
    rows = sum(live[path] for path in whole) + sum(map(len, rest.values()))
    return Removal(dropped=frozenset(whole), positions=rest, rows=rows, deletes=contents.deletes)


def _before(contents: StoredRows, column: str, edge: int) -> Removal:
    """Return the rows whose time is before the edge; opens only files with times on both sides of the edge."""
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
        found = [part.positions[_is_before(part.rows.column(column), edge)] for part in contents.scan(file, [column])]
        if found and len(removed := np.concatenate(found)):
            positions[file.file_path] = removed
    return _removal(contents, positions, frozenset(dropped))


def _drop_newest(contents: StoredRows, key: Sequence[str], order: Sequence[str], *, keep: int) -> Iterator[pa.Table]:
    pieces, complete = contents.by_age(key, order)
    return drop_newest(pieces, key=key, order=complete, keep=keep)


def _by_file(contents: StoredRows, pieces: Iterator[pa.Table]) -> dict[str, NDArray[np.int64]]:
    found: dict[int, list[NDArray[np.int64]]] = {}
    for piece in (piece for piece in pieces if piece.num_rows):
        numbers, positions = piece.column(FILE).to_numpy(), piece.column(POSITION).to_numpy()
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        for start, in_file in zip(starts, np.split(positions[order], starts[1:]), strict=True):
            found.setdefault(int(numbers[order[start]]), []).append(in_file)
    return {contents.files[number].file_path: np.sort(np.concatenate(found[number])) for number in sorted(found)}


def _edge(head: ShardHead, column: str, edge_ms: int) -> int:
    """Return the first time that stays, in the unit of the column: days, or microseconds."""
    if isinstance(head.table.schema().find_field(column).field_type, DateType):
        return edge_ms // DAY_MS  # a day that is partly inside the window stays
    return edge_ms * 1_000


def _is_before(times: pa.ChunkedArray, edge: int) -> NDArray[np.bool_]:
    """Return whether each time is before the edge; NULL is not."""
    if pa.types.is_date32(times.type):
        stored = times.cast(pa.int32()).cast(pa.int64())
    else:
        stored = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    before = pc.fill_null(pc.less(stored, pa.scalar(edge, pa.int64())), fill_value=False)
    return np.asarray(before.to_numpy(), dtype=np.bool_)


def _bounds(table: Table, file: DataFile, column: str) -> tuple[int | None, int | None, bool]:
    """Return the first and last time of a file from its statistics, and whether the file may have NULLs."""
    stored = table.schema().find_field(column)
    time_type, field_id = stored.field_type, stored.field_id
    if not isinstance(time_type, PrimitiveType):
        raise TypeError(f"{column} is no time")  # the declaration was checked
    first, last = (
        None if bound is None else int(from_bytes(time_type, bound))
        for bound in (file.lower_bounds.get(field_id), file.upper_bounds.get(field_id))
    )
    return first, last, (file.null_value_counts or {}).get(field_id) != 0
