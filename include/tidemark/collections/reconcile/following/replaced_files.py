"""Finds the corrections from the files of a source that came, went or were replaced.

What was in the files that went is gone; their digests are kept. Rows that came and are stored as they are were in those
files. What the digests then still miss are rows that went for good: few enough in a bucket, their sum tells which.
Whatever is found must add up to the new sum of all files, or the rows are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.collections.declarations.collection import Guards, OnNullKey
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.driver_room import DRIVER_ROOM
from tidemark.collections.digest.file_digests import FileDigest, FileDigests
from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.digest.scan import DRIVER_HASHES, FILE, VALUE, FileScan, include_by_file
from tidemark.collections.quality.guards import Counts
from tidemark.collections.reconcile.comparison import Difference, Scan
from tidemark.collections.reconcile.driver_corrections import SmallCorrections
from tidemark.collections.reconcile.following.found import describe
from tidemark.collections.reconcile.following.row_lookup import (
    Counted,
    RowLookup,
    as_pairs,
    bounds_of,
    collect,
    longs,
    subtract,
    take_copies,
)
from tidemark.collections.reconcile.following.settling import settle
from tidemark.collections.reconcile.strategy import UNPACKED, Method, candidates_fit_driver, is_worth_filtering
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.sources.errors import CannotFollow
from tidemark.collections.sources.file_listing import FileState
from tidemark.collections.sources.followed.file_set import FollowedFiles
from tidemark.collections.sources.pins import is_settled

log = logging.getLogger(__name__)

_BYTES_PER_ROW = 64  # of the driver's memory for the hashes of each row that came, or is stored near
MOST_KEYS = 4_000_000  # that Spark broadcasts
MOST_NEAR = 2_000_000  # stored rows whose hashes the driver takes, for whatever question
MOST_WHOLE = 64 << 20  # bytes of rows that the driver takes at once, changed or not
MOST_SHARE = 0.5  # of the bytes of all files: comparing all rows reads the files once or twice
LEAST_SPARED = 2 << 20  # bytes that are not read; following takes some jobs more
_NO_ROWS = pa.table({name: pa.array([], pa.int64()) for name in ("position", "hash", VALUE)})
_UNEVEN = 4  # times as many rows as their bytes say may lie in the files that came


@dataclass(frozen=True)
class FileSetChanges:
    """How the files differ from those that the collection was made from; files that were replaced came and went."""

    came: tuple[FileState, ...]
    gone: tuple[str, ...]  # names

    @classmethod
    def between(cls, kept: FileDigests, files: Sequence[FileState]) -> FileSetChanges:
        """Compare the files that are kept with the present ones."""
        states = {file.uri: str(file) for file in files}
        came = tuple(file for file in files if not _is_same(kept.files.get(file.uri), states[file.uri]))
        gone = tuple(name for name, file in kept.files.items() if not _is_same(file, states.get(name, "")))
        return cls(came, gone)

    @property
    def came_bytes(self) -> int:
        return sum(file.size_bytes for file in self.came)

    def to_json(self) -> dict[str, int]:
        """Return the numbers of files, for the report."""
        replaced = len({file.uri for file in self.came} & set(self.gone))
        return {"added": len(self.came) - replaced, "removed": len(self.gone) - replaced, "replaced": replaced}


def _is_same(file: FileDigest | None, state: str) -> bool:
    return file is not None and file.state == state != ""


class Unsettled(Exception):
    """The digests of both sides are known, and which rows went is not: compare those of differing buckets."""

    def __init__(self, scan: Scan) -> None:
        super().__init__("which rows went is not known")
        self.scan = scan


@dataclass(frozen=True)
class FollowingFiles:
    """One run that follows the changes of its source."""

    files: FollowedFiles
    kept: FileDigests  # of the stored rows
    lookup: RowLookup
    guards: Guards
    where: str  # names the source in messages
    leaves_out_others: bool  # columns of the source that the collection does not have
    since_ms: int  # when the run looked at the source
    _digests: dict[str, FileDigest] = field(default_factory=dict)

    @property
    def shape(self) -> RowShape:
        return self.lookup.shape

    @cached_property
    def changes(self) -> FileSetChanges:
        return FileSetChanges.between(self.kept, self.files.listing.files)

    @property
    def digests(self) -> FileDigests | None:
        """The digests of the present files, unless there are too many; ask after ``compare``."""
        present = (file.uri for file in self.files.listing.files)
        files = {name: self._digests.get(name) or self.kept.files[name] for name in present}
        return FileDigests(self.kept.decided_by, files).fitted()

    def compare(self) -> Difference:
        """Return the corrections; the guards have not judged their number yet.

        Raises ``CannotFollow`` if all rows are to be compared, ``Unsettled`` if only those of some buckets are.
        """
        before = self.lookup.pinned.digest
        assert before is not None  # noqa: S101 - nobody follows without one
        total, changes = self.kept.total(), self.changes
        if total.bucket_count > before.bucket_count or len(total.differing(before)):
            what = "they do not add up to the digest of the collection"
            log.warning("the digests of the files of %s are made anew: %s", self.lookup.pinned.shard.name, what)
            raise CannotFollow("the digests of files do not add up to that of the collection")
        most_rows = self._most_rows(before.row_count)
        with DRIVER_ROOM.taking(_BYTES_PER_ROW * most_rows + self._most_near_bytes(before.row_count)):
            came, came_digest = self._read_came(most_rows)
            gone_digest = self.kept.total(changes.gone)
            after = total + -gone_digest + came_digest
            if (after.counts < 0).any():
                raise CannotFollow("more rows went than are stored")
            net = _Net(came, gone_digest, self.kept, changes, self.lookup)
            try:
                corrections = self._correct_keyed(net) if self.shape.is_keyed else self._correct_multiset(net)
            except _TooManyWent as reason:
                raise self._unsettled(before, after, reason) from None
        difference = describe(corrections, self.lookup.pinned, self.guards)
        assert difference.digest is not None  # noqa: S101 - ``describe`` adds the corrections to one
        if len(difference.digest.differing(after)):
            raise CannotFollow("what was found does not add up to the rows of all files")
        return difference

    def _most_rows(self, row_count: int) -> int:
        """Return how many rows came at most. Raises ``CannotFollow`` if comparing all rows reads less."""
        whole, came = self.files.listing.size_bytes, self.changes.came_bytes
        if came > MOST_SHARE * whole:
            raise CannotFollow("most is in files that have changed: comparing all rows takes less")
        if whole - came < LEAST_SPARED:
            stays = f"the files that stay have less than {LEAST_SPARED >> 20} MiB"
            raise CannotFollow(f"all is little: {stays}, and comparing all rows takes less")
        most_rows = int(_UNEVEN * row_count * came / max(1, whole))
        if most_rows > DRIVER_HASHES:
            raise CannotFollow("too many rows are in the files that changed")
        return most_rows

    def _most_near_bytes(self, row_count: int) -> int:
        """Return how much the stored rows near take at most, of so many in all: their hashes, or the rows."""
        hashes, rows = _BYTES_PER_ROW * min(row_count, MOST_NEAR), self.lookup.pinned.row_bytes * row_count
        return max(hashes, min(rows, MOST_WHOLE))

    def _read_came(self, most: int) -> tuple[pa.Table, Digest]:
        """Return the hashes of the rows that came, and their digest; keep the digests of their files."""
        bucket_count = self.kept.bucket_count
        if not self.changes.came:
            return _NO_ROWS, Digest.empty(bucket_count)
        rows, by_file = self._hashes_that_came(most), dict[int, FileScan]()
        for batch in rows.to_batches():
            include_by_file(by_file, batch, "position", bucket_count)
        empty = FileScan(Digest.empty(bucket_count))
        self._digests.update(
            describe_files(self.files, self.changes.came, by_file, since_ms=self.since_ms, empty=empty)
        )
        return rows, reduce(Digest.__add__, (self._digests[file.uri].digest for file in self.changes.came))

    def _hashes_that_came(self, most: int) -> pa.Table:
        """Return ``position``, ``hash``, ``FILE`` and ``VALUE`` of all rows that came and have a key.

        And the columns, if the rows are little. Raises ``CannotFollow`` if more rows came than ``most``.
        """
        shape = self.shape
        position = shape.position(NEW)
        if shape.is_keyed:
            position = F.when(~shape.has_null_key(NEW), position)
        hashes = self._rows.select(
            *(self.lookup.columns(NEW) if self._takes_rows else []),
            shape.hash(NEW).alias("hash"),
            position.alias("position"),
            FILE,
            self.lookup.value.alias(VALUE),
        )
        rows = collect(hashes, most)
        keyed = pc.is_valid(rows.column("position"))
        if self.guards.on_null_key is OnNullKey.REFUSE and not pc.all(keyed, min_count=0).as_py():
            raise CannotFollow("a row without a key came")
        return rows.filter(keyed)

    @cached_property
    def _rows(self) -> DataFrame:
        """The rows that came, numbered, with ``FILE``."""
        shape = self.shape
        stored = from_spark(shape.schema, where=f"collection {self.lookup.pinned.shard.name!r}")
        fitted = conform(
            self.files.open(self.changes.came),
            stored,
            where=self.where,
            leave_out_others=self.leaves_out_others,
            also=[self.files.number.alias(FILE)],
        )
        return shape.number(fitted, NEW, F.col(FILE))

    def _correct_keyed(self, net: _Net) -> SmallCorrections:
        """A row that came replaces the stored one of its key; what is not replaced, and was in a file that went, went.

        All other rows of these files are stored with the values that the files had.
        """
        came = net.came
        if len(np.unique(came["position"])) < len(came):
            raise CannotFollow("a key came more than once")
        if len(came) > MOST_KEYS:
            raise CannotFollow("too many rows are in the files that changed")
        here = self._find_here(net, by_key=True)
        if len(np.unique(here["position"])) < len(here):
            raise CannotFollow("a key is stored more than once")
        lost = self._find_lost(net, here)
        went = np.concatenate([here[~np.isin(here, came)], lost])
        return self._corrections(net, Counted.of(came[~np.isin(came, here)]), Counted.of(went))

    def _correct_multiset(self, net: _Net) -> SmallCorrections:
        """A row that came and is stored was in a file that went; the youngest of equal copies go."""
        came = Counted.of(net.came)
        if len(came) > MOST_KEYS:
            raise CannotFollow("too many rows are in the files that changed")
        here = Counted.of(self._find_here(net))
        stayed = np.repeat(here.pairs, np.minimum(here.counts, came.counts[np.searchsorted(came.pairs, here.pairs)]))
        return self._corrections(net, subtract(came, Counted.of(stayed)), Counted.of(self._find_lost(net, stayed)))

    def _corrections(self, net: _Net, came: Counted, went: Counted) -> SmallCorrections:
        """Insert the rows that came, and retract those that went."""
        if not len(came):
            new = self.lookup.no_rows()
        elif self._takes_rows:
            rows = net.rows.filter(pa.array(np.isin(net.came, came.pairs)))
            new = take_copies(rows.drop_columns([FILE, VALUE]), came)
        else:
            new = self.lookup.came([(self._rows, self.shape.hash(NEW))], came)
        if net.near is not None and net.near_rows is not None:
            stored = net.near_rows.filter(pa.array(np.isin(net.near, went.pairs)))
        else:
            stored = self.lookup.stored(went, net.bounds)
        old = take_copies(stored, went).drop_columns(["time"])
        return SmallCorrections(new=new, old=old, shape=self.shape)

    @property
    def _takes_rows(self) -> bool:
        """Whether all rows that came are collected at once, and not first their hashes, and then some of the rows."""
        return self.changes.came_bytes <= MOST_WHOLE // UNPACKED

    def _find_here(self, net: _Net, *, by_key: bool = False) -> NDArray[np.void]:
        """Return the stored rows that equal one that came, or ``by_key`` have the key of one; each copy."""
        if net.near is None:
            return self.lookup.stored_hashes(net.came_bounds, wanted=Counted.of(net.came), by_key=by_key)
        is_here = np.isin(net.near["position"], net.came["position"]) if by_key else np.isin(net.near, net.came)
        return net.near[is_here]

    def _find_lost(self, net: _Net, stayed: NDArray[np.void]) -> NDArray[np.void]:
        """Return the rows that were in a file that went, but for those that ``stayed`` or were replaced, each copy.

        Raises ``_TooManyWent`` if they are not known.
        """
        bucket_count = net.gone.bucket_count
        lost = net.gone + -Digest.of_hashes(stayed["position"], stayed["identity"], bucket_count)
        if (lost.counts < 0).any():
            raise _TooManyWent("rows that came are in other files, too")
        if ((lost.counts == 0) & (lost.sums != 0).any(axis=0)).any():
            raise _TooManyWent("a stored row is not the one that its file had")
        buckets = np.flatnonzero(lost.counts)
        if not len(buckets):
            return stayed[:0]
        rows = net.near
        if rows is None:
            share = len(buckets) / bucket_count
            most = int(DRIVER_HASHES / share)
            if self.lookup.count_between(net.gone_bounds, most=most) > most:
                raise _TooManyWent("too many stored rows may have gone")
            rows = self.lookup.stored_hashes(net.gone_bounds, buckets=buckets, bucket_count=bucket_count)
        rest = subtract(Counted.of(rows), Counted.of(stayed))
        rows = np.repeat(rest.pairs, rest.counts)
        gone, unsettled = settle(lost, rows["position"].copy(), rows["identity"].copy())
        if unsettled:
            raise _TooManyWent("many rows went, and which is not known")
        return rows[gone]

    def _unsettled(self, before: Digest, after: Digest, reason: _TooManyWent) -> Exception:
        """Return what to raise: only the rows of differing buckets are compared, if these are few."""
        differing = len(after.differing(before))
        at_most = int((before.row_count + after.row_count) * differing / after.bucket_count)
        fits = candidates_fit_driver(at_most, self.lookup.pinned.row_bytes, Method.BUCKETS)
        if not fits or not is_worth_filtering(differing=differing, bucket_count=after.bucket_count):
            return CannotFollow(str(reason))
        if not after.row_count and not self.guards.allow_empty:
            return CannotFollow("no row would be left")
        foreign = self.lookup.pinned.head.foreign
        counts = Counts(source=after.row_count, stored=before.row_count, foreign=foreign.added if foreign else 0)
        return Unsettled(Scan(source=after, before=before, counts=counts))


def describe_files(
    files: FollowedFiles, some: Sequence[FileState], by_file: Mapping[int, FileScan], *, since_ms: int, empty: FileScan
) -> dict[str, FileDigest]:
    """Return what a scan found in ``some`` of the files; one of which the scan saw no row is ``empty``.

    A file that may have changed in the second in which the run looked at it has no state.

    Raises ``CannotFollow`` if the scan saw another file.
    """
    numbers = {file.uri: number for number, file in files.by_number.items()}
    if not by_file.keys() <= {numbers.get(file.uri) for file in some}:
        raise CannotFollow("Spark read other files than those that were listed")
    scans = {file.uri: by_file.get(numbers.get(file.uri, -1), empty) for file in some}
    return {
        file.uri: FileDigest(
            str(file) if is_settled(file, since_ms) else "", scans[file.uri].digest, scans[file.uri].bounds
        )
        for file in some
    }


class _TooManyWent(Exception):
    """Which rows went is not known, for the reason that the message says."""


@dataclass(frozen=True)
class _Net:
    """The rows that came, and the digest of those that were in files that went."""

    rows: pa.Table
    gone: Digest
    kept: FileDigests
    changes: FileSetChanges
    lookup: RowLookup

    @cached_property
    def near(self) -> NDArray[np.void] | None:
        """The hashes of the stored rows between the values of rows that came or went, if these are not too many."""
        if (rows := self.near_rows) is not None:
            return as_pairs(longs(rows, "position"), longs(rows, "hash"))
        return self.lookup.stored_hashes(self.bounds) if self._near_count <= MOST_NEAR else None

    @cached_property
    def near_rows(self) -> pa.Table | None:
        """The rows themselves, if these are few: reading some of them again would take longer."""
        return self.lookup.stored_between(self.bounds) if self._near_count <= self._most_whole else None

    @cached_property
    def _near_count(self) -> int:
        """How many stored rows are near: at least so many as there are, unless they are too many to be taken."""
        return self.lookup.count_between(self.bounds, most=max(MOST_NEAR, self._most_whole))

    @property
    def _most_whole(self) -> int:
        return MOST_WHOLE // self.lookup.pinned.row_bytes

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The smallest and the largest value of rows that came or went."""
        return _hull([self.came_bounds] if len(self.came) else [], self._gone_bounds)

    @cached_property
    def came(self) -> NDArray[np.void]:
        return as_pairs(longs(self.rows, "position"), longs(self.rows, "hash"))

    @property
    def came_bounds(self) -> tuple[int, int] | None:
        return bounds_of(self.rows.column(VALUE))

    @property
    def gone_bounds(self) -> tuple[int, int] | None:
        return _hull(self._gone_bounds)

    @property
    def _gone_bounds(self) -> list[tuple[int, int] | None]:
        files = (self.kept.files[name] for name in self.changes.gone)
        return [file.bounds for file in files if file.digest.row_count]


def _hull(*bounds: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the smallest and the largest of all; None if one is not known."""
    known = [each for some in bounds for each in some if each is not None]
    if not known or len(known) < sum(map(len, bounds)):
        return None
    return min(low for low, _ in known), max(high for _, high in known)
