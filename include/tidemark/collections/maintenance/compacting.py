"""Compaction of several collections, each one's failure its own."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.collections.isolation import isolate
from tidemark.collections.mode import lead_to_write
from tidemark.iceberg.maintenance.compaction import Compaction, compact
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shard.shard import Shard

SPARK_ROWS = 5_000_000  # below, this process is done before Spark has started


def compact_all(
    deployment: Deployment,
    names: Sequence[str],
    *,
    start_spark: Callable[[], SparkSession],
    clock: Clock | None = None,
) -> Report:
    """Compact the named collections one after the other; ``start_spark`` is called for large ones only.

    Raises:
        UnknownCollection: If a name is not stored; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    chosen = [shards.open(name) for name in dict.fromkeys(names)]
    run = partial(_compact, deployment=deployment, start_spark=start_spark)
    results = {shard.name: isolate(shard.name, partial(run, shard), clock=clock) for shard in chosen}
    return Report(
        operation="compact",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=results,
    )


def _compact(shard: Shard, *, deployment: Deployment, start_spark: Callable[[], SparkSession]) -> CollectionReport:
    writer = lead_to_write(shard, deployment, what="compaction")
    spark = start_spark() if shard.load().row_count > SPARK_ROWS else None
    result = compact(writer, spark=spark)
    state = shard.load().state
    return CollectionReport(
        outcome=_outcome(result),
        lower=state.lower,
        upper=state.upper,
        strategy=result.outcome,
        details={"compaction": asdict(result)},
    )


def _outcome(result: Compaction) -> Outcome:
    # The contents are the same whether files were merged or not; ``strategy`` tells which.
    return Outcome.SKIPPED if result.outcome in {"skipped", "discarded"} else Outcome.UNCHANGED
