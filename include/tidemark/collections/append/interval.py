"""Appends what an interval still lacks: what is there already is left alone, and every hole becomes a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.collections.append.append import check_append_only
from tidemark.collections.append.missing_ranges import holes_in, missing_ranges, shared_parts
from tidemark.errors import RangeOverlap
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.interval import Interval
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

ATTEMPTS = 3


def append_missing(
    shard: Shard,
    interval: Interval,
    append_part: Callable[[Interval], CollectionReport],
    *,
    producer: str,
    deployment: Deployment,
) -> CollectionReport:
    """Append the parts of ``interval`` that ``producer`` has not delivered yet, oldest first.

    Args:
        shard: An append-only collection.
        interval: What is wanted; the batch of a part is named by the part, in ms.
        append_part: Appends one part, once; not called if nothing is missing.
        producer: Whose ledger.
        deployment: Whose this is.

    Returns:
        ``staged`` if any part is not visible yet, else ``appended``, or ``skipped`` if nothing was missing. The details
        say which parts of the interval are published now, whoever published them, and which are staged.

    Raises:
        RangeOverlap: If others kept delivering overlapping parts.
        TidemarkError: As ``append_part``.
    """
    wanted = Range(interval.start_ms, interval.end_ms)
    done: list[CollectionReport] = []
    for attempt in range(1, ATTEMPTS + 1):
        head = shard.load()
        check_append_only(head, shard.name)
        missing = missing_ranges(
            head, wanted, producer=producer, collection=shard.name, generation=deployment.generation
        )
        try:
            done += [append_part(Interval(*part)) for part in missing]
        except RangeOverlap:
            if attempt == ATTEMPTS:
                raise
            continue  # another run filled a part of it meanwhile: see what is left
        break
    return _sum_up(done, shard.load() if done else head, wanted, producer)


def _sum_up(done: list[CollectionReport], head: ShardHead, wanted: Range, producer: str) -> CollectionReport:
    ledger = head.state.ledgers.get(producer, Ledger())
    published, staged = shared_parts(ledger, wanted), holes_in(ledger, wanted)
    outcome = Outcome.STAGED if staged else Outcome.APPENDED if done else Outcome.SKIPPED
    uppers = [each.upper for each in done if each.upper is not None]
    return CollectionReport(
        outcome=outcome,
        lower=next((each.lower for each in done if each.lower is not None), head.state.upper),
        upper=uppers[-1] if uppers else head.state.upper,
        inserted=sum(each.inserted for each in done),
        rows_source=sum(each.rows_source or 0 for each in done) if done else None,
        batches=sum(each.batches for each in done),
        details=_details(producer, published, staged),
    )


def _details(producer: str, published: tuple[Range, ...], staged: tuple[Range, ...]) -> dict[str, Any]:
    named = {"ranges": published, "staged_ranges": staged}
    return {name: {producer: [list(each) for each in ranges]} for name, ranges in named.items() if ranges}
