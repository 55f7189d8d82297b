"""Finds the corrections from the files of an Iceberg source that came and went.

The stored rows equal the old state of the source. So a row that went is stored; a keyed one is found by its key, one
of a multiset by its hash. Whatever does not add up raises ``CannotFollow``: then all rows are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.declarations.collection import Guards, OnNullKey
from tidemark.collections.digest.driver_room import DRIVER_ROOM
from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.digest.scan import DRIVER_HASHES
from tidemark.collections.reconcile.comparison import Difference
from tidemark.collections.reconcile.driver_corrections import SmallCorrections, compare_candidates, unsettled
from tidemark.collections.reconcile.following.found import describe
from tidemark.collections.reconcile.following.row_lookup import (
    PLACES,
    Counted,
    RowLookup,
    as_pairs,
    bounds_of,
    longs,
    take_copies,
)
from tidemark.collections.reconcile.strategy import Method, candidates_fit_driver
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.sources.errors import CannotFollow
from tidemark.collections.sources.followed.iceberg_changes import FILE, POSITION, FileChanges

_BYTES_PER_HASH = 32  # of the driver's memory for each row that is read
_PLACE = "_tidemark_place"  # no column of a user


@dataclass(frozen=True)
class FollowingIceberg:
    """One run that follows the changes of its source."""

    changes: FileChanges
    lookup: RowLookup  # the stored rows equal the old state of the source; their digest is known
    guards: Guards
    where: str  # names the source in messages
    leaves_out_others: bool  # columns of the source that the collection does not have

    @property
    def shape(self) -> RowShape:
        return self.lookup.shape

    def compare(self) -> Difference:
        """Return the corrections; the guards have not judged their number yet.

        Raises ``CannotFollow`` if all rows are to be compared.
        """
        if self.changes.most_rows > DRIVER_HASHES:
            raise CannotFollow("too many rows are in the files that changed")
        with self._reading() as sides, DRIVER_ROOM.taking(_BYTES_PER_HASH * self.changes.most_rows):
            corrections = self._correct(sides)
        difference = describe(corrections, self.lookup.pinned, self.guards)
        self._check_row_count(difference.counts.source)
        return difference

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
        stored = from_spark(shape.schema, where=f"collection {self.lookup.pinned.shard.name!r}")
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
        if not candidates_fit_driver(net.most_rows, self.lookup.pinned.row_bytes, Method.CHANGED_FILES):
            raise CannotFollow(f"too many rows have changed: {net.most_rows}")
        came = self.lookup.came([(sides[number].rows, sides[number].identity) for number in net.came_from], net.came)
        if self.shape.is_keyed:
            return self._correct_keyed(net, came, self.lookup.stored(net.keys, net.bounds, by_key=True))
        return self._correct_multiset(net, came, self.lookup.stored(net.went, net.bounds))

    def _add_up(self, sides: Sequence[_Side]) -> _Net:
        """Add up what came and what went; rows on both sides cancel out."""
        position = self.shape.position(NEW)
        if self.shape.is_keyed:
            position = F.when(~self.shape.has_null_key(NEW), position)
        frames = [
            side.rows.select(
                position.alias("position"),
                side.identity.alias("identity"),
                F.lit(number).cast("tinyint").alias("side"),
                self.lookup.value.alias("value"),
            )
            for number, side in enumerate(sides)
        ]
        rows = reduce(DataFrame.union, frames).toArrow() if frames else None
        return _Net.of(rows, sides, refuses_null=self.guards.on_null_key is OnNullKey.REFUSE)

    def _correct_keyed(self, net: _Net, came: pa.Table, stored: pa.Table) -> SmallCorrections:
        if len(np.unique(longs(came, "position"))) < came.num_rows:
            raise CannotFollow("a key came more than once")
        went, here = net.went_keys(), np.unique(longs(stored, "position"), return_counts=True)
        if (went[1] > 1).any() or (here[1] > 1).any() or not np.isin(went[0], here[0]).all():
            raise CannotFollow("a row that went is not stored")
        if len(went[0]) < len(here[0]):
            raise CannotFollow("a key that came is stored already")
        exact = net.went.pairs[~net.went_by_place]
        rows = as_pairs(longs(stored, "position"), longs(stored, "hash"))
        if not np.isin(exact, rows).all():
            raise CannotFollow("a row that went is stored with other values")
        nowhere = pa.nulls(came.num_rows, pa.int64())
        for name in PLACES:
            came = came.append_column(name, nowhere)
        return compare_candidates(pa.concat_tables([came, stored.cast(came.schema)]), self.shape)

    def _correct_multiset(self, net: _Net, came: pa.Table, stored: pa.Table) -> SmallCorrections:
        """Retract the youngest of equal copies."""
        old = take_copies(stored, net.went, otherwise="a row that went is not stored").drop_columns(["time"])
        return SmallCorrections(new=came, old=old, shape=self.shape)


@dataclass(frozen=True)
class _Side:
    """Rows that came (``diff`` 1) or went (-1), numbered under ``new_``."""

    rows: DataFrame
    identity: Column  # a 64-bit hash
    diff: int
    by_place: bool  # whether the identity is a hash of file and position, not of the row


@dataclass(frozen=True)
class _Net:
    """What came and did not go, and what went and did not come."""

    came: Counted
    went: Counted
    went_by_place: NDArray[np.bool_]  # whether the identity of a row that went is that of its place
    came_from: tuple[int, ...] = ()  # the numbers of the sides that have the rows that came
    bounds: tuple[int, int] | None = None  # of the bounded column

    @property
    def most_rows(self) -> int:
        return self.came.total + self.went.total

    @property
    def keys(self) -> Counted:
        """The positions of both sides, each once."""
        positions = np.unique(np.concatenate([self.came.pairs["position"], self.went.pairs["position"]]))
        return Counted.of(as_pairs(positions, np.zeros_like(positions)))

    def went_keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of rows that went, and how many went of each."""
        positions, at = np.unique(self.went.pairs["position"], return_inverse=True)
        return positions, np.bincount(at, weights=self.went.counts, minlength=len(positions)).astype(np.int64)

    @classmethod
    def of(cls, rows: pa.Table | None, sides: Sequence[_Side], *, refuses_null: bool) -> _Net:
        """Add up rows: ``position`` (NULL without a key), ``identity``, the number of their ``side``, and ``value``.

        Raises ``CannotFollow`` if rows without a key came, and are refused.
        """
        if rows is None:
            nothing = Counted.of(as_pairs(np.zeros(0, np.int64), np.zeros(0, np.int64)))
            return cls(nothing, nothing, np.zeros(0, bool))
        diff_of, by_place_of = np.array([side.diff for side in sides]), np.array([side.by_place for side in sides])
        without_key = rows.filter(pc.is_null(rows.column("position")))
        if refuses_null and (diff_of[longs(without_key, "side")] > 0).any():
            raise CannotFollow("a row without a key came")
        rows = rows.filter(pc.is_valid(rows.column("position")))
        positions, identities, numbers = (longs(rows, name) for name in ("position", "identity", "side"))
        doubtful = np.flatnonzero(unsettled(positions, identities, diff_of[numbers] < 0))
        pairs, numbers = as_pairs(positions[doubtful], identities[doubtful]), numbers[doubtful]
        diffs = diff_of[numbers]
        groups, first, at = np.unique(pairs, return_index=True, return_inverse=True)
        net = np.bincount(at, weights=diffs, minlength=len(groups)).astype(np.int64)
        came, went = (Counted(groups[side], abs(net[side])) for side in (net > 0, net < 0))
        came_from = tuple(np.unique(numbers[(net > 0)[at] & (diffs > 0)]).tolist())
        values = rows.column("value").take(pa.array(doubtful)).filter(pa.array((net != 0)[at]))
        return cls(came, went, by_place_of[numbers[first[net < 0]]], came_from, bounds_of(values))
