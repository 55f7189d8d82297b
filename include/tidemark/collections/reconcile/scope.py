"""The slice of a collection that one run looks at, as a condition on rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType

from tidemark.collections.digest.row_layout import quoted
from tidemark.interval import time_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from tidemark.collections.declarations.collection import Scope
    from tidemark.interval import Interval


def in_scope(scope: Scope, interval: Interval, schema: StructType) -> Column:
    """Return whether a row lies in the slice: the whole units of ``scope`` that ``interval`` touches, half-open.

    A row whose scope column is NULL lies in no slice; only a run over everything corrects it.
    """
    covered = scope.every.covering(interval)
    column, kind = F.col(quoted(scope.column)), schema[scope.column].dataType
    word = "TIMESTAMP_NTZ" if isinstance(kind, TimestampNTZType | DateType) else "TIMESTAMP"
    start, end = (F.expr(f"{word} '{time_text(each)}'") for each in (covered.start_ms, covered.end_ms))
    if isinstance(kind, DateType):  # a date lies in every unit that touches it, so an hour takes in the whole day
        midnight = end.cast("date")
        last = F.when(midnight.cast("timestamp_ntz") == end, F.date_sub(midnight, 1)).otherwise(midnight)
        return column.between(start.cast("date"), last)
    return (column >= start) & (column < end)
