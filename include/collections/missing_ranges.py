"""Which parts of a range a producer has not delivered yet: what a backfill of append-only rows still has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.collections.staged_batches import queued_batches
from include.persist.ledger import Ledger, Range
from include.persist.staging import read_intact

if TYPE_CHECKING:
    from include.persist.shard_head import ShardHead


def missing_ranges(
    head: ShardHead, wanted: Range, *, producer: str, collection: str, generation: int
) -> tuple[Range, ...]:
    """Return the holes of ``wanted``, in order: neither published nor staged intact by this deployment."""
    accepted = head.state.ledgers.get(producer, Ledger())
    for queued in queued_batches(head, collection=collection, generation=generation):
        if queued.name.producer != producer or not Ledger((queued.name.range,)).overlaps(wanted):
            continue
        intact = read_intact(head.table, queued.branch, None, of_present_schema=False)
        if intact is not None and not accepted.overlaps(queued.name.range):
            accepted = accepted.add(queued.name.range)
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
