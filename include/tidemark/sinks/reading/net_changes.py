"""What updates come to: by row and time for a log of changes, by key for a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import Refused
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.reading.arrow import consolidate_arrow, grouping_keys
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.report import plain

_PLUS, _ROW = "_plus", "_row"


class NetChanges(NamedTuple):
    """The changes of a mirror: keys of rows that are gone, and rows that came or changed; no key stands twice."""

    deletes: pa.Table
    upserts: pa.Table


def order_updates(updates: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return ``columns``, ``_time`` and ``_diff``, equal rows of one time summed up, in the order of a log.

    The order is that of the times; of one time, retractions come before insertions.
    """
    return consolidate_arrow(updates, [*columns, TIME]).sort_by([(TIME, "ascending"), (DIFF, "ascending")])


def net_by_key(updates: pa.Table, columns: Sequence[str], key: Sequence[str], *, where: str) -> NetChanges:
    """Return what the updates come to, whatever their times; ``where`` names the sink in messages.

    Raises ``Refused`` if two rows that come have the same key, or a key has a NULL; with these rows.
    """
    rows = consolidate_arrow(updates, columns)
    check_keys(rows.filter(pc.greater(rows.column(DIFF), 0)), key, where=where)
    grouped = _group(rows, key)
    twice = grouped.filter(pc.greater(grouped.column(f"{_PLUS}_sum"), 1))
    if twice.num_rows:
        raise same_key(rows.take(twice.column(f"{_ROW}_min")).select(list(key)), twice.num_rows, key, where=where)
    gone = grouped.filter(pc.equal(grouped.column(f"{_PLUS}_sum"), 0)).column(f"{_ROW}_min")
    upserts = rows.filter(pc.greater(rows.column(DIFF), 0)).select(list(columns))
    return NetChanges(deletes=rows.take(gone).select(list(key)), upserts=upserts)


def check_keys(rows: pa.Table | pa.RecordBatch, key: Sequence[str], *, where: str) -> None:
    """Raise ``Refused`` if a row has NULL in its ``key``, by which a mirror could never find the row again."""
    for name in key:
        if rows.column(name).null_count:
            sample = pa.table({each: rows.column(each) for each in key}).filter(pc.is_null(rows.column(name)))
            raise Refused(
                f"{where}: {rows.column(name).null_count} rows have no value in the key column {name!r}",
                hint="declare other columns as `key`, or `mode: changes`",
                sample=plain(to_rows(sample.slice(0, 5))),
            )


def check_unique(keys: pa.Table, *, where: str) -> None:
    """Raise ``Refused`` if two rows of ``keys``, which has the key columns alone, are equal; with such keys."""
    names = keys.column_names
    grouped = _group(keys.append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), keys.num_rows)), names)
    twice = grouped.filter(pc.greater(grouped.column(f"{_PLUS}_sum"), 1))
    if twice.num_rows:
        raise same_key(keys.take(twice.column(f"{_ROW}_min")), twice.num_rows, names, where=where)


def same_key(keys: pa.Table, count: int, key: Sequence[str], *, where: str) -> Refused:
    """Return the error for ``count`` keys that rows of a mirror share; ``keys`` are some of them."""
    return Refused(
        f"{where}: {count} keys ({', '.join(key)}) belong to more than one row each",
        hint="declare columns as `key` that tell all rows apart, or `mode: changes`",
        sample=plain(to_rows(keys.slice(0, 5))),
    )


def _group(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    keys = grouping_keys(rows, key)
    came = pc.if_else(pc.greater(rows.column(DIFF), 0), rows.column(DIFF), pa.scalar(0, pa.int64()))
    numbers = pa.array(np.arange(rows.num_rows))
    grouped = pa.table({**keys, _PLUS: came, _ROW: numbers}).group_by(list(keys))
    return grouped.aggregate([(_PLUS, "sum"), (_ROW, "min")])
