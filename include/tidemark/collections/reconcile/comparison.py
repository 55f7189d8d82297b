"""What one run would change: the source compared with the pinned rows, counted and judged, nothing written yet.

`plan` and `reconcile` both start here, so a plan cannot promise anything else than what a run does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.collections.declarations.collection import OnNullKey
from tidemark.collections.digest.row_layout import NEW, OLD
from tidemark.collections.digest.scan import Scanned, scan_digest
from tidemark.collections.quality.guards import (
    SAMPLE_ROWS,
    Counts,
    check_delete_ratio,
    check_duplicate_keys,
    check_not_empty,
    check_null_keys,
)
from tidemark.collections.reconcile.driver_corrections import SmallCorrections, compare_candidates
from tidemark.collections.reconcile.spark_corrections import LargeCorrections
from tidemark.collections.reconcile.spark_diff import (
    bucket_frame,
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
from tidemark.errors import GuardRefused, SourceMoved
from tidemark.iceberg.files.arrow_values import to_rows, to_tuples

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from tidemark.collections.declarations.collection import Guards
    from tidemark.collections.digest.digest import Digest
    from tidemark.collections.digest.row_layout import RowShape


Corrections = SmallCorrections | LargeCorrections


class CopyNeeded(Exception):
    """The comparison takes more passes than a source that cannot be pinned may be asked for: copy it first."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """How many corrections are expected, and how many there can be at all."""

    expected: float
    at_most: int

    @classmethod
    def of(cls, source: Digest, before: Digest, differing: NDArray[np.int64]) -> _Extent:
        new, old = source.counts[differing], before.counts[differing]
        more_or_less = int(abs(new - old).sum())  # copies of one row all fall into one bucket
        return cls(
            expected=max(2 * estimate_changes(len(differing), before.bucket_count), more_or_less),
            at_most=int(new.sum() + old.sum()),
        )

    @property
    def fits_driver(self) -> bool:
        return fits_driver(expected=self.expected, at_most=self.at_most)


def _finest(left: Digest, right: Digest) -> Digest:
    """Return the finer one of two digests of the same rows."""
    return left if left.bucket_count >= right.bucket_count else right


def _compare_digests(digest: Digest, before: Digest) -> tuple[int, NDArray[np.int64]]:
    """Return the resolution in which two digests can be compared, and the buckets in which they differ."""
    buckets = min(digest.bucket_count, before.bucket_count)
    return buckets, digest.fold(buckets).differing(before.fold(buckets))


def _equal(left: Digest, right: Digest) -> bool:
    """Return whether two digests agree as far as the coarser one can tell."""
    return len(_compare_digests(left, right)[1]) == 0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The corrections of one run, and what the guards say about them.

    ``digest`` is that of all desired rows that were looked at; None if it could not be told without another pass.
    """

    method: Method
    counts: Counts
    corrections: Corrections | None = None
    digest: Digest | None = None
    refusal: GuardRefused | None = None

    @property
    def is_empty(self) -> bool:
        return self.counts.inserted == 0 and self.counts.retracted == 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One source state and one pinned state of the collection, ready to be compared.

    Args:
        shape: Columns and key.
        desired: The source's rows, numbered under ``new_``.
        read_stored: Gives the pinned rows, numbered under ``old_``, with their places; most runs never need them.
        known: The digest of the pinned rows, if a usable one is kept; None means that it has to be scanned.
        looks: The resolutions to look at the source with, one after the other as long as anything differs.
        kept_bucket_count: The resolution to look at the pinned rows with, if that is necessary.
        is_scoped: Whether both sides are limited to a slice.
        is_pinned: Whether every pass over ``desired`` reads the same, unless the source says that it moved.
        guards: What must hold.
        row_bytes: How much memory a row takes, roughly.
        scratch: A folder (URI) for this comparison alone, which the caller removes; it need not exist.
        foreign_rows: Rows of other engines that the commit will drop.
    """

    shape: RowShape
    desired: DataFrame
    read_stored: Callable[[], DataFrame]
    known: Digest | None
    looks: tuple[int, ...]
    kept_bucket_count: int
    is_scoped: bool
    is_pinned: bool
    guards: Guards
    row_bytes: int
    scratch: str
    foreign_rows: int = 0

    def compute(self) -> Difference:
        """Compare, count and judge.

        Raises:
            SourceMoved: If the rows were read from another state of the source than the digest.
            CopyNeeded: If the source cannot be pinned and would be read more often than can be checked.
        """
        if self.guards.on_duplicate_key is not None and not self.is_pinned:
            raise CopyNeeded  # which rows were left out cannot be checked against the first pass
        source = scan_digest(self.desired, self.shape, NEW, self.looks[0])
        before = self.known
        if before is None:
            before = scan_digest(self.read_stored(), self.shape, OLD, self.kept_bucket_count).digest
        counts = Counts(source=source.digest.row_count, stored=before.row_count, foreign=self.foreign_rows)
        try:
            self._check_source(source, counts)
        except GuardRefused as refusal:
            return Difference(method=Method.DIGEST, counts=counts, refusal=refusal)
        digest, bucket_count, differing = self._look_closer(source.digest, before)
        method = choose_method(
            differing=len(differing),
            bucket_count=bucket_count,
            stored_rows=before.row_count,
            is_keyed=self.shape.is_keyed,
        )
        if method is Method.DIGEST:
            return self._judged(method, counts, None, _finest(digest, before))
        return self._compare_rows(digest, before, bucket_count, differing, method)

    def _look_closer(self, digest: Digest, before: Digest) -> tuple[Digest, int, NDArray[np.int64]]:
        """Hash the source in more buckets while that leaves fewer rows to compare.

        Returns:
            The finest digest of the source, the resolution that it was compared in, and the buckets that differ.
        """
        bucket_count, differing = _compare_digests(digest, before)
        for closer in self.looks[1:]:
            if len(differing):
                digest = self._look_again(digest, closer)
                bucket_count, differing = _compare_digests(digest, before)
        finest = before.bucket_count
        if before.row_count and needs_finer_look(differing=len(differing), bucket_count=bucket_count, finest=finest):
            digest = self._look_again(digest, finest)
            bucket_count, differing = _compare_digests(digest, before)
        return digest, bucket_count, differing

    def _look_again(self, seen: Digest, bucket_count: int) -> Digest:
        closer = scan_digest(self.desired, self.shape, NEW, bucket_count).digest
        if not _equal(closer, seen):
            raise SourceMoved("the source changed between two passes that hashed it")
        return closer

    def _check_source(self, source: Scanned, counts: Counts) -> None:
        if source.null_keys and self.guards.on_null_key is OnNullKey.REFUSE:
            sample = self._sample(self.desired.where(self.shape.has_null_key(NEW)))
            check_null_keys(source.null_keys, key=self.shape.key, sample=sample)
        check_not_empty(counts, self.guards, is_scoped=self.is_scoped)

    def _compare_rows(
        self, source: Digest, before: Digest, bucket_count: int, differing: NDArray[np.int64], method: Method
    ) -> Difference:
        desired, stored = self._with_keys(self.desired), self.read_stored()
        if method is Method.BUCKETS:
            wanted = bucket_frame(desired.sparkSession, differing)
            desired = in_buckets(desired, self.shape, NEW, bucket_count, wanted)
            stored = in_buckets(stored, self.shape, OLD, bucket_count, wanted)
        rule = self.guards.on_duplicate_key
        unique = desired if rule is None else first_by(desired, self.shape, rule.first_by)
        extent = _Extent.of(source.fold(bucket_count), before.fold(bucket_count), differing)
        corrections = self._correct(unique, stored, method, source, extent)
        counts = Counts(
            source=source.row_count,
            stored=before.row_count,
            inserted=corrections.inserted,
            retracted=corrections.retracted,
            vanished=corrections.vanished,
            foreign=self.foreign_rows,
        )
        if rule is not None:  # rows were left out on purpose, so the source's digest says nothing about the result
            after = before + corrections.digest(before.bucket_count)
            return self._judged(method, counts, corrections, after)
        agrees = self._adds_up(before, corrections, source)
        if self.shape.is_keyed and (not agrees or corrections.inserts_one_key_twice):
            refusal = self._refuse_duplicates(desired)
            if refusal is not None:
                return Difference(method=method, counts=counts, refusal=refusal)
        if not agrees:
            raise SourceMoved("the source changed between the pass that hashed it and the pass that read its rows")
        after = (
            before + corrections.digest(before.bucket_count) if isinstance(corrections, SmallCorrections) else source
        )
        return self._judged(method, counts, corrections, _finest(source, after))

    def _correct(
        self, desired: DataFrame, stored: DataFrame, method: Method, source: Digest, extent: _Extent
    ) -> Corrections:
        if candidates_fit_driver(extent.at_most, self.row_bytes):
            return compare_candidates(candidates(desired, stored, self.shape).toArrow(), self.shape)
        if extent.fits_driver:
            changes = with_hashes(self._changes(desired, stored, method), self.shape)
            return SmallCorrections.of_changes(changes.toArrow(), self.shape)
        if not self.is_pinned:
            raise CopyNeeded
        if method is Method.LOAD and self.guards.on_duplicate_key is None:
            return LargeCorrections.load(desired, self.shape, rows=source.row_count)
        corrections = LargeCorrections.of(self._changes(desired, stored, method), self.shape, scratch=self.scratch)
        return corrections.collected() or corrections

    def _adds_up(self, before: Digest, corrections: Corrections, source: Digest) -> bool:
        """Return whether the stored rows and the corrections together are the source that was hashed.

        Small corrections are hashed to find out, which also proves that both passes saw one state. Large ones are only
        counted, which finds duplicate keys: their source is pinned, and is asked whether it moved.
        """
        if isinstance(corrections, SmallCorrections):
            after = before + corrections.digest(before.bucket_count)
            return _equal(after, source)
        return before.row_count + corrections.inserted - corrections.retracted == source.row_count

    def _changes(self, desired: DataFrame, stored: DataFrame, method: Method) -> DataFrame:
        if self.shape.is_keyed:
            return keyed_changes(desired, stored, self.shape)
        if method is Method.ROW_HASH_UNION:
            hashes = differing_row_hashes(desired, stored, self.shape)
            desired = with_row_hashes(desired, self.shape, NEW, hashes)
            stored = with_row_hashes(stored, self.shape, OLD, hashes)
        return multiset_changes(desired, stored, self.shape)

    def _refuse_duplicates(self, desired: DataFrame) -> GuardRefused | None:
        duplicates = duplicate_keys(desired, self.shape)
        totals = duplicates.agg(F.count(F.lit(1)).alias("keys"), F.sum("count").alias("rows")).collect()[0]
        sample = [
            {**dict(zip(self.shape.key, row[:-1], strict=True)), "rows": row[-1]}
            for row in to_tuples(duplicates.limit(SAMPLE_ROWS).toArrow())
        ]
        try:
            check_duplicate_keys(totals["keys"], totals["rows"] or 0, key=self.shape.key, sample=sample)
        except GuardRefused as refusal:
            return refusal
        return None

    def _with_keys(self, desired: DataFrame) -> DataFrame:
        return desired.where(~self.shape.has_null_key(NEW)) if self.shape.is_keyed else desired

    def _judged(self, method: Method, counts: Counts, corrections: Corrections | None, digest: Digest) -> Difference:
        refusal = None
        try:
            check_delete_ratio(
                counts, self.guards, sample=lambda: corrections.samples(SAMPLE_ROWS)["retracted"] if corrections else []
            )
        except GuardRefused as refused:
            refusal = refused
        return Difference(method=method, counts=counts, corrections=corrections, digest=digest, refusal=refusal)

    def _sample(self, frame: DataFrame) -> list[dict[str, object]]:
        rows = frame.select(*self.shape.columns(NEW)).limit(SAMPLE_ROWS).toArrow()
        return to_rows(rows.rename_columns(self.shape.schema.names))
