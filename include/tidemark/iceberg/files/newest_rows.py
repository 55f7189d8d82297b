"""Ranks the rows of a stream by key, newest first, and separates the first n rows of a key from the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MIN_ROWS_AT_ONCE = 262_144
_GROUP = "_group"
_DESCENDING = "descending"


def drop_newest(
    pieces: Iterator[pa.Table], *, key: Sequence[str], order: Sequence[str], keep: int, at_once: int = MIN_ROWS_AT_ONCE
) -> Iterator[pa.Table]:
    """Yield every row that is not among the ``keep`` newest rows of its key.

    Equal rows count separately. NULL is a key value of its own, and NaN equals NaN. In ``order``, most important column
    first, larger values are newer, and NULL is older than every value; among rows that are equal in all of ``order``,
    the newer row is not determined.

    Memory: twice the rows that are not yielded, at most ``keep`` rows of a key. At least ``at_once`` rows are gathered
    before they are ranked.
    """
    for _, older in _ranked(pieces, key=key, order=order, keep=keep, at_once=at_once):
        yield older


def find_newest(
    pieces: Iterator[pa.Table], *, key: Sequence[str], order: Sequence[str], keep: int = 1
) -> pa.Table | None:
    """Return the rows that ``drop_newest`` does not yield, by key and newest first; None if there are none."""
    newest: pa.Table | None = None
    for kept, _ in _ranked(pieces, key=key, order=order, keep=keep, at_once=MIN_ROWS_AT_ONCE):
        newest = kept
    return newest


def _ranked(
    pieces: Iterator[pa.Table], *, key: Sequence[str], order: Sequence[str], keep: int, at_once: int
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield repeatedly the newest rows of all keys so far, and the rows that turned out to be older since."""
    kept: pa.Table | None = None
    waiting: list[pa.Table] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.num_rows
        # Gather as many rows as are kept, so that a few new rows do not cause another ranking of all kept rows.
        if count >= max(at_once, kept.num_rows if kept else 0):
            kept, older = _split([kept, *waiting] if kept else waiting, key=key, order=order, keep=keep)
            waiting, count = [], 0
            yield kept, older
    if waiting:
        yield _split([kept, *waiting] if kept else waiting, key=key, order=order, keep=keep)


def _split(
    tables: Sequence[pa.Table], *, key: Sequence[str], order: Sequence[str], keep: int
) -> tuple[pa.Table, pa.Table]:
    """Return the ``keep`` newest rows of every key, and the other rows."""
    rows = pa.concat_tables(tables).combine_chunks()
    groups = group_numbers(rows, key)
    by = rows.select(list(order)).append_column(_GROUP, pa.array(groups))
    keys = [(_GROUP, "ascending"), *((name, _DESCENDING) for name in order)]
    sorted_rows = pc.sort_indices(by, sort_keys=keys).to_numpy()  # NULL comes last, which is the oldest
    sorted_groups = groups[sorted_rows]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    lengths = np.diff(np.append(starts, len(sorted_groups)))
    ranks = np.arange(len(sorted_groups)) - np.repeat(starts, lengths)
    return rows.take(pa.array(sorted_rows[ranks < keep])), rows.take(pa.array(sorted_rows[ranks >= keep]))


def group_numbers(rows: pa.Table, key: Sequence[str]) -> NDArray[np.int64]:
    """Return group numbers of all rows, from 0, equal for rows that are equal in ``key``; NULL equals NULL."""
    groups = np.zeros(rows.num_rows, dtype=np.int64)
    for name in key:
        column = rows.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 equals 0.0
        codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        pairs = groups * (int(codes.max(initial=0)) + 1) + codes
        groups = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return groups
