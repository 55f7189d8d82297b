"""What a run that follows its source has found, in the terms of a comparison of all rows."""

from __future__ import annotations

from dataclasses import replace

from tidemark.collections.declarations.collection import Guards
from tidemark.collections.digest.digest import Digest
from tidemark.collections.quality.guards import Counts
from tidemark.collections.reconcile.comparison import Difference
from tidemark.collections.reconcile.driver_corrections import SmallCorrections
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.sources.errors import CannotFollow


def describe(
    corrections: SmallCorrections, pinned: Pinned, guards: Guards, *, before: Digest | None = None
) -> Difference:
    """Return the difference that the corrections make; ``before`` is the digest of the stored rows, if none is kept.

    Raises ``CannotFollow`` if the corrections cannot be right, or a guard wants to look at all rows.
    """
    before = before or pinned.digest
    assert before is not None  # noqa: S101 - nobody follows without one
    digest = before + corrections.digest(before.bucket_count)
    if (digest.counts < 0).any():
        raise CannotFollow("more rows went than are stored")
    if not digest.row_count and not guards.allow_empty:
        raise CannotFollow("no row would be left")
    inserted, retracted = corrections.inserted, corrections.retracted
    counts = replace(
        Counts(source=digest.row_count, stored=before.row_count),
        inserted=inserted,
        retracted=retracted,
        vanished=max(0, retracted - (corrections.updated if pinned.shape.is_keyed else inserted)),
        foreign=pinned.head.foreign.added if pinned.head.foreign else 0,
    )
    found = corrections if inserted or retracted else None
    return Difference(method=Method.CHANGED_FILES, counts=counts, corrections=found, digest=digest)
