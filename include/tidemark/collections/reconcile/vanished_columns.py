"""Columns that no row of a source has any more, where a row may leave columns out: JSON, when one was renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.collections.digest.row_layout import OLD, quoted
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from tidemark.collections.reconcile.pinned_snapshot import Pinned
    from tidemark.collections.sources.opened_source import OpenedSource

_HEAD_ROWS = 1000


def check_columns_occur(source: OpenedSource, pinned: Pinned, condition: Column | None) -> None:
    """Refuse to make a column NULL in all stored rows because the source does not have it any more.

    A row may leave out what is NULL in it, so only all rows together tell that a column is gone. Mostly the first rows
    show that none is; the stored rows, and then the whole source, are asked about the others alone.

    Args:
        source: The source; the whole of it, also where a run is limited to a slice.
        pinned: The stored rows.
        condition: Which of them the run may correct; None means all.

    Raises:
        SchemaMismatch: If a column has values in these rows, and occurs in no row of the source.
    """
    if source.occurring_columns is None or pinned.head.is_empty:
        return
    desired, names = source.frame(), pinned.shape.schema.names
    head = desired.limit(_HEAD_ROWS)
    suspects = set(names) - _with_values(head, names)
    if not suspects or head.isEmpty():  # whether a source may be empty is for a guard to say
        return
    suspects &= _with_values(pinned.read(condition).select(*pinned.shape.columns(OLD)).toDF(*names), suspects)
    suspects -= _with_values(desired, suspects)
    if suspects:
        suspects -= source.occurring_columns()  # a null that is written out is a value that the producer chose
    if suspects:
        listed = ", ".join(repr(name) for name in sorted(suspects))
        raise SchemaMismatch(
            f"{source.where} lacks the column{'s' if len(suspects) > 1 else ''} {listed}, which the collection has "
            f"values of: no row of {source.place} has it",
            hint="repair the source; for a renamed column declare `renames` and run `tidemark apply`; if all values "
            "are to go, write them out as null",
        )


def _with_values(rows: DataFrame, names: Iterable[str]) -> set[str]:
    """Return those of ``names`` that are not NULL in some of ``rows``."""
    asked = list(names)
    if not asked:
        return set()
    found = rows.agg(*(F.count(quoted(name)).alias(f"c{place}") for place, name in enumerate(asked))).collect()[0]
    return {name for name, count in zip(asked, found, strict=True) if count}
