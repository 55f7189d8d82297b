"""Reconciles many collections in one Spark application: in parallel, inputs first, failures isolated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from tidemark.clock import Clock, SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.isolation import find_resting, isolate
from tidemark.collections.mode import join_to_write, read_mode
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.quality.guards import SAMPLE_ROWS, Overrides
from tidemark.collections.reconcile.choosing.choice import choose_declarations, skip_handed_over, skip_stale
from tidemark.collections.reconcile.choosing.input_order import run_inputs_first
from tidemark.collections.reconcile.choosing.same_source import reconcile_same
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.errors import Fenced, NotPossible
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.shard import naming_drop
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    Progress = Callable[[str, CollectionReport | None], None]

DEPENDS_ON = "depends_on"  # in the details of a report
PARALLEL_COLLECTIONS = 8  # more would share the same cores, and hold more digests in memory


def reconcile_all(
    spark: SparkSession,
    deployment: Deployment,
    names: Sequence[str],
    *,
    interval: Interval | None = None,
    dry_run: bool = False,
    full: bool = False,
    overrides: Overrides | None = None,
    sample_rows: int = SAMPLE_ROWS,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Reconcile the differential collections ``names`` (empty for all); return a report for each collection.

    The collections share the session, each with its own pool in the FAIR scheduler. A collection is skipped if it is
    paused, or suspended for now, or if one that it reads failed or was skipped before it, unless it is declared to go
    on; and if a program hands its rows over. The data interval limits the collections that have a
    scope. ``overrides`` are guards for this run alone.

    A collection whose source has not changed since it was made equal to it is not read again, unless the run is
    ``full``, or ``verify_after`` has passed.

    A ``dry_run`` computes and reports the corrections, ``sample_rows`` of each sort, and writes nothing. A collection
    that reads others is compared with what they will be, and its report names those that change.

    ``progress`` is called from several threads: at the start of a collection with None, at the end with the report.

    Raises:
        UnknownCollection: If a name is not declared; nothing was started.
        UsageError: If a collection is not differential; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    overrides, clock = overrides or Overrides(), clock or SystemClock()
    full = full or overrides.are_given
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    planned: dict[str, Reconciliation] = {}

    resting = cache(partial(find_resting, deployment, clock))  # asked by the first collections

    def reconcile(declaration: Declaration, changing: Sequence[str]) -> CollectionReport:
        at_rest = {} if dry_run else resting()
        if (skipped := at_rest.get(declaration.name) or skip_handed_over(declaration)) is not None:
            return skipped
        looks = partial(reconcile_same, shards, deployment, declaration, interval=interval, dry_run=dry_run)
        if not full and not changing and (same := looks(clock=clock, spark=spark)) is not None:
            return same
        shard = open_applied(shards, deployment, declaration)
        writer, mode = (None, Mode.READ_ONLY) if dry_run else join_to_write(shard, deployment)
        reconciliation = Reconciliation(
            spark=spark,
            settings=deployment.settings,
            shards=shards,
            shard=shard,
            declaration=declaration,
            data_interval=interval,
            overrides=overrides,
            clock=clock,
            deployment=deployment,
            sample_rows=sample_rows,
            is_full=full,
            stages=writer is not None and mode is Mode.READ_ONLY,
            planned_inputs={name: planned[name] for name in changing},
        )
        if writer is not None:
            with naming_drop(shard):
                return reconciliation.run(writer)
        planned[declaration.name] = reconciliation
        report = reconciliation.plan()
        return replace(report, details={**report.details, DEPENDS_ON: changing}) if changing else report

    def run(declaration: Declaration, inputs: Mapping[str, CollectionReport]) -> CollectionReport:
        name = declaration.name
        if (skipped := skip_stale(declaration, inputs)) is not None:
            if progress:
                progress(name, skipped)
            return skipped
        if progress:
            progress(name, None)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        spark.sparkContext.setLocalProperty("spark.job.description", f"tidemark: {name}")
        changing = [read for read, found in inputs.items() if dry_run and found.outcome is Outcome.CORRECTED]
        report = isolate(name, partial(reconcile, declaration, changing), clock=clock, settings=deployment.settings)
        if progress:
            progress(name, report)
        return report

    declarations = choose_declarations(deployment.registry.read().declarations, names)
    with nullcontext() if dry_run or not declarations else holding(deployment.settings, "reconcile", [*declarations]):
        # Each collection gets a JVM thread of its own, and with it its scheduler pool.
        in_thread = inheritable_thread_target(spark)
        reports = run_inputs_first(declarations, run, threads=PARALLEL_COLLECTIONS, in_thread=in_thread)
    return Report(
        operation="plan" if dry_run else "reconcile",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections={name: reports[name] for name in declarations},
    )


def fence_earlier_tries(shards: Shards, names: Iterable[str], deployment: Deployment) -> None:
    """Raise the token of the stored collections among ``names`` (empty for all), which fences earlier tries.

    A try that joined before stops at its next commit. A collection that cannot be fenced, because it is sealed or
    belongs to a newer deployment, cannot be written either: its own report says so later. A read-only deployment
    fences nobody: it publishes nothing that an earlier try could undo, and a leader that goes on may own the tokens.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        return
    for name in list(names) or shards.names():
        if not shards.exists(name):
            continue
        try:
            Writer.raise_token(shards.open(name), deployment.generation)
        except (Fenced, NotPossible):
            continue
