"""Looks up rows by their hashes, among those that are stored and among those of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DateType, IntegerType, LongType, ShortType

from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.digest.scan import ROW_BITS
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.collections.reconcile.spark_diff import bucket_set, in_buckets, with_short_places
from tidemark.collections.sources.errors import CannotFollow
from tidemark.spark.quoting import quoted

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType

MOST_COPIES = 1_000_000  # of rows that changed, which the driver takes beside these
PLACES = ("file", "pos", "time")
_BOUNDED = (ByteType, ShortType, IntegerType, LongType, DateType)  # whose smallest and largest value are looked for
_PAIR = np.dtype([("position", np.int64), ("identity", np.int64)])


@dataclass(frozen=True)
class Counted:
    """Rows by both of their hashes, ascending, with the number of copies."""

    pairs: NDArray[np.void]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @classmethod
    def of(cls, pairs: NDArray[np.void]) -> Counted:
        """Count equal pairs."""
        return cls(*np.unique(pairs, return_counts=True))


@dataclass(frozen=True)
class RowLookup:
    """Looks for rows of one run."""

    spark: SparkSession
    pinned: Pinned

    @property
    def shape(self) -> RowShape:
        return self.pinned.shape

    @property
    def value(self) -> Column:
        """Return what ``stored`` limits its look by: a column of the source as bigint; NULL if none fits."""
        if self._bounded is None:
            return F.lit(None).cast("bigint")
        column = F.col(f"{NEW}{self._bounded}")
        is_date = isinstance(self.shape.schema[self._bounded].dataType, DateType)
        return F.unix_date(column).cast("bigint") if is_date else column.cast("bigint")

    def came(self, sides: Sequence[tuple[DataFrame, Column]], wanted: Counted) -> pa.Table:
        """Return so many copies of each row as ``wanted`` says, from numbered rows with their identities."""
        shape = self.shape
        frames = [
            self._among(rows, wanted, identity=identity, position=shape.position(NEW)).select(
                *self.columns(NEW), *shape.hashes(NEW), "identity"
            )
            for rows, identity in sides
        ]
        if not frames or not len(wanted):
            return self.no_rows()
        found = collect(reduce(DataFrame.union, frames), wanted.total)
        return take_copies(found, wanted, identity="identity").drop_columns(["identity"])

    def columns(self, prefix: str) -> list[Column]:
        """Return the columns, named by their numbers, of the collection's types.

        A source may say of nested fields that they are never NULL.
        """
        fields = zip(self.shape.columns(prefix), self.shape.schema.fields, strict=True)
        return [column.cast(field.dataType).alias(str(n)) for n, (column, field) in enumerate(fields)]

    def stored(self, wanted: Counted, bounds: tuple[int, int] | None, *, by_key: bool = False) -> pa.Table:
        """Return the stored rows that equal those of ``wanted``; ``by_key`` those with a position of them.

        ``bounds`` are the smallest and the largest ``value`` of these rows; None if that is not known.
        """
        shape = self.shape
        if not len(wanted):
            return self.no_rows(*PLACES)
        rows = with_short_places(self.pinned.read(self.between(bounds)))
        identity = None if by_key else shape.hash(OLD)
        found = self._among(rows, wanted, identity=identity, position=shape.position(OLD))
        return collect(found.select(*self.columns(OLD), *shape.hashes(OLD), *PLACES), len(wanted))

    def stored_between(self, bounds: tuple[int, int] | None) -> pa.Table:
        """Return the stored rows between ``bounds``; ask ``count_between`` first whether the driver can take them."""
        rows = with_short_places(self.pinned.read(self.between(bounds)))
        return rows.select(*self.columns(OLD), *self.shape.hashes(OLD), *PLACES).toArrow()

    def stored_hashes(
        self,
        bounds: tuple[int, int] | None,
        *,
        wanted: Counted | None = None,
        by_key: bool = False,
        buckets: NDArray[np.int64] | None = None,
        bucket_count: int = 1,
    ) -> NDArray[np.void]:
        """Return both hashes of the stored rows between ``bounds``.

        With ``wanted`` only of those that equal a row of it, or ``by_key`` have a position of it; with ``buckets`` only
        of those that lie there.
        """
        shape, rows = self.shape, self.pinned.read(self.between(bounds))
        if wanted is not None:
            if not len(wanted):
                return wanted.pairs
            identity = None if by_key else shape.hash(OLD)
            rows = self._among(rows, wanted, identity=identity, position=shape.position(OLD))
        if buckets is not None and len(buckets) < bucket_count:
            rows = in_buckets(rows, shape, OLD, bucket_count, bucket_set(buckets, bucket_count))
        found = rows.select(*shape.hashes(OLD)).toArrow()
        return as_pairs(longs(found, "position"), longs(found, "hash"))

    def count_between(self, bounds: tuple[int, int] | None, *, most: int) -> int:
        """Return how many stored rows lie between ``bounds``: at least so many as there are, if ``most`` or less.

        Spark counts them where the statistics of the files leave open whether they are more than ``most``.
        """
        if self._bounded is None or bounds is None:
            return self.pinned.head.row_count
        about, at_most = self._estimate_between(self._bounded, bounds)
        if about > most:
            return about
        if tuple(self.shape.key_indexes) == (self._bounded,):
            at_most = min(at_most, bounds[1] - bounds[0] + 1)
        return at_most if at_most <= most else self.pinned.read(self.between(bounds)).count()

    def _estimate_between(self, bounded: int, bounds: tuple[int, int]) -> tuple[int, int]:
        """Return how many stored rows lie between ``bounds`` if values are spread evenly in each file, and at most."""
        field = self.pinned.head.table.schema().find_field(self.shape.schema.names[bounded])
        kind, about, at_most = cast("PrimitiveType", field.field_type), 0.0, 0
        for file in self.pinned.data_files.values():
            ends = [each.get(field.field_id) for each in (file.lower_bounds, file.upper_bounds)]
            share = 1.0
            if None not in ends:
                low, high = (int(from_bytes(kind, end)) for end in ends if end is not None)
                share = max(0, min(high, bounds[1]) - max(low, bounds[0]) + 1) / (high - low + 1)
            about += share * file.record_count
            at_most += file.record_count if share else 0
        return int(about), at_most

    def no_rows(self, *places: str) -> pa.Table:
        """Return no row, with the columns of the others."""
        empty = self.spark.createDataFrame([], self.shape.schema).toDF(*map(str, range(self.shape.width))).toArrow()
        for name in ("hash", "position", *places):
            empty = empty.append_column(name, pa.array([], pa.int64()))
        return empty

    def between(self, bounds: tuple[int, int] | None) -> Column | None:
        """Return the condition on stored rows that their value lies between ``bounds``, both included."""
        if self._bounded is None or bounds is None:
            return None
        field = self.shape.schema.fields[self._bounded]
        low, high = (F.lit(bound) for bound in bounds)
        if isinstance(field.dataType, DateType):
            low, high = (F.date_from_unix_date(bound.cast("int")) for bound in (low, high))
        return F.col(quoted(field.name)).between(low, high)

    @property
    def _bounded(self) -> int | None:
        """The number of the column by whose smallest and largest value a look at the stored rows is limited."""
        fields = self.shape.schema.fields
        numbers = self.shape.key_indexes or range(self.shape.width)
        return next((n for n in numbers if isinstance(fields[n].dataType, _BOUNDED)), None)

    def _among(self, rows: DataFrame, wanted: Counted, *, identity: Column | None, position: Column) -> DataFrame:
        """Return the rows with a position of ``wanted``, and an identity of it, if one is given."""
        identified = {"wanted_position": position} | ({} if identity is None else {"identity": identity})
        listed = pa.table({"wanted_position": wanted.pairs["position"], "identity": wanted.pairs["identity"]})
        wanted_rows = F.broadcast(self.spark.createDataFrame(listed.select([*identified])))
        return rows.withColumns(identified).join(wanted_rows, on=[*identified], how="left_semi")


def subtract(rows: Counted, others: Counted) -> Counted:
    """Take ``others`` away from ``rows``; no more copies than there are."""
    counts, at = rows.counts.copy(), np.searchsorted(rows.pairs, others.pairs)
    is_there = at < len(rows)
    is_there[is_there] = rows.pairs[at[is_there]] == others.pairs[is_there]
    counts[at[is_there]] -= np.minimum(others.counts[is_there], counts[at[is_there]])
    return Counted(rows.pairs[counts > 0], counts[counts > 0])


def choose_copies(pairs: NDArray[np.void], wanted: Counted, order: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return which rows to take, so many of each pair as ``wanted`` says; None if these are not all, or too few.

    ``order`` sorts the ``pairs``, and among equal ones puts those first that are to be taken first.
    """
    groups, starts, sizes = np.unique(pairs[order], return_index=True, return_counts=True)
    if not np.array_equal(groups, wanted.pairs) or (sizes < wanted.counts).any():
        return None
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return order[rank < np.repeat(wanted.counts, sizes)]


