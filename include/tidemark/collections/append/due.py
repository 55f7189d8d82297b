"""Which interval of each declared source a scheduled run appends: what is over, and not delivered yet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tidemark.collections.append.interval import DEFAULT_PRODUCER, missing_ranges
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.errors import TidemarkError
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval


def due_intervals(
    shards: Shards, deployment: Deployment, declarations: Iterable[Declaration], interval: Interval, *, names_all: bool
) -> dict[str, Interval]:
    """Return the interval to append by collection, without collections of which nothing is due.

    It begins where the first interval is missing, so that a run catches up with runs that failed or never were; else
    it is the run's own ``interval``, which is also that of collections that declare no `intervals`. ``names_all``: it
    begins with the first declared one, because the ranges that an earlier try published may be unannounced.
    """
    due: dict[str, Interval | None] = {}
    for declaration in declarations:
        if declaration.intervals is None:
            due[declaration.name] = interval
        else:
            due[declaration.name] = _due(shards, deployment, declaration, interval, names_all=names_all)
    return {name: found for name, found in due.items() if found is not None}


def _due(
    shards: Shards, deployment: Deployment, declaration: Declaration, interval: Interval, *, names_all: bool
) -> Interval | None:
    assert declaration.intervals is not None  # noqa: S101 - the caller has looked
    first, end = declaration.intervals.start_ms, declaration.intervals.over_by(interval.end_ms)
    if first >= end:
        return None
    start, name = first, declaration.name
    if not names_all:
        with suppress(TidemarkError):  # the append of this collection meets the same error, and reports it
            shard = shards.open(name)
            wanted = Range(first, end)
            holes = missing_ranges(shard, shard.load(), wanted, producer=DEFAULT_PRODUCER, deployment=deployment)
            start = min([hole.start for hole in holes], default=max(first, interval.start_ms))
    return Interval(start, end) if start < end else None
