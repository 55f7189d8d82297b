"""Duplicates: rows with the same key and event time, of which one is persisted.

The last one counts: the one of the greatest entry, and within an entry the one that stands last. Entries of a log that
was made anew are greater than all those of the log before. Rows without the number of an entry, as direct appends bring
them, count as older. Rows of one key belong in one sequencer: between two sequencers the numbers say nothing, and the
greater one is as good as the other. NULL equals NULL, and NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.collections.declarations.lifecycle import Merge
from tidemark.iceberg.files.newest_rows import group_numbers
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MERGED_FIELDS = "tidemark.merged-fields"  # a table property, since the first persist that may have merged values


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes rows duplicates, and what becomes of them."""

    columns: tuple[str, ...]  # the event time first, then the key
    merge: Merge

    @classmethod
    def of(cls, event_time: str, key: Sequence[str], merge: Merge) -> Identity:
        return cls(tuple(dict.fromkeys((event_time, *key))), merge)

    def drop_duplicates(self, rows: pa.Table) -> pa.Table:
        """Return the rows without duplicates, sorted by event time and key.

        ``rows`` have the system columns; those of one entry and file are in the order of their arrival.
        """
        if not rows.num_rows:
            return rows
        by = pa.table({str(place): rows.column(name) for place, name in enumerate(self.columns)})
        for name in (name for name in (ENTRY, PRODUCER, BATCH) if name in rows.column_names):
            by = by.append_column(name, _nulls_first(rows.column(name)))
        order = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names])  # a stable sort
        rows = rows.take(order)
        groups = group_numbers(rows, self.columns)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        lasts = np.append(starts[1:], len(groups)) - 1
        if self.merge is Merge.ROWS:
            return rows.take(pa.array(lasts))
        columns = [_last_values(column, starts, lasts) for column in rows.columns]
        return pa.table(columns, schema=rows.schema)

    def drop_duplicates_in(self, rows: DataFrame, *, places: Sequence[str]) -> DataFrame:
        """Return the rows of a frame without duplicates, and without the columns ``places``.

        The rows of one file are in the order of ``places``. Rows with the same event time stay in one partition.
        """
        from pyspark.sql import Window  # noqa: PLC0415 - little is persisted without Spark
        from pyspark.sql import functions as F  # noqa: PLC0415

        from tidemark.spark.quoting import quoted  # noqa: PLC0415

        names = [name for name in rows.columns if name not in places]
        arrival = [name for name in (ENTRY, PRODUCER, BATCH) if name in names]
        same = Window.partitionBy(*map(quoted, self.columns))
        rank = "_tidemark_rank"
        while rank in {name.lower() for name in rows.columns}:  # Spark's names have no case
            rank += "_"
        newest_first = [F.col(name).desc_nulls_last() for name in (*arrival, *places)]
        ranked = rows.withColumn(rank, F.row_number().over(same.orderBy(*newest_first)))
        if self.merge is Merge.FIELDS:
            whole = same.orderBy(*newest_first).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
            others = [name for name in names if name not in self.columns]
            merged = {name: F.first(quoted(name), ignorenulls=True).over(whole) for name in others}
            ranked = ranked.withColumns(merged)
        return ranked.where(F.col(rank) == 1).select(*map(quoted, names))


def _nulls_first(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers, from 0, or texts with a value below all others in the place of NULL."""
    return column if not column.null_count else pc.fill_null(column, -1 if pa.types.is_integer(column.type) else "")


def _last_values(column: pa.ChunkedArray, starts: np.ndarray, lasts: np.ndarray) -> pa.ChunkedArray:
    """Return the last value of each group that is not NULL; groups lie in ``[start, last]``."""
    valid = np.asarray(pc.is_valid(column))
    places = np.maximum.accumulate(np.where(valid, np.arange(len(valid)), -1))[lasts]
    return column.take(pa.array(np.where(places >= starts, places, 0), mask=places < starts))
