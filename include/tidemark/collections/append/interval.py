"""Appends intervals of declared sources: every missing part of an interval becomes a batch.

A backfill may append intervals in any order. Neither a complete interval nor a slice of small files needs a JVM:
``append_small`` handles these, and names the collections that are left for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pyspark.sql import SparkSession

from tidemark.clock import Clock
from tidemark.collections.append.append import check_append_only
from tidemark.collections.append.forward import forwarded_ranges
from tidemark.collections.append.frame import append_source
from tidemark.collections.append.parquet_slice import append_slice, find_small_files
from tidemark.collections.append.ways_in import Rules
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.selection import choose
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import NeedsSpark, run_one_by_one
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.sources.formats.source import open_source
from tidemark.collections.sources.formats.sql import SourceDeclaration
from tidemark.collections.sources.opened_source import Opening
from tidemark.collections.staged.batches import BatchName, whole_ranges
from tidemark.errors import RangeOverlap, UsageError
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.retry import retrying

DEFAULT_PRODUCER = "source"
Slices = Interval | Mapping[str, Interval]  # of all collections, or of each by its name
ATTEMPTS = 3


# -- many collections ----------------------------------------------------------------------------------------------


def choose_appended(deployment: Deployment, words: Sequence[str]) -> list[Declaration]:
    """Return the collections that ``words`` select, or all append-only collections whose source uses an interval.

    Rules leave out what has no such source.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
        UsageError: If no collection has a tag.
    """

    def belongs(declared: Declaration) -> bool:
        return declared.name in words or (declared.kind is Kind.APPEND_ONLY and declared.needs_interval)

    # What is named is checked one by one, so that one failure leaves the others alone.
    return choose(deployment.registry.read().declarations, words, belongs, require=lambda _: None)


def append_small(
    shards: Shards, deployment: Deployment, declarations: Sequence[Declaration], interval: Slices, *, clock: Clock
) -> tuple[Report, list[str]]:
    """Append all that needs no JVM; return the report, and the names of the collections that are left for Spark."""

    def append_one(declaration: Declaration) -> CollectionReport:
        check_interval_source(declaration)
        shard = open_applied(shards, deployment, declaration)

        def append_part(part: Interval) -> CollectionReport:
            files = find_small_files(declaration)
            if files is None:
                raise NeedsSpark
            name = BatchName(DEFAULT_PRODUCER, Range(part.start_ms, part.end_ms))
            return append_slice(shard, name, files, part, declaration=declaration, deployment=deployment, clock=clock)

        return append_missing(shard, _interval_of(declaration, interval), append_part, deployment=deployment)

    return run_one_by_one(
        "append", declarations, append_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )


def append_all(
    spark: SparkSession,
    shards: Shards,
    deployment: Deployment,
    declarations: Sequence[Declaration],
    interval: Slices,
    *,
    clock: Clock,
) -> Report:
    """Append the missing parts of the slice ``interval`` of each source, once."""

    def append_one(declaration: Declaration) -> CollectionReport:
        append_part = partial(append_interval, spark, shards, declaration, deployment=deployment, clock=clock)
        shard = open_applied(shards, deployment, declaration)
        return append_missing(shard, _interval_of(declaration, interval), append_part, deployment=deployment)

    report, _ = run_one_by_one(
        "append", declarations, append_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )
    return report


def _interval_of(declaration: Declaration, interval: Slices) -> Interval:
    return interval if isinstance(interval, Interval) else interval[declaration.name]


# -- one collection ------------------------------------------------------------------------------------------------


def append_interval(
    spark: SparkSession,
    shards: Shards,
    declaration: Declaration,
    interval: Interval,
    *,
    deployment: Deployment,
    clock: Clock,
    producer: str = DEFAULT_PRODUCER,
) -> CollectionReport:
    """Append the slice ``interval`` of the declared source, once: the batch is named by the interval, in ms.

    Raises:
        UsageError: If the collection is not append-only, or has no source that uses an interval.
        SourceMoved: If a file changed while it was read; nothing was appended.
        TidemarkError: As ``append_frame``, and what opening the source raises.
    """
    source = check_interval_source(declaration)
    return append_source(
        open_applied(shards, deployment, declaration),
        BatchName(producer, Range(interval.start_ms, interval.end_ms)),
        partial(
            open_source, source, Opening(spark, shards, deployment.settings, interval), collection=declaration.name
        ),
        deployment=deployment,
        clock=clock,
        declaration=declaration,
    )


def check_interval_source(declaration: Declaration) -> SourceDeclaration:
    """Return the source, whose slices are batches.

    Raises:
        UsageError: If the collection is not append-only, or has no source that uses an interval.
        OnlyThroughBuffer: If the rows come out of a write buffer.
    """
    source = declaration.source
    Rules.declared(declaration).refuse_direct_write()
    if declaration.kind is not Kind.APPEND_ONLY:
        raise UsageError(
            f"{declaration.name!r} is a differential collection: its rows come from its source",
            hint=f"run `tidemark reconcile {declaration.name}`",
        )
    if source is None:
        raise UsageError(
            f"{declaration.name!r} declares no source that an interval could cut",
            hint=f"append files: `tidemark append {declaration.name} FILE --producer P --range START:END`",
        )
    if not source.needs_interval:
        raise UsageError(
            f"the source of {declaration.name!r} is not cut by an interval: every batch would hold all of it",
            hint="use {start} and {end} in its `where` or `sql`",
        )
    return source


def append_missing(
    shard: Shard, interval: Interval, append_part: Callable[[Interval], CollectionReport], *, deployment: Deployment
) -> CollectionReport:
    """Append the parts of ``interval`` that the source has not delivered yet, oldest first, by ``append_part``.

    Returns:
        ``staged`` if any part is not visible yet, else ``appended``, or ``skipped`` if no part was missing. The details
        list the published parts of the interval, whoever published them, and the staged parts. Of a collection that
        writes to a buffer, ``forwarded``, with the parts that are there.

    Raises:
        RangeOverlap: If other processes kept delivering overlapping parts.
        TidemarkError: As ``append_part``.
    """
    wanted = Range(interval.start_ms, interval.end_ms)
    done: list[CollectionReport] = []

    def append_holes() -> ShardHead:
        head = shard.load()
        check_append_only(head, shard.name)
        holes = missing_ranges(shard, head, wanted, producer=DEFAULT_PRODUCER, deployment=deployment)
        done.extend(append_part(Interval(*hole)) for hole in holes)  # one by one: the reports before an error count
        return head

    # RangeOverlap: another run filled a part of the hole meanwhile; the next attempt finds the rest.
    def give_up(error: Exception) -> RangeOverlap:
        return RangeOverlap(str(error), hint="append the missing numbers under ranges of their own")

    attempts = retrying(RangeOverlap, attempts=ATTEMPTS, what=f"the append to {shard.name!r}", give_up=give_up)
    head = attempts(append_holes)
    forwarded = forwarded_ranges(shard, DEFAULT_PRODUCER, deployment)
    return _sum_up(done, shard.load() if done else head, wanted, forwarded)


def _sum_up(done: list[CollectionReport], head: ShardHead, wanted: Range, forwarded: Ledger) -> CollectionReport:
    ledger = head.state.ledgers.get(DEFAULT_PRODUCER, Ledger())
    published, invisible = shared_parts(ledger, wanted), ledger.holes(wanted)
    sent = tuple(part for hole in invisible for part in shared_parts(forwarded, hole))
    staged = tuple(part for hole in invisible for part in forwarded.holes(hole))
    outcome = Outcome.STAGED if staged else Outcome.FORWARDED if sent else Outcome.APPENDED
    if not done and not invisible:
        outcome = Outcome.SKIPPED
    uppers = [report.upper for report in done if report.upper is not None]
    named = {"ranges": published, "staged_ranges": staged, "forwarded_ranges": sent}
    return CollectionReport(
        outcome=outcome,
        lower=next((report.lower for report in done if report.lower is not None), head.state.upper),
        upper=uppers[-1] if uppers else head.state.upper,
        inserted=sum(report.inserted for report in done),
        rows_source=sum(report.rows_source or 0 for report in done) if done else None,
        batches=sum(report.batches for report in done),
        details={name: {DEFAULT_PRODUCER: [list(part) for part in ranges]} for name, ranges in named.items() if ranges},
    )


# -- ranges ----------------------------------------------------------------------------------------------------------


def missing_ranges(
    shard: Shard, head: ShardHead, wanted: Range, *, producer: str, deployment: Deployment
) -> tuple[Range, ...]:
    """Return the parts of ``wanted``, in order, that are neither published, nor forwarded, nor wait whole.

    Those that wait are this deployment's to publish.
    """
    published = head.state.ledgers.get(producer, Ledger())
    staged = whole_ranges(head, wanted, producer=producer, collection=shard.name, deployment=deployment)
    forwarded = forwarded_ranges(shard, producer, deployment)
    return published.add_free(staged).add_free(forwarded.ranges).holes(wanted)


def shared_parts(ledger: Ledger, wanted: Range) -> tuple[Range, ...]:
    """Return the parts of ``wanted`` that ``ledger`` has, in order."""
    return tuple(
        Range(max(present.start, wanted.start), min(present.end, wanted.end)) for present in ledger.overlaps(wanted)
    )
