"""Makes what a source gives fit the stored columns, without loss, or refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.collections.schema.convert import from_spark, to_spark
from tidemark.collections.schema.types import Columns, fits
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def conform(desired: DataFrame, stored: Columns, *, where: str, leave_out_others: bool = False) -> DataFrame:
    """Return ``desired`` with exactly the ``stored`` columns, in their order and with their types.

    Only casts that lose nothing are made (int to bigint, float to double, more digits of a decimal).

    Args:
        desired: What the source gives.
        stored: The user columns of the collection.
        where: Names the source in messages.
        leave_out_others: Whether further columns of the source are left out, because the declaration says which
            columns are kept; otherwise they are refused.

    Raises:
        SchemaMismatch: Naming the column, and both types.
    """
    twice = sorted({name for name in desired.columns if desired.columns.count(name) > 1})
    if twice:
        raise SchemaMismatch(f"{where} has several columns of the name {twice[0]!r}", hint="rename one with AS")
    given = {column.name: column.type for column in from_spark(desired.schema, where=where)}
    missing = [column.name for column in stored if column.name not in given]
    others = [name for name in given if name not in {column.name for column in stored}]
    if missing:
        listed = ", ".join(repr(name) for name in missing)
        other = f"; it has {', '.join(repr(name) for name in others)} instead" if others else ""
        raise SchemaMismatch(
            f"{where} lacks the column{'s' if len(missing) > 1 else ''} {listed}{other}",
            hint="repair the source; for a renamed column declare `renames` and run `tidemark apply`",
        )
    if others and not leave_out_others:
        listed = ", ".join(repr(name) for name in others)
        raise SchemaMismatch(
            f"{where} has the column{'s' if len(others) > 1 else ''} {listed}, which the collection does not have",
            hint="run `tidemark apply` to add it, or declare a `schema` without it",
        )
    selected = []
    for column in stored:
        kind = given[column.name]
        if not fits(kind, column.type):
            raise SchemaMismatch(
                f"column {column.name!r} of {where} is {kind}, the collection stores {column.type}",
                hint="repair the source, cast it with `sql`, or change the collection with `tidemark apply`",
            )
        source = F.col("`" + column.name.replace("`", "``") + "`")
        selected.append(source if kind == column.type else source.cast(to_spark(column.type)).alias(column.name))
    return desired.select(*selected)
