"""Which parts of a range a producer has not delivered yet: what a backfill of append-only rows still has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.staged.audit import whole_ranges
from tidemark.iceberg.shard.ledger import Ledger, Range

if TYPE_CHECKING:
    from tidemark.iceberg.shard.head import ShardHead


def missing_ranges(
    head: ShardHead, wanted: Range, *, producer: str, collection: str, generation: int
) -> tuple[Range, ...]:
    """Return the holes of ``wanted``, in order: neither published nor staged whole by this deployment."""
    accepted = head.state.ledgers.get(producer, Ledger())
    for each in whole_ranges(head, wanted, producer=producer, collection=collection, generation=generation):
        if not accepted.overlaps(each):
            accepted = accepted.add(each)
    return holes_in(accepted, wanted)


def holes_in(ledger: Ledger, wanted: Range) -> tuple[Range, ...]:
    """Return the parts of ``wanted`` that ``ledger`` lacks, in order."""
    holes = []
    start = wanted.start
    for each in ledger.overlaps(wanted):
        if each.start > start:
            holes.append(Range(start, each.start))
        start = each.end
    if start < wanted.end:
        holes.append(Range(start, wanted.end))
    return tuple(holes)


def shared_parts(ledger: Ledger, wanted: Range) -> tuple[Range, ...]:
    """Return the parts of ``wanted`` that ``ledger`` has, in order."""
    return tuple(Range(max(each.start, wanted.start), min(each.end, wanted.end)) for each in ledger.overlaps(wanted))
