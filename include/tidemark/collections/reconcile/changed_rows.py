"""Finds the corrections from the files of the source that came and went, without a look at the others.

The stored rows equal the old state of the source. So a row that went is stored; a keyed one is found by its key, one
of a multiset by its hash. Whatever does not add up raises ``CannotFollow``: then all rows are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DateType, IntegerType, LongType, ShortType

from tidemark.collections.declarations.collection import Guards, OnNullKey
from tidemark.collections.digest.driver_room import DRIVER_ROOM
from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.digest.scan import DRIVER_HASHES
from tidemark.collections.quality.guards import Counts
from tidemark.collections.reconcile.comparison import Difference
from tidemark.collections.reconcile.driver_corrections import SmallCorrections, compare_candidates, unsettled
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.collections.reconcile.spark_diff import with_short_places
from tidemark.collections.reconcile.strategy import Method, candidates_fit_driver
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.sources.iceberg_changes import FILE, POSITION, CannotFollow, FileChanges
from tidemark.spark.quoting import quoted

_BYTES_PER_HASH = 32  # of the driver's memory for each row that is read
MOST_COPIES = 1_000_000  # of rows that changed, which the driver takes beside these
_PLACES = ("file", "pos", "time")
_PLACE = "_tidemark_place"  # no column of a user
_BOUNDED = (ByteType, ShortType, IntegerType, LongType, DateType)  # whose smallest and largest value are looked for


@dataclass(frozen=True)
class Following:
    """One run that follows the changes of its source."""

    spark: SparkSession
    changes: FileChanges
    pinned: Pinned  # the stored rows, which equal the old state of the source; their digest is known
    guards: Guards
    where: str  # names the source in messages
    leaves_out_others: bool  # columns of the source that the collection does not have

    @property
    def shape(self) -> RowShape:
        return self.pinned.shape

    def compare(self) -> Difference:
        """Return the corrections; the guards have not judged their number yet.

        Raises ``CannotFollow`` if all rows are to be compared.
        """
        before = self.pinned.digest
        assert before is not None  # noqa: S101 - nobody follows without one
        if self.changes.most_rows > DRIVER_HASHES:
            raise CannotFollow("too many rows are in the files that changed")
        with self._reading() as sides, DRIVER_ROOM.taking(_BYTES_PER_HASH * self.changes.most_rows):
            corrections = self._correct(sides)
        digest = before + corrections.digest(before.bucket_count)
        if (digest.counts < 0).any():
            raise CannotFollow("more rows went than are stored")
        self._check_row_count(digest.row_count)
        counts = Counts(source=digest.row_count, stored=before.row_count)
        inserted, retracted = corrections.inserted, corrections.retracted
        vanished = max(0, retracted - (corrections.updated if self.shape.is_keyed else inserted))
        foreign = self.pinned.head.foreign.added if self.pinned.head.foreign else 0
        counts = replace(counts, inserted=inserted, retracted=retracted, vanished=vanished, foreign=foreign)
        if not counts.source and not self.guards.allow_empty:
            raise CannotFollow("no row would be left")
        found = corrections if inserted or retracted else None
        return Difference(method=Method.CHANGED_FILES, counts=counts, corrections=found, digest=digest)

    def _check_row_count(self, row_count: int) -> None:
        """Check what would be stored against what the table says of itself, whatever the changes say."""
        least, most = self.changes.rows_now
        drops_some = self.shape.is_keyed and self.guards.on_null_key is OnNullKey.DROP
        if not (0 if drops_some else least) <= row_count <= most:
            raise CannotFollow(f"the table would have {row_count} rows, and says that it has {least} to {most}")

    @contextmanager
    def _reading(self) -> Iterator[list[_Side]]:
        """Open what came and what went: rows of files that came or went, and deleted rows of the others.

        A row that is deleted no longer came.
        """
        changes, sides = self.changes, []
        parts = ((changes.came, 1, False), (changes.went, -1, False), (changes.less, 1, True), (changes.more, -1, True))
        with ExitStack() as open_files:
            for files, diff, deleted in parts:
                if files:
                    rows = open_files.enter_context(changes.table.reading(files))
                    sides.append(self._side(rows, diff, deleted=deleted))
            yield sides

    def _side(self, rows: DataFrame, diff: int, *, deleted: bool) -> _Side:
        """Return rows with what identifies them: their hash, or, where reading their keys is enough, their place."""
        shape = self.shape
        by_place = deleted and shape.is_keyed
        stored = from_spark(shape.schema, where=f"collection {self.pinned.shard.name!r}")
        fitted = conform(
            self.changes.table.choose(rows, deleted=deleted),
            stored,
            where=self.where,
            leave_out_others=self.leaves_out_others,
            also=[F.xxhash64(FILE, POSITION).alias(_PLACE)] if by_place else [],
        )
        numbered = shape.number(fitted, NEW, *([F.col(_PLACE)] if by_place else []))
        return _Side(numbered, F.col(_PLACE) if by_place else shape.hash(NEW), diff, by_place=by_place)

    def _correct(self, sides: Sequence[_Side]) -> SmallCorrections:
        net = self._add_up(sides)
        if not candidates_fit_driver(net.most_rows, self.pinned.row_bytes, Method.CHANGED_FILES):
            raise CannotFollow(f"too many rows have changed: {net.most_rows}")
        came, stored = self._rows_that_came(sides, net), self._stored_rows(net)
        correct = self._correct_keyed if self.shape.is_keyed else self._correct_multiset
        return correct(net, came, stored)

    def _add_up(self, sides: Sequence[_Side]) -> _Net:
        """Add up what came and what went; rows on both sides cancel out."""
        position, bounded = self.shape.position(NEW), self._bounded
        if self.shape.is_keyed:
            position = F.when(~self.shape.has_null_key(NEW), position)
        value = F.lit(None).cast("bigint") if bounded is None else _as_long(self.shape, bounded)
        frames = [
            side.rows.select(
                position.alias("position"),
                side.identity.alias("identity"),
                F.lit(number).cast("tinyint").alias("side"),
                value.alias("value"),
            )
            for number, side in enumerate(sides)
        ]
        rows = reduce(DataFrame.union, frames).toArrow() if frames else None
        return _Net.of(rows, sides, refuses_null=self.guards.on_null_key is OnNullKey.REFUSE)

    @property
    def _bounded(self) -> int | None:
        """The number of the column by whose smallest and largest value the look at the stored rows is limited."""
        fields = self.shape.schema.fields
        numbers = self.shape.key_indexes or range(self.shape.width)
        return next((n for n in numbers if isinstance(fields[n].dataType, _BOUNDED)), None)

    def _rows_that_came(self, sides: Sequence[_Side], net: _Net) -> pa.Table:
        """Return the rows that came and did not go: so many copies of each as came more than went."""
        wanted, shape = net.came, self.shape
        names = [str(n) for n in range(shape.width)]
        columns = self._columns(NEW, names)
        frames = [
            self._among(
                sides[number].rows, wanted, identity=sides[number].identity, position=shape.position(NEW)
            ).select(*columns, *shape.hashes(NEW), "identity")
            for number in net.came_from
        ]
        if not frames:
            return self._nothing(names)
        rows = self._collect(reduce(DataFrame.union, frames), int(wanted.counts.sum()))
        pairs = _pairs(_longs(rows, "position"), _longs(rows, "identity"))
        order = np.argsort(pairs, order=("position", "identity"), kind="stable")
        groups, starts, sizes = np.unique(pairs[order], return_index=True, return_counts=True)
        if not np.array_equal(groups, wanted.pairs) or (sizes < wanted.counts).any():
            raise CannotFollow("two reads of the files that changed saw other rows")
        rank = np.arange(len(order)) - np.repeat(starts, sizes)
        return rows.take(pa.array(order[rank < np.repeat(wanted.counts, sizes)])).drop_columns(["identity"])

    def _stored_rows(self, net: _Net) -> pa.Table:
        """Return the stored rows that have a key of ``net``; of a multiset those that equal a row that went."""
        shape, keyed = self.shape, self.shape.is_keyed
        wanted = net.keys if keyed else net.went
        names = [str(n) for n in range(shape.width)]
        if not len(wanted):
            return self._nothing([*names], *_PLACES)
        stored = with_short_places(self.pinned.read(self._between(net)))
        found = self._among(stored, wanted, identity=None if keyed else shape.hash(OLD), position=shape.position(OLD))
        return self._collect(found.select(*self._columns(OLD, names), *shape.hashes(OLD), *_PLACES), len(wanted))

    def _columns(self, prefix: str, names: Sequence[str]) -> list[Column]:
        """Return the columns as the collection has them: a source may say of nested fields that they are never NULL."""
        fields = zip(self.shape.columns(prefix), self.shape.schema.fields, names, strict=True)
        return [column.cast(field.dataType).alias(name) for column, field, name in fields]

    @staticmethod
    def _collect(rows: DataFrame, wanted: int) -> pa.Table:
        """Collect the ``wanted`` rows. Raises ``CannotFollow`` if they have many more copies."""
        most = wanted + MOST_COPIES
        found = rows.limit(most).toArrow()
        if found.num_rows == most:
            raise CannotFollow("too many rows equal those that changed")
        return found

    def _between(self, net: _Net) -> Column | None:
        """Return the condition on stored rows that they lie between the smallest and the largest value of ``net``."""
        if self._bounded is None or net.bounds is None:
            return None
        field = self.shape.schema.fields[self._bounded]
        low, high = (F.lit(bound) for bound in net.bounds)
        if isinstance(field.dataType, DateType):
            low, high = (F.date_from_unix_date(bound.cast("int")) for bound in (low, high))
        return F.col(quoted(field.name)).between(low, high)

    def _among(self, rows: DataFrame, wanted: _Counts, *, identity: Column | None, position: Column) -> DataFrame:
        """Return the rows with a position of ``wanted``, and an identity of it, if one is given."""
        identified = {"wanted_position": position} | ({} if identity is None else {"identity": identity})
        listed = pa.table({"wanted_position": wanted.pairs["position"], "identity": wanted.pairs["identity"]})
        wanted_rows = F.broadcast(self.spark.createDataFrame(listed.select([*identified])))
        return rows.withColumns(identified).join(wanted_rows, on=[*identified], how="left_semi")

    def _correct_keyed(self, net: _Net, came: pa.Table, stored: pa.Table) -> SmallCorrections:
        if len(np.unique(_longs(came, "position"))) < came.num_rows:
            raise CannotFollow("a key came more than once")
        went, here = net.went_keys(), np.unique(_longs(stored, "position"), return_counts=True)
        if (went[1] > 1).any() or (here[1] > 1).any() or not np.isin(went[0], here[0]).all():
            raise CannotFollow("a row that went is not stored")
        if len(went[0]) < len(here[0]):
            raise CannotFollow("a key that came is stored already")
        exact = net.went.pairs[~net.went.by_place]
        rows = _pairs(_longs(stored, "position"), _longs(stored, "hash"))
        if not np.isin(exact, rows).all():
            raise CannotFollow("a row that went is stored with other values")
        nowhere = pa.nulls(came.num_rows, pa.int64())
        for name in _PLACES:
            came = came.append_column(name, nowhere)
        return compare_candidates(pa.concat_tables([came, stored.cast(came.schema)]), self.shape)

    def _correct_multiset(self, net: _Net, came: pa.Table, stored: pa.Table) -> SmallCorrections:
        """Retract the youngest of equal copies."""
        pairs = _pairs(_longs(stored, "position"), _longs(stored, "hash"))
        times = _longs(stored, "time")
        order = np.lexsort((-times, pairs["identity"], pairs["position"]))
        groups, starts, sizes = np.unique(pairs[order], return_index=True, return_counts=True)
        if not np.array_equal(groups, net.went.pairs) or (sizes < net.went.counts).any():
            raise CannotFollow("a row that went is not stored")
        rank = np.arange(len(order)) - np.repeat(starts, sizes)
        gone = stored.take(pa.array(order[rank < np.repeat(net.went.counts, sizes)]))
        return SmallCorrections(new=came, old=gone.drop_columns(["time"]), shape=self.shape)

    def _nothing(self, names: Sequence[str], *places: str) -> pa.Table:
        shape = self.shape
        empty = self.spark.createDataFrame([], shape.schema).toDF(*names).toArrow()
        for name in ("hash", "position", *places):
            empty = empty.append_column(name, pa.array([], pa.int64()))
        return empty


@dataclass(frozen=True)
class _Side:
    """Rows that came (``diff`` 1) or went (-1), numbered under ``new_``."""

    rows: DataFrame
    identity: Column  # a 64-bit hash
    diff: int
    by_place: bool  # whether the identity is a hash of file and position, not of the row


_PAIR = np.dtype([("position", np.int64), ("identity", np.int64)])


@dataclass(frozen=True)
class _Counts:
    """Rows by both of their hashes, ascending, with the number of copies."""

    pairs: NDArray[np.void]
    counts: NDArray[np.int64]
    by_place: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True)
class _Net:
    """What came and did not go, and what went and did not come."""

    came: _Counts
    went: _Counts
    came_from: tuple[int, ...] = ()  # the numbers of the sides that have the rows that came
    bounds: tuple[int, int] | None = None  # of the bounded column

    @property
    def most_rows(self) -> int:
        return int(self.came.counts.sum() + self.went.counts.sum())

    @property
    def keys(self) -> _Counts:
        """The positions of both sides, each once."""
        positions = np.unique(np.concatenate([self.came.pairs["position"], self.went.pairs["position"]]))
        zeros = np.zeros(len(positions), dtype=np.int64)
        return _Counts(_pairs(positions, zeros), zeros, zeros.astype(bool))

    def went_keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of rows that went, and how many went of each."""
        positions, at = np.unique(self.went.pairs["position"], return_inverse=True)
        return positions, np.bincount(at, weights=self.went.counts, minlength=len(positions)).astype(np.int64)

    @classmethod
    def of(cls, rows: pa.Table | None, sides: Sequence[_Side], *, refuses_null: bool) -> _Net:
        """Add up rows: ``position`` (NULL without a key), ``identity``, the number of their ``side``, and ``value``.

        Raises ``CannotFollow`` if rows without a key came, and are refused.
        """
        nothing = _Counts(np.zeros(0, _PAIR), np.zeros(0, np.int64), np.zeros(0, bool))
        if rows is None:
            return cls(nothing, nothing)
        diff_of, by_place_of = np.array([side.diff for side in sides]), np.array([side.by_place for side in sides])
        without_key = rows.filter(pc.is_null(rows.column("position")))
        if refuses_null and (diff_of[_longs(without_key, "side")] > 0).any():
            raise CannotFollow("a row without a key came")
        rows = rows.filter(pc.is_valid(rows.column("position")))
        positions, identities, numbers = (_longs(rows, name) for name in ("position", "identity", "side"))
        doubtful = np.flatnonzero(unsettled(positions, identities, diff_of[numbers] < 0))
        pairs, numbers = _pairs(positions[doubtful], identities[doubtful]), numbers[doubtful]
        diffs, by_place = diff_of[numbers], by_place_of[numbers]
        groups, first, at = np.unique(pairs, return_index=True, return_inverse=True)
        net = np.bincount(at, weights=diffs, minlength=len(groups)).astype(np.int64)
        came, went = (_Counts(groups[side], abs(net[side]), by_place[first[side]]) for side in (net > 0, net < 0))
        came_from = tuple(np.unique(numbers[(net > 0)[at] & (diffs > 0)]).tolist())
        values = rows.column("value").take(pa.array(doubtful)).filter(pa.array((net != 0)[at]))
        bounds = None
        if len(values) and not values.null_count:
            found = pc.min_max(values).as_py()
            bounds = (found["min"], found["max"])
        return cls(came, went, came_from, bounds)


def _pairs(positions: NDArray[np.int64], identities: NDArray[np.int64]) -> NDArray[np.void]:
    pairs = np.empty(len(positions), dtype=_PAIR)
    pairs["position"], pairs["identity"] = positions, identities
    return pairs


def _as_long(shape: RowShape, number: int) -> Column:
    column = F.col(f"{NEW}{number}")
    return (
        F.unix_date(column).cast("bigint")
        if isinstance(shape.schema[number].dataType, DateType)
        else column.cast("bigint")
    )


def _longs(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)