def take_copies(
    rows: pa.Table, wanted: Counted, *, identity: str = "hash", otherwise: str = "two reads of the same saw other rows"
) -> pa.Table:
    """Return so many copies of each row as ``wanted`` says, of stored ones the youngest.

    Raises ``CannotFollow``, for the reason ``otherwise``, if ``rows`` has not all of them, or others.
    """
    pairs = as_pairs(longs(rows, "position"), longs(rows, identity))
    ages = [-longs(rows, "time")] if "time" in rows.column_names else []
    chosen = choose_copies(pairs, wanted, np.lexsort((*ages, pairs["identity"], pairs["position"])))
    if chosen is None:
        raise CannotFollow(otherwise)
    return rows.take(pa.array(chosen))


def collect(rows: DataFrame, wanted: int) -> pa.Table:
    """Collect the ``wanted`` rows. Raises ``CannotFollow`` if they have many more copies.

    Each partition is limited by itself: Spark's own limit brings all rows into one.
    """
    most = wanted + MOST_COPIES
    number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << ROW_BITS) - 1).cast("bigint"))
    found = rows.withColumn("number", number).where(F.col("number") < most).drop("number").toArrow()
    if found.num_rows >= most:
        raise CannotFollow("too many rows equal those that changed")
    return found


def as_pairs(positions: NDArray[np.int64], identities: NDArray[np.int64]) -> NDArray[np.void]:
    """Return both hashes of each row as one value."""
    pairs = np.empty(len(positions), dtype=_PAIR)
    pairs["position"], pairs["identity"] = positions, identities
    return pairs


def longs(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column without NULLs."""
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)


def bounds_of(values: pa.ChunkedArray) -> tuple[int, int] | None:
    """Return the smallest and the largest value; None if a value is NULL, or if there is none."""
    if not len(values) or values.null_count:
        return None
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]
