"""Reading without a JVM, as Arrow tables: for the command line, and for the maintenance of small tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Snapshot

from tidemark.iceberg.files.arrow_values import to_values
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import origin_columns, user_column_names
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.time_travel import check_changes, check_open, pin_contents

_ROW = "_row"
_TEXT_BYTES = 2**31  # more than an array of texts holds


def read_arrow(
    shard: Shard,
    as_of: int | None = None,
    *,
    with_time: bool = False,
    with_open: bool = False,
    limit: int | None = None,
) -> pa.Table:
    """Return the contents: the user's columns; at most ``limit`` rows, no order promised.

    ``with_time`` adds ``_time``, or ``_producer`` and ``_batch`` of an append-only shard.
    ``with_open`` adds the accepted rows that ``main`` does not show yet; only without ``as_of``.
    ``as_of``, the meaning of ``_time`` and the errors are those of ``reading.spark.read``.
    """
    check_open(as_of, with_open=with_open)
    head = shard.load()
    pinned = pin_contents(head, as_of, shard=shard.name)
    columns = user_column_names(head.table.schema(), head.state.layout)
    wanted = [*columns, *origin_columns(head.table.schema(), head.state.layout)] if with_time else columns
    if pinned.undo_above is None:
        snapshots = [pinned.snapshot, *([head.open] if with_open and head.open is not None else [])]
        shown = [scan_snapshot(head, snapshot, columns=wanted, limit=limit) for snapshot in snapshots]
        return pa.concat_tables(shown).slice(0, limit)
    rows = _undo(head, pinned.snapshot, columns, above=pinned.undo_above)
    return rows.select(wanted).slice(0, limit)


def changes_arrow(shard: Shard, from_: int, until: int | None = None, *, limit: int | None = None) -> pa.Table:
    """Return the updates at times ``[from_, until)``: the user's columns, ``_time`` and ``_diff``, consolidated.

    Sorted by time; at most ``limit`` rows. Times and errors are those of ``reading.spark.changes``.
    """
    head = shard.load()
    end = check_changes(head, from_, until, shard=shard.name)
    columns = [*user_column_names(head.table.schema(), head.state.layout), TIME]
    updates = scan_updates(head, from_, end if isinstance(end, int) else None)
    return consolidate_arrow(updates, columns).sort_by(TIME).slice(0, limit)


def scan_snapshot(
    head: ShardHead,
    snapshot: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    row_filter: BooleanExpression | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Return the rows of one snapshot under the present schema, all its columns or ``columns``."""
    chosen = AlwaysTrue() if row_filter is None else row_filter
    tasks = _plan(head, snapshot, chosen)
    return scan_tasks(head, tasks, columns=columns, row_filter=chosen, limit=limit)


