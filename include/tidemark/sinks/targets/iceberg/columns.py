"""The columns of a target table: whether they fit, and the updates of its metadata that make them fit."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate, update_table_metadata
from pyiceberg.table.update.schema import UpdateSchema

from tidemark.collections.schema.convert import from_iceberg, iceberg_type, to_iceberg
from tidemark.collections.schema.types import Array, Column, Columns, Map, Primitive, Struct, Type, columns_text, fits
from tidemark.errors import SchemaMismatch
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.sinks.columns import MISFIT_HINT, evolve, list_misfits
from tidemark.sinks.progress import SinkColumn

_CHANGE_COLUMNS = (Column(TIME, Primitive("bigint")), Column(DIFF, Primitive("bigint")))


def table_columns(columns: Sequence[SinkColumn], *, with_times: bool) -> Columns:
    """Return the columns that a table needs for rows of ``columns``."""
    return (*(Column(column.name, column.type) for column in columns), *(_CHANGE_COLUMNS if with_times else ()))


def target_schema(columns: Sequence[SinkColumn], *, with_times: bool) -> Schema:
    """Return the schema of a new table."""
    return to_iceberg(table_columns(columns, with_times=with_times))


def check_fit(wanted: Columns, table: Table, *, title: str) -> None:
    """Check that a table which somebody else made takes rows of ``wanted``. Raises ``SchemaMismatch``."""
    actual = {column.name: column.type for column in from_iceberg(table.schema())}
    types = {column.name: column.type for column in wanted}
    if told := list_misfits(types, actual, holds=lambda actual, wanted: fits(wanted, actual)):
        raise SchemaMismatch(
            f"{title} {told}; it has ({columns_text(from_iceberg(table.schema()))}), the sink needs "
            f"({columns_text(wanted)})",
            hint=MISFIT_HINT,
        )


def evolve_table(
    table: Table, before: Sequence[SinkColumn], after: Sequence[SinkColumn], *, title: str
) -> tuple[Table, tuple[TableUpdate, ...], tuple[SinkColumn, ...]]:
    """Return the table with the columns for rows of ``after``, the updates that make it, and the columns besides.

    Nothing is committed. Raises ``SchemaMismatch`` if the columns cannot be had.
    """
    actual = {column.name: column.type for column in from_iceberg(table.schema())}
    evolution = evolve(before, after, actual, holds=lambda actual, wanted: fits(wanted, actual), title=title)
    renaming = table.update_schema()
    for old, new in evolution.renamed:
        renaming.rename_column(old, new)
    renamed, first = _apply(table, renaming)
    changing = renamed.update_schema()
    for column in evolution.added:
        changing.add_column((column.name,), iceberg_type(column.type))
    present = {column.name: column.type for column in from_iceberg(renamed.schema())}
    for column in evolution.widened:
        _widen(changing, (column.name,), present[column.name], column.type)
    changed, second = _apply(renamed, changing)
    return changed, (*first, *second), evolution.kept


def _widen(update: UpdateSchema, path: tuple[str, ...], old: Type, new: Type) -> None:
    """Widen the parts that differ: Iceberg changes the types of single values alone."""
    if isinstance(old, Array) and isinstance(new, Array):
        _widen(update, (*path, "element"), old.element, new.element)
    elif isinstance(old, Map) and isinstance(new, Map):
        _widen(update, (*path, "key"), old.key, new.key)
        _widen(update, (*path, "value"), old.value, new.value)
    elif isinstance(old, Struct) and isinstance(new, Struct):
        for mine, theirs in zip(old.fields, new.fields, strict=True):
            _widen(update, (*path, mine.name), mine.type, theirs.type)
    elif old != new:
        update.update_column(path, iceberg_type(new))


def _apply(table: Table, update: UpdateSchema) -> tuple[Table, tuple[TableUpdate, ...]]:
    updates, _ = update._commit()  # noqa: SLF001 - only the updates: the commit of the rows brings them
    if not updates:
        return table, ()
    metadata = update_table_metadata(table.metadata, updates)
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog), updates
