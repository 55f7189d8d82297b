"""Appends one interval of the declared sources of many collections, one after the other, each one's failure its own.

Each collection gets what it still lacks of the interval, so that a backfill fills holes in any order. Neither an
interval that is there already nor a slice of small files needs a JVM: ``append_small`` does these, and says which
collections are left for Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.append.frame import DEFAULT_PRODUCER, append_interval, check_interval_source
from tidemark.collections.append.interval import append_missing
from tidemark.collections.append.parquet_slice import append_slice, find_small_files
from tidemark.collections.declarations.collection import Kind
from tidemark.collections.isolation import NeedsSpark, run_one_by_one
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shards import Shards
    from tidemark.interval import Interval
    from tidemark.report import CollectionReport, Report


def choose_appended(deployment: Deployment, names: Sequence[str]) -> list[Declaration]:
    """Return the named collections, or all whose source is cut by an interval and that are append-only.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
    """
    registry = deployment.registry
    if names:
        return [registry.get(name) for name in dict.fromkeys(names)]
    declared = registry.read().declarations.values()
    return [each for each in declared if each.kind is Kind.APPEND_ONLY and each.needs_interval]


def append_small(
    shards: Shards, deployment: Deployment, declarations: Sequence[Declaration], interval: Interval, *, clock: Clock
) -> tuple[Report, list[str]]:
    """Append what needs no JVM; return its report, and the names of the collections that are left for Spark."""

    def append_one(declaration: Declaration) -> CollectionReport:
        return _append_small(shards, declaration, interval, deployment=deployment, clock=clock)

    return run_one_by_one(
        "append", declarations, append_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )


def append_all(
    spark: SparkSession,
    shards: Shards,
    deployment: Deployment,
    declarations: Sequence[Declaration],
    interval: Interval,
    *,
    clock: Clock,
) -> Report:
    """Append what is missing of the slice ``interval`` of each source, once."""

    def append_one(declaration: Declaration) -> CollectionReport:
        def append_part(part: Interval) -> CollectionReport:
            return append_interval(spark, shards, declaration, part, deployment=deployment, clock=clock)

        shard = shards.open(declaration.name)
        return append_missing(shard, interval, append_part, producer=DEFAULT_PRODUCER, deployment=deployment)

    report, _ = run_one_by_one(
        "append", declarations, append_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )
    return report


def _append_small(
    shards: Shards, declaration: Declaration, interval: Interval, *, deployment: Deployment, clock: Clock
) -> CollectionReport:
    check_interval_source(declaration)
    shard = shards.open(declaration.name)

    def append_part(part: Interval) -> CollectionReport:
        files = find_small_files(declaration)
        if files is None:
            raise NeedsSpark
        name = BatchName(DEFAULT_PRODUCER, Range(part.start_ms, part.end_ms))
        return append_slice(shard, name, files, part, declaration=declaration, deployment=deployment, clock=clock)

    return append_missing(shard, interval, append_part, producer=DEFAULT_PRODUCER, deployment=deployment)
