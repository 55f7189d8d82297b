"""Fits the rows of a source to the stored columns, without loss, or refuses them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.schema.convert import from_spark, to_spark
from tidemark.collections.schema.types import Columns, fits
from tidemark.errors import SchemaMismatch
from tidemark.spark.quoting import quoted


def conform(
    desired: DataFrame, stored: Columns, *, where: str, leave_out_others: bool = False, also: Sequence[Column] = ()
) -> DataFrame:
    """Return ``desired``, the rows of the source, with exactly the ``stored`` columns, in their order.

    Only casts that lose nothing are made (int to bigint, float to double, more digits of a decimal). Further columns of
    the source are refused, or left out with ``leave_out_others``, when the declaration says which columns are kept.
    The columns ``also`` are added unchanged.

    Raises ``SchemaMismatch`` if a column does not fit, with the column and both types; ``where`` names the source.
    """
    twice = sorted({name for name in desired.columns if desired.columns.count(name) > 1})
    if twice:
        raise SchemaMismatch(f"{where} has several columns of the name {twice[0]!r}", hint="rename one with AS")
    types = {column.name: column.type for column in from_spark(desired.schema, where=where)}
    missing = [column.name for column in stored if column.name not in types]
    others = [name for name in types if name not in {column.name for column in stored}]
    listed = ", ".join(map(repr, others))
    if missing:
        raise SchemaMismatch(
            f"{where} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            + (f"; it has {listed} instead" if others else ""),
            hint="repair the source; for a renamed column declare `renames` and run `tidemark apply`",
        )
    if others and not leave_out_others:
        raise SchemaMismatch(
            f"{where} has the column{'s' if len(others) > 1 else ''} {listed}, which the collection does not have",
            hint="run `tidemark apply` to add it, or declare a `schema` without it",
        )
    selected = []
    for column in stored:
        given = types[column.name]
        if not fits(given, column.type):
            raise SchemaMismatch(
                f"column {column.name!r} of {where} is {given}, the collection stores {column.type}",
                hint="repair the source, cast it with `sql`, or change the collection with `tidemark apply`",
            )
        source = F.col(quoted(column.name))
        selected.append(source if given == column.type else source.cast(to_spark(column.type)).alias(column.name))
    return desired.select(*selected, *also)
