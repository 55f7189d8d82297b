"""Reconciles many collections in one Spark application: in parallel, inputs first, failures isolated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pyspark.util import inheritable_thread_target

from tidemark.clock import Clock, SystemClock
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.files import sort_by_inputs
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.isolation import isolate
from tidemark.collections.mode import join_to_write, read_mode
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.errors import Fenced, NotPossible, UnknownCollection, UsageError
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.report import CollectionReport, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Progress = Callable[[str, CollectionReport | None], None]

PARALLEL_COLLECTIONS = 8  # more would share the same cores, and hold more digests in memory


def reconcile_all(
    spark: SparkSession,
    deployment: Deployment,
    names: Sequence[str],
    *,
    interval: Interval | None = None,
    dry_run: bool = False,
    overrides: Overrides | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Reconcile collections; return a report for each collection.

    Args:
        spark: One session for all; each collection gets its own pool in the FAIR scheduler.
        deployment: The deployment that reconciles.
        names: Declared differential collections; empty for all of them.
        interval: The run's data interval; limits collections that have a scope.
        dry_run: Compute and report the corrections; write nothing.
        overrides: Guards for this run alone.
        clock: Tells the time.
        progress: Called from several threads: with name and None at the start of a collection, with the report at the
            end.

    Raises:
        UnknownCollection: If a name is not declared; nothing was started.
        UsageError: If a collection is not differential; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    run = _Run(
        spark=spark,
        deployment=deployment,
        shards=shards,
        interval=interval,
        dry_run=dry_run,
        overrides=overrides or Overrides(),
        clock=clock,
        progress=progress,
    )
    declarations = choose_declarations(deployment.registry.read().declarations, names)
    results = run.all(declarations)
    return Report(
        operation="plan" if dry_run else "reconcile",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections={name: results[name] for name in declarations},
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


def choose_declarations(declared: Mapping[str, Declaration], names: Sequence[str]) -> dict[str, Declaration]:
    """Return the declarations by name, in the order of ``names``; without names all differential ones.

    Raises:
        UnknownCollection: If a name is not declared.
        UsageError: If a named collection is append-only.
    """
    if not names:
        return {name: found for name, found in sorted(declared.items()) if found.kind is Kind.DIFFERENTIAL}
    chosen = {}
    for name in names:
        if name not in declared:
            raise UnknownCollection.named(name, declared)
        if declared[name].kind is not Kind.DIFFERENTIAL:
            raise UsageError(
                f"{name!r} is append-only: it has no source to be made equal to", hint="use `tidemark append`"
            )
        chosen[name] = declared[name]
    return chosen


@dataclass(frozen=True, kw_only=True)
class _Run:
    spark: SparkSession
    deployment: Deployment
    shards: Shards
    interval: Interval | None
    dry_run: bool
    overrides: Overrides
    clock: Clock
    progress: Progress | None = field(default=None)

    def all(self, declarations: Mapping[str, Declaration]) -> dict[str, CollectionReport]:
        sorter = sort_by_inputs(declarations)
        results: dict[str, CollectionReport] = {}
        running: dict[Future[CollectionReport], str] = {}
        with ThreadPoolExecutor(min(PARALLEL_COLLECTIONS, len(declarations) or 1)) as threads:
            while sorter.is_active():
                for name in sorter.get_ready():
                    # The decorator gives each collection a JVM thread of its own, and with it its scheduler pool.
                    target = inheritable_thread_target(self.spark)(partial(self._one, declarations[name]))
                    running[threads.submit(target)] = name
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(done)
                    results[name] = done.result()
                    sorter.done(name)
        return results

    def _one(self, declaration: Declaration) -> CollectionReport:
        name = declaration.name
        if self.progress:
            self.progress(name, None)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        self.spark.sparkContext.setLocalProperty("spark.job.description", f"tidemark: {name}")
        report = isolate(name, partial(self._reconcile, declaration), clock=self.clock)
        if self.progress:
            self.progress(name, report)
        return report

    def _reconcile(self, declaration: Declaration) -> CollectionReport:
        shard = self.shards.open(declaration.name)
        writer, mode = (None, Mode.READ_ONLY) if self.dry_run else join_to_write(shard, self.deployment)
        reconciliation = Reconciliation(
            spark=self.spark,
            settings=self.deployment.settings,
            shards=self.shards,
            shard=shard,
            declaration=declaration,
            data_interval=self.interval,
            overrides=self.overrides,
            clock=self.clock,
            stages=writer is not None and mode is Mode.READ_ONLY,
        )
        return reconciliation.plan() if writer is None else reconciliation.run(writer)
