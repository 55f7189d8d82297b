"""Finds the corrections from rows that a program says have come and gone.

The program may be wrong: every row that is to go has to be stored, and no key may be left with two rows. What does not
add up is refused, with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, MapType, StringType, StructField, StructType

from tidemark.collections.declarations.collection import Guards, OnNullKey
from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.quality.guards import SAMPLE_ROWS, Sample, check_not_empty, check_null_keys
from tidemark.collections.reconcile.comparison import Difference
from tidemark.collections.reconcile.driver_corrections import SmallCorrections
from tidemark.collections.reconcile.following.found import describe
from tidemark.collections.reconcile.following.row_lookup import (
    Counted,
    RowLookup,
    as_pairs,
    bounds_of,
    choose_copies,
    longs,
)
from tidemark.collections.reconcile.strategy import DRIVER_BYTES, DRIVER_CANDIDATES, Method
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.sources.errors import CannotFollow
from tidemark.errors import GuardRefused, Refused, SchemaMismatch
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.shard.column_names import DIFF

_WHOLE = "hand over all rows that the collection should hold, by `reconcile_frame`"
_VALUE_BYTES = 16.0
_HAS_NO_KEY, _VALUE = "has_no_key", "value"


@dataclass(frozen=True)
class HandedChanges:
    """Changes of the stored rows, as a program hands them over."""

    frame: DataFrame  # has the columns of the collection, and ``_diff``
    where: str  # names the frame in messages
    lookup: RowLookup
    guards: Guards

    @property
    def shape(self) -> RowShape:
        return self.lookup.shape

    def compare(self) -> Difference:
        """Return the corrections; the guards have not judged their number yet.

        The frame is evaluated once, so that it need not give the same rows twice.

        Raises:
            Refused: If a row that goes is not stored, a ``_diff`` is NULL, or there are too many changes.
            GuardRefused: If a key would have two rows, a row has no key, or no row would be left.
            SchemaMismatch: If the columns are not those of the collection and ``_diff``.
        """
        try:
            corrections = self._correct(self._add_up(self._collect()))
            difference = describe(
                corrections,
                self.lookup.pinned,
                self.guards.model_copy(update={"allow_empty": True}),
                before=self.lookup.pinned.scanned_digest(),
            )
        except CannotFollow as reason:
            raise Refused(f"{self.where} cannot be applied: {reason}", hint=_WHOLE) from reason
        if corrections.retracted:
            check_not_empty(difference.counts, self.guards, is_scoped=False)
        return replace(difference, method=Method.CHANGES)

    def _collect(self) -> pa.Table:
        """Return the rows with their hashes, as many as the driver holds."""
        shape, frame = self.shape, self.frame
        stored = from_spark(shape.schema, where=f"collection {self.lookup.pinned.shard.name!r}")
        diffs = [field for field in frame.schema.fields if field.name.lower() == DIFF]  # as Spark compares names
        if [(field.name, isinstance(field.dataType, IntegralType)) for field in diffs] != [(DIFF, True)]:
            given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in diffs)
            raise SchemaMismatch(
                f"{self.where} need one column {DIFF!r} of whole numbers; there is {given or 'none'}",
                hint="it says how many copies of the row come (above 0), or go (below 0)",
            )
        diff = F.col(DIFF).cast("bigint").alias(DIFF)
        rows = shape.number(conform(frame, stored, where=self.where, leave_out_others=True, also=[diff]), NEW, diff)
        prepared = rows.select(
            *self.lookup.columns(NEW),
            *shape.hashes(NEW),
            (shape.has_null_key(NEW) if shape.is_keyed else F.lit(False)).alias(_HAS_NO_KEY),  # noqa: FBT003 - a value of SQL
            self.lookup.value.alias(_VALUE),
            DIFF,
        ).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._check_size(prepared)
            found = prepared.toArrow()
        finally:
            prepared.unpersist()
        if without := found.column(DIFF).null_count:
            sample = self._sample(found.filter(found.column(DIFF).is_null()))
            raise Refused(f"{without} rows of {self.where} have NULL for {DIFF!r}", hint="give a number", sample=sample)
        return found

    def _check_size(self, rows: DataFrame) -> None:
        """Refuse more copies of rows than the driver holds, before it takes them."""
        copies = F.greatest(F.abs(F.col(DIFF).cast("double")), F.lit(1.0))  # whose sum does not overflow
        size = reduce(Column.__add__, map(_size_of, self.shape.schema.fields, map(F.col, self._names)))
        totals = rows.agg(F.sum(copies), F.sum(copies * size)).collect()[0]
        number, size_bytes = (total or 0.0 for total in totals)
        if number > DRIVER_CANDIDATES or size_bytes > DRIVER_BYTES:
            raise Refused(
                f"{self.where} are more than the driver holds, which is {DRIVER_CANDIDATES} copies of rows, or "
                f"{DRIVER_BYTES >> 20} MiB: they are {number:.0f}, of about {size_bytes / (1 << 20):.0f} MiB",
                hint=_WHOLE,
            )

    def _add_up(self, found: pa.Table) -> _Net:
        """Add up the changes of equal rows, and look at their keys."""
        pairs = as_pairs(longs(found, "position"), longs(found, "hash"))
        _, first, at = np.unique(pairs, return_index=True, return_inverse=True)
        diffs = np.bincount(at, weights=longs(found, DIFF), minlength=len(first)).astype(np.int64)
        net = _Net(found.take(pa.array(first)), diffs).where(diffs != 0)
        has_no_key = np.asarray(net.rows.column(_HAS_NO_KEY).to_numpy(), dtype=bool)
        if self.guards.on_null_key is OnNullKey.REFUSE:
            sample = self._sample(net.where(has_no_key).rows)
            check_null_keys(int(has_no_key.sum()), key=self.shape.key, sample=sample)
        return net.where(~has_no_key)

    def _correct(self, net: _Net) -> SmallCorrections:
        """Look up the rows that go, of which the youngest copies are taken."""
        came, went = net.where(net.diffs > 0), net.where(net.diffs < 0)
        wanted = Counted(went.pairs, -went.diffs)
        if self.shape.is_keyed:
            positions = np.unique(net.pairs["position"])
            keys = Counted.of(as_pairs(positions, np.zeros_like(positions)))
            stored = self.lookup.stored(keys, net.bounds, by_key=True)
        else:
            stored = self.lookup.stored(wanted, went.bounds)
        pairs = as_pairs(longs(stored, "position"), longs(stored, "hash"))
        equal = np.flatnonzero(np.isin(pairs, wanted.pairs))
        self._check_stored(went, wanted, Counted.of(pairs[equal]))
        order = np.lexsort((-longs(stored, "time")[equal], pairs[equal]["identity"], pairs[equal]["position"]))
        chosen = choose_copies(pairs[equal], wanted, order)
        assert chosen is not None  # noqa: S101 - all of them are stored
        gone = equal[chosen]
        new = came.rows.take(pa.array(np.repeat(np.arange(len(came.diffs)), came.diffs)))
        if self.shape.is_keyed:
            self._check_keys(new, np.delete(pairs["position"], gone))
        return SmallCorrections(
            new=new.select([*self._names, "hash", "position"]),
            old=stored.take(pa.array(gone)).drop_columns(["time"]),
            shape=self.shape,
        )

    def _check_stored(self, went: _Net, wanted: Counted, stored: Counted) -> None:
        copies = np.zeros_like(wanted.counts)
        copies[np.isin(wanted.pairs, stored.pairs)] = stored.counts
        lacking = copies < wanted.counts
        if not lacking.any():
            return
        rows = self._sample(went.where(lacking).rows)
        numbers = zip(rows, went.diffs[lacking].tolist(), copies[lacking].tolist(), strict=False)
        raise Refused(
            f"{int(lacking.sum())} rows that {self.where} take away are not stored, or not in so many copies",
            hint="compute the changes from what is stored, and hand its upper over with them",
            sample=[{**row, DIFF: diff, "stored": count} for row, diff, count in numbers],
        )

    def _check_keys(self, new: pa.Table, left: NDArray[np.int64]) -> None:
        """Refuse a second row of a key; ``left`` are the keys of the stored rows that stay."""
        positions = longs(new, "position")
        keys, counts = np.unique(np.concatenate([positions, left]), return_counts=True)
        twice = keys[counts > 1]
        if len(twice):
            raise GuardRefused(
                f"{len(twice)} keys ({', '.join(self.shape.key)}) would occur more than once after {self.where}",
                hint=f"hand over the row that a new one replaces, too, with -1 for {DIFF!r}",
                sample=self._sample(new.filter(pa.array(np.isin(positions, twice)))),
            )

    @cached_property
    def _names(self) -> list[str]:
        return [str(n) for n in range(self.shape.width)]

    def _sample(self, rows: pa.Table) -> Sample:
        return to_rows(rows.select(self._names).rename_columns(self.shape.schema.names).slice(0, SAMPLE_ROWS))


def _size_of(field: StructField, column: Column) -> Column:
    """Return about how many bytes a value takes in the driver."""
    if isinstance(field.dataType, ArrayType | MapType | StructType):
        length = F.length(F.to_json(F.struct(column)))
    elif isinstance(field.dataType, StringType | BinaryType):
        length = F.octet_length(column)
    else:
        length = F.lit(0)
    return F.coalesce(length, F.lit(0)).cast("double") + _VALUE_BYTES


@dataclass(frozen=True)
class _Net:
    """Different rows, ascending by both hashes, with the number of copies that come (above 0), or go."""

    rows: pa.Table
    diffs: NDArray[np.int64]

    @cached_property
    def pairs(self) -> NDArray[np.void]:
        return as_pairs(longs(self.rows, "position"), longs(self.rows, "hash"))

    @property
    def bounds(self) -> tuple[int, int] | None:
        return bounds_of(self.rows.column(_VALUE))

    def where(self, chosen: NDArray[np.bool_]) -> _Net:
        return _Net(self.rows.filter(pa.array(chosen)), self.diffs[chosen])
