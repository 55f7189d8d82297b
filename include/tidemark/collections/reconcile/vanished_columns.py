"""Finds columns that no row of a source has any more, such as a renamed column of JSON files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.digest.row_layout import OLD
from tidemark.errors import SchemaMismatch
from tidemark.spark.quoting import quoted

if TYPE_CHECKING:
    from tidemark.collections.reconcile.pinned_snapshot import Pinned
    from tidemark.collections.sources.opened_source import OpenedSource

_HEAD_ROWS = 1000


def check_columns_occur(source: OpenedSource, pinned: Pinned, condition: Column | None) -> None:
    """Refuse to make a column NULL in all stored rows because no row of the source has the column.

    A row may leave out its NULL columns, so only all rows of the source together prove that a column is missing. Mostly
    the first rows have all columns; only for the other columns the stored rows, and then the whole source, are read.
    The check reads the whole source even if the run is limited to a slice. Raises ``SchemaMismatch`` if stored rows
    that meet ``condition`` have values in a column that no row of the source has.
    """
    if source.occurring_columns is None or pinned.head.is_empty:
        return
    desired, names = source.desired, pinned.shape.schema.names
    head = desired.limit(_HEAD_ROWS)
    suspects = set(names) - _with_values(head, names)
    if not suspects or head.isEmpty():  # a guard decides whether a source may be empty
        return
    suspects &= _with_values(pinned.read(condition).select(*pinned.shape.columns(OLD)).toDF(*names), suspects)
    suspects -= _with_values(desired, suspects)
    if suspects:
        suspects -= source.occurring_columns()  # a null that a file names is a value that the producer chose
    if suspects:
        listed = ", ".join(repr(name) for name in sorted(suspects))
        raise SchemaMismatch(
            f"{source.where} lacks the column{'s' if len(suspects) > 1 else ''} {listed}, which the collection has "
            f"values of: no row of {source.place} has it",
            hint="repair the source; for a renamed column declare `renames` and run `tidemark apply`; if all values "
            "are to go, write them out as null",
        )


def _with_values(rows: DataFrame, names: Iterable[str]) -> set[str]:
    """Return the ``names`` of columns that have a value in any of ``rows``."""
    columns = list(names)
    if not columns:
        return set()
    counts = rows.agg(*(F.count(quoted(name)).alias(f"c{place}") for place, name in enumerate(columns))).collect()[0]
    return {name for name, count in zip(columns, counts, strict=True) if count}
