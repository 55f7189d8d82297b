"""Compares the source with the pinned rows: counts and judges the corrections, but writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.declarations.collection import Guards, OnNullKey
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.driver_room import DRIVER_ROOM
from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.digest.scan import FileScan, Scanned, scan_digest, scan_files
from tidemark.collections.quality.guards import (
    SAMPLE_FILE,
    SAMPLE_ROWS,
    Counts,
    Sample,
    check_corrections,
    check_duplicate_keys,
    check_not_empty,
    check_null_keys,
)
from tidemark.collections.reconcile.driver_corrections import SmallCorrections, compare_candidates
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.collections.reconcile.spark_corrections import LargeCorrections
from tidemark.collections.reconcile.spark_diff import (
    bucket_set,
    candidates,
    differing_row_hashes,
    duplicate_keys,
    first_by,
    in_buckets,
    keyed_changes,
    multiset_changes,
    with_hashes,
    with_row_hashes,
)
from tidemark.collections.reconcile.strategy import (
    Method,
    candidates_fit_driver,
    choose_method,
    estimate_changes,
    fits_driver,
    needs_finer_look,
)
from tidemark.collections.sources.followed.file_set import FollowedFiles, uri_of
from tidemark.errors import GuardRefused, SourceMoved
from tidemark.iceberg.files.arrow_values import to_rows

Corrections = SmallCorrections | LargeCorrections


def kept_rows(desired: DataFrame, shape: RowShape, guards: Guards) -> DataFrame:
    """Return the rows of a source that a collection keeps: none with a NULL in the key, and one row of each key."""
    if shape.is_keyed:
        desired = desired.where(~shape.has_null_key(NEW))
    return desired if (rule := guards.on_duplicate_key) is None else first_by(desired, shape, rule.first_by)


class CopyNeeded(Exception):
    """The comparison needs more passes than a source without a pin allows: copy the source first."""


def _finest(left: Digest, right: Digest) -> Digest:
    """Return the finer one of two digests of the same rows."""
    return left if left.bucket_count >= right.bucket_count else right


def _equal(left: Digest, right: Digest) -> bool:
    """Say whether two digests are equal in the buckets of the coarser one."""
    return len(left.differing(right)) == 0


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The digests and row counts of both sides; ``refusal`` if a guard refuses the source as a whole.

    ``by_file`` has the digests of the files that have rows, by their numbers, if they are known.
    """

    source: Digest
    before: Digest
    counts: Counts
    by_file: dict[int, FileScan] | None = None
    refusal: GuardRefused | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The corrections of one run, and the refusal of a guard.

    ``digest`` covers all desired rows that were scanned; None if the digest is unknown without another pass.
    """

    method: Method
    counts: Counts
    corrections: Corrections | None = None
    digest: Digest | None = None
    refusal: GuardRefused | None = None

    @property
    def is_empty(self) -> bool:
        return self.counts.inserted == 0 and self.counts.retracted == 0

    def judged(self, guards: Guards) -> Difference:
        """Return the difference, with a refusal if too large a share of the rows would vanish."""
        corrections = self.corrections
        if self.refusal is not None:
            return self
        try:
            check_corrections(
                self.counts, guards, sample=lambda: corrections.samples(SAMPLE_ROWS)["retracted"] if corrections else []
            )
        except GuardRefused as refusal:
            return replace(self, refusal=refusal)
        return self


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One state of the source and one pinned state of the collection, ready to be compared."""

    pinned: Pinned  # most runs never read the pinned rows
    condition: Column | None  # limits the pinned rows to a slice; ``desired`` is limited already; None: no slice
    desired: DataFrame  # the rows of the source, numbered under ``new_``
    source_is_pinned: bool  # whether every pass over ``desired`` reads the same rows, unless the source has moved
    state: str  # the name of the state of the source; may be empty
    guards: Guards
    scratch: str  # a folder (URI) for this comparison alone, which need not exist; the caller removes the folder
    expects_nothing: bool = False  # whether most likely no row is to be corrected
    files: FollowedFiles | None = None  # that ``desired`` has the rows of
    keeps_files: bool = False  # whether ``desired`` has the columns ``FILE`` and ``VALUE``, for a digest of each file

    @property
    def shape(self) -> RowShape:
        return self.pinned.shape

    def scan(self) -> Scan:
        """Compute or look up the digests of both sides, and check the source as a whole.

        Raises:
            SourceMoved: If two passes over the source saw two states.
            CopyNeeded: If the source cannot be pinned, and a digest could not verify all passes.
        """
        if self.guards.on_duplicate_key is not None and not self.source_is_pinned:
            raise CopyNeeded  # the first pass cannot verify which rows were left out
        pinned, is_scoped = self.pinned, self.condition is not None
        bucket_counts = pinned.bucket_counts(self.state, expects_nothing=self.expects_nothing)
        if is_scoped:
            bucket_counts = bucket_counts[-1:]
        source = self._scan_source(bucket_counts[0])
        before = None if is_scoped and not pinned.head.is_empty else pinned.digest
        if before is None:
            bucket_count = bucket_counts[-1] if is_scoped else pinned.missing_bucket_count
            rows, expected = pinned.read(self.condition), pinned.head.row_count
            before = scan_digest(rows, self.shape, OLD, bucket_count, expected_rows=expected).digest
        foreign = pinned.head.foreign.added if pinned.head.foreign else 0
        counts = Counts(source=source.digest.row_count, stored=before.row_count, foreign=foreign)
        try:
            self._check_source(source, counts)
        except GuardRefused as refusal:
            return Scan(source=source.digest, before=before, counts=counts, refusal=refusal)
        finest = self._scan_finer(source, before, bucket_counts[1:])
        return Scan(source=finest.digest, before=before, counts=counts, by_file=finest.by_file)

    def compare(self, scan: Scan) -> Difference:
        """Return the corrections; the guards have not judged their number yet.

        Raises:
            SourceMoved: If the rows come from another state of the source than the digest.
            CopyNeeded: If the source cannot be pinned, and a digest could not verify all passes.
        """
        if scan.refusal is not None:
            return Difference(method=Method.DIGEST, counts=scan.counts, refusal=scan.refusal)
        bucket_count = min(scan.source.bucket_count, scan.before.bucket_count)
        differing = scan.source.differing(scan.before)
        method = choose_method(
            differing=len(differing),
            bucket_count=bucket_count,
            stored_rows=scan.before.row_count,
            is_keyed=self.shape.is_keyed,
        )
        if method is Method.DIGEST:
            return Difference(method=method, counts=scan.counts, digest=_finest(scan.source, scan.before))
        return self._compare_rows(scan, bucket_count, differing, method)

    def _scan_finer(self, scanned: Scanned, before: Digest, finer: tuple[int, ...]) -> Scanned:
        """Hash the source in more buckets while more buckets leave fewer rows to compare; return the finest digest."""
        for bucket_count in finer:
            if not _equal(scanned.digest, before):
                scanned = self._scan_again(scanned.digest, bucket_count)
        differing, finest = len(scanned.digest.differing(before)), before.bucket_count
        bucket_count = min(scanned.digest.bucket_count, finest)
        if before.row_count and needs_finer_look(differing=differing, bucket_count=bucket_count, finest=finest):
            scanned = self._scan_again(scanned.digest, finest)
        return scanned

    def _scan_again(self, coarser: Digest, bucket_count: int) -> Scanned:
        finer = self._scan_source(bucket_count)
        if not _equal(finer.digest, coarser):
            raise SourceMoved("the source changed between two passes that hashed it")
        return finer

    def _scan_source(self, bucket_count: int) -> Scanned:
        files, expected = self.files, self.pinned.head.row_count
        if files is None or not self.keeps_files:
            return scan_digest(self.desired, self.shape, NEW, bucket_count, expected_rows=expected)
        sizes = {number: file.size_bytes for number, file in files.by_number.items()}
        expected = expected or files.guess_rows()
        return scan_files(self.desired, self.shape, NEW, bucket_count, expected_rows=expected, sizes=sizes)

    def _check_source(self, source: Scanned, counts: Counts) -> None:
        if source.null_keys and self.guards.on_null_key is OnNullKey.REFUSE:
            sample = self._sample(self._placed(self.desired.where(self.shape.has_null_key(NEW))))
            check_null_keys(source.null_keys, key=self.shape.key, sample=sample, also=self._find_duplicates())
        check_not_empty(counts, self.guards, is_scoped=self.condition is not None)

    def _find_duplicates(self) -> GuardRefused | None:
        """Return the refusal of duplicate keys, if they are refused and there are some; without rows of a NULL key."""
        if self.guards.on_duplicate_key is not None:
            return None
        try:
            self._check_duplicates(self.desired.where(~self.shape.has_null_key(NEW)))
        except GuardRefused as refusal:
            return refusal
        return None

    def _compare_rows(self, scan: Scan, bucket_count: int, differing: NDArray[np.int64], method: Method) -> Difference:
        source, before = scan.source, scan.before
        desired, stored = self.desired, self.pinned.read(self.condition)
        if self.shape.is_keyed:
            desired = desired.where(~self.shape.has_null_key(NEW))
        if method is Method.BUCKETS:
            wanted = bucket_set(differing, bucket_count)
            desired = in_buckets(desired, self.shape, NEW, bucket_count, wanted)
            stored = in_buckets(stored, self.shape, OLD, bucket_count, wanted)
        rule = self.guards.on_duplicate_key
        unique = desired if rule is None else first_by(desired, self.shape, rule.first_by)
        new, old = (side.fold(bucket_count).counts[differing] for side in (source, before))
        more_or_less = int(abs(new - old).sum())  # all copies of one row fall into one bucket
        expected = max(2 * estimate_changes(len(differing), bucket_count), more_or_less)
        at_most = int(new.sum() + old.sum())
        corrections = self._correct(unique, stored, method, source.row_count, expected=expected, at_most=at_most)
        inserted, retracted = corrections.inserted, corrections.retracted
        vanished = max(0, retracted - (corrections.updated if self.shape.is_keyed else inserted))
        counts = replace(scan.counts, inserted=inserted, retracted=retracted, vanished=vanished)
        if rule is not None:  # some rows were left out, so the source and the result have different digests
            after = before + corrections.digest(before.bucket_count)
            return Difference(method=method, counts=counts, corrections=corrections, digest=after)
        # Stored rows plus small corrections must have the digest of the source: equal digests also prove that both
        # passes saw one state. Large corrections are only counted, which finds duplicate keys: their source is pinned,
        # and ``moved`` is checked.
        if isinstance(corrections, SmallCorrections):
            after = before + corrections.digest(before.bucket_count)
            agrees = _equal(after, source)
        else:
            after = source
            agrees = before.row_count + inserted - retracted == source.row_count
        if self.shape.is_keyed and (not agrees or corrections.inserts_one_key_twice):
            try:
                self._check_duplicates(desired)
            except GuardRefused as refusal:
                return Difference(method=method, counts=counts, refusal=refusal)
        if not agrees:
            raise SourceMoved("the source changed between the pass that hashed it and the pass that read its rows")
        return Difference(method=method, counts=counts, corrections=corrections, digest=_finest(source, after))

    def _correct(
        self, desired: DataFrame, stored: DataFrame, method: Method, row_count: int, *, expected: float, at_most: int
    ) -> Corrections:
        """Compare both sides; ``row_count`` is that of the source, the bounds are numbers of corrections."""
        if candidates_fit_driver(at_most, self.pinned.row_bytes, method):
            with DRIVER_ROOM.taking(at_most * self.pinned.row_bytes):
                return compare_candidates(candidates(desired, stored, self.shape).toArrow(), self.shape)
        if fits_driver(expected=expected, at_most=at_most):
            changes = with_hashes(self._changes(desired, stored, method), self.shape)
            return SmallCorrections.of_changes(changes.toArrow(), self.shape)
        if not self.source_is_pinned:
            raise CopyNeeded
        if method is Method.LOAD and self.guards.on_duplicate_key is None:
            return LargeCorrections.load(desired, self.shape, rows=row_count)
        corrections = LargeCorrections.of(self._changes(desired, stored, method), self.shape, scratch=self.scratch)
        return corrections.collected() or corrections

    def _changes(self, desired: DataFrame, stored: DataFrame, method: Method) -> DataFrame:
        if self.shape.is_keyed:
            return keyed_changes(desired, stored, self.shape)
        if method is Method.ROW_HASH_UNION:
            hashes = differing_row_hashes(desired, stored, self.shape)
            desired = with_row_hashes(desired, self.shape, NEW, hashes)
            stored = with_row_hashes(stored, self.shape, OLD, hashes)
        return multiset_changes(desired, stored, self.shape)

    def _check_duplicates(self, desired: DataFrame) -> None:
        duplicates = duplicate_keys(desired, self.shape)
        totals = duplicates.agg(F.count(F.lit(1)).alias("keys"), F.sum("count").alias("rows")).collect()[0]
        few = F.broadcast(duplicates.limit(SAMPLE_ROWS // 2).drop("count"))
        keys = [f"{NEW}{n}" for n in self.shape.key_indexes]
        sample = self._sample(self._placed(desired).join(few, on=keys, how="left_semi").sort(*keys))
        check_duplicate_keys(totals["keys"], totals["rows"] or 0, key=self.shape.key, sample=sample)

    def _placed(self, rows: DataFrame) -> DataFrame:
        """Add the file to rows of the source, if these are of files: before any join, behind which Spark forgets it."""
        return rows if self.files is None else rows.withColumn(SAMPLE_FILE, self.files.path)

    def _sample(self, rows: DataFrame) -> Sample:
        """Return some rows of ``_placed`` for a refusal."""
        columns, names = self.shape.columns(NEW), self.shape.schema.names
        if self.files is None:
            return to_rows(rows.select(*columns).limit(SAMPLE_ROWS).toArrow().rename_columns(names))
        found = rows.select(*columns, SAMPLE_FILE).limit(SAMPLE_ROWS).toArrow()
        sample = to_rows(found.rename_columns([*names, SAMPLE_FILE]))
        return [{**row, SAMPLE_FILE: uri_of(row[SAMPLE_FILE])} for row in sample]
