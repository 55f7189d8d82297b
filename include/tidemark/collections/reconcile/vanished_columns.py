"""Finds columns that no row of a source has any more, such as a renamed column of JSON files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.collections.digest.row_layout import OLD
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from tidemark.collections.reconcile.comparison import Corrections
    from tidemark.collections.reconcile.pinned_snapshot import Pinned
    from tidemark.collections.sources.opened_source import OpenedSource


def check_columns_occur(
    source: OpenedSource, pinned: Pinned, condition: Column | None, corrections: Corrections
) -> None:
    """Refuse to make a column NULL in all stored rows because no row of the source has the column.

    A row may leave out its NULL columns, so only all rows of the source together prove that a column is missing. What
    the collection will hold tells the same: only for columns of which values go, and none come, the stored rows are
    counted, and only for one that would lose its last value the whole source is read.
    Raises ``SchemaMismatch`` if stored rows that meet ``condition`` have values in a column that no row of the source
    has, in or beyond the slice of a run.
    """
    if source.occurring_columns is None or not corrections.retracted:
        return
    came, went = corrections.count_values()
    suspects = [place for place, count in enumerate(went) if count and not came[place]]
    if not suspects:
        return
    counts = [F.count(column) for column in pinned.shape.columns(OLD)]
    stored = pinned.read(condition).agg(*(counts[place] for place in suspects)).collect()[0]
    vanish = [place for place, count in zip(suspects, stored, strict=True) if count == went[place]]
    if not vanish or source.desired.isEmpty():  # a guard decides whether a source may be empty
        return
    # A null that a file names is a value that the producer chose.
    missing = {pinned.shape.schema.names[place] for place in vanish} - source.occurring_columns()
    if missing:
        listed = ", ".join(repr(name) for name in sorted(missing))
        raise SchemaMismatch(
            f"{source.where} lacks the column{'s' if len(missing) > 1 else ''} {listed}, which the collection has "
            f"values of: no row of {source.place} has it",
            hint="repair the source; for a renamed column declare `renames` and run `tidemark apply`; if all values "
            "are to go, write them out as null",
        )