def scan_tasks(
    head: ShardHead,
    tasks: Iterable[FileScanTask],
    *,
    columns: Sequence[str] | None = None,
    row_filter: BooleanExpression | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Return the live rows of some files under the present schema. Raises ``CorruptState`` if a file is damaged."""
    schema = head.table.schema()
    scan = ArrowScan(
        head.table.metadata,
        head.table.io,
        # Not the scan's own projection, which has the schema of the snapshot's time.
        projected_schema=schema if columns is None else schema.select(*columns),
        row_filter=AlwaysTrue() if row_filter is None else row_filter,
        limit=limit,
    )
    chosen = list(tasks)
    paths = {file.file_path for task in chosen for file in (task.file, *task.delete_files)}
    with naming_damage(lambda: head, is_read=paths.__contains__):
        rows = scan.to_table(chosen)
    return rows if columns is None else rows.select(list(columns))


def scan_updates(head: ShardHead, from_: int, until: int | None) -> pa.Table:
    """Return the change log at times ``[from_, until)`` as it is stored; None: no end."""
    return scan_snapshot(head, _log_of(head), row_filter=_at_times(from_, until))


def scan_updates_by_file(head: ShardHead, from_: int, until: int) -> Iterator[pa.Table]:
    """Yield the same as ``scan_updates``, one file of the log at a time."""
    chosen = _at_times(from_, until)
    for task in _plan(head, _log_of(head), chosen):
        yield scan_tasks(head, [task], row_filter=chosen)


def _log_of(head: ShardHead) -> Snapshot:
    if head.updates is None:
        raise TypeError("a shard without a change log")  # callers have checked the layout
    return head.updates


def _at_times(from_: int, until: int | None) -> BooleanExpression:
    return parse(f"{TIME} >= {from_}" if until is None else f"{TIME} >= {from_} and {TIME} < {until}")


def _plan(head: ShardHead, snapshot: Snapshot, row_filter: BooleanExpression) -> list[FileScanTask]:
    with naming_damage(lambda: head):
        return list(head.table.scan(snapshot_id=snapshot.snapshot_id, row_filter=row_filter).plan_files())


def consolidate_arrow(updates: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return ``columns`` and the sum of ``_diff`` over rows equal in them, without zeros, in order of appearance.

    Rows are equal as in Spark's GROUP BY: NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0; maps with the same
    entries are equal whatever their order.
    """
    totals = _sum_by(updates, columns, {DIFF: updates.column(DIFF)}, "sum")
    kept = totals.filter(pc.not_equal(totals.column(DIFF), 0))
    rows = updates.select(list(columns)).take(kept.column(_ROW))
    return rows.append_column(DIFF, kept.column(DIFF))


def negated(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` with opposite ``_diff``, under ``schema``."""
    negative = pc.negate(rows.column(DIFF))
    return rows.set_column(rows.schema.get_field_index(DIFF), DIFF, negative).cast(schema)


def _undo(head: ShardHead, snapshot: Snapshot, columns: Sequence[str], *, above: int) -> pa.Table:
    """Return the contents less the updates at times above ``above``: the user's columns and ``_time``."""
    present = scan_snapshot(head, snapshot)
    rows = pa.concat_tables([present, negated(scan_updates(head, above + 1, None), present.schema)])
    appeared = pc.if_else(pc.less_equal(rows.column(TIME), above), rows.column(TIME), pa.scalar(None, pa.int64()))
    totals = _sum_by(rows, columns, {DIFF: rows.column(DIFF)}, "sum")
    times = _sum_by(rows, columns, {TIME: appeared}, "min")
    kept = totals.append_column(TIME, times.column(TIME)).filter(pc.greater(totals.column(DIFF), 0))
    contents = rows.select(list(columns)).take(kept.column(_ROW)).append_column(TIME, kept.column(TIME))
    counts = kept.column(DIFF).to_pylist()
    return contents.take(pa.array([row for row, count in enumerate(counts) for _ in range(count)], pa.int64()))


def _sum_by(rows: pa.Table, columns: Sequence[str], values: dict[str, pa.ChunkedArray], how: str) -> pa.Table:
    """Aggregate ``values`` over equal rows: one row per group with ``_row``, the first of its rows, in that order."""
    keys = grouping_keys(rows, columns)
    numbered = {_ROW: pa.array(np.arange(rows.num_rows))}
    grouped = pa.table({**keys, **values, **numbered}).group_by(list(keys))
    totals = grouped.aggregate([*((name, how) for name in values), (_ROW, "min")])
    named = {name: totals.column(f"{name}_{how}") for name in values}
    return pa.table({**named, _ROW: totals.column(f"{_ROW}_min")}).sort_by(_ROW)


def grouping_keys(rows: pa.Table, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Return ``columns`` under names of their own, as Arrow groups by them best."""
    keys = {f"k{number}": comparable(rows.column(name)) for number, name in enumerate(columns)}
    return {name: _narrow(column) for name, column in keys.items()}


def _narrow(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return large texts as texts where 2 GiB hold all of them: Arrow groups by these several times faster."""
    narrower = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(column.type)
    return column if narrower is None or column.nbytes >= _TEXT_BYTES else column.cast(narrower)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column that Arrow can group by, equal where Spark's GROUP BY sees equal values."""
    if pa.types.is_floating(column.type):
        not_a_number = pa.scalar(float("nan"), column.type)
        return pc.if_else(pc.is_nan(column), not_a_number, pc.add(column, pa.scalar(0.0, column.type)))
    if pa.types.is_nested(column.type):
        texts = (None if value is None else _text(value, column.type) for value in to_values(column))
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column


def _text(value: object, type_: pa.DataType) -> str:
    """Return a text that is equal exactly for equal values of a nested type."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value + 0.0)
    if pa.types.is_map(type_) and isinstance(value, list):
        entries = (f"{_text(key, type_.key_type)}: {_text(item, type_.item_type)}" for key, item in value)
        return "{" + ", ".join(sorted(entries)) + "}"
    if pa.types.is_struct(type_) and isinstance(value, dict):
        return "(" + ", ".join(_text(value[field.name], field.type) for field in type_.fields) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item, type_.value_type) for item in value) + "]"
    return repr(value)
