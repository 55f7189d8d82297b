"""Makes a collection equal to a data frame, or changes it by one, for programs that hand the rows over themselves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Clock, SystemClock
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.isolation import find_resting
from tidemark.collections.mode import join_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.sources.opened_source import OpenedSource
from tidemark.collections.system.recorder import record_run
from tidemark.errors import Paused, ReadOnly, Refused, TidemarkError, UpperMismatch, UsageError
from tidemark.frontier import Frontier
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shard.shard import naming_drop
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Outcome, Report


def reconcile_frame(
    spark: SparkSession,
    name: str,
    frame: DataFrame,
    *,
    deployment: Deployment,
    interval: Interval | None = None,
    max_delete_ratio: float | None = None,
    allow_empty: bool | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> CollectionReport:
    """Make a collection that is declared with ``source: {format: frame}`` equal to ``frame``; return the report.

    All is as in a run: the columns are fitted by name, the guards are asked, corrections are staged while the
    deployment is read-only, a paused collection is skipped. Spark may evaluate the frame several times; if the rows are
    not the same each time, they are copied, and the collection equals the copy.

    With an ``interval``, only the rows of the slice of a declared ``scope`` are corrected. ``max_delete_ratio`` and
    ``allow_empty`` set guards for this call alone. A ``dry_run`` reports what would be corrected, also what a guard
    says, and writes nothing.

    Raises:
        UnknownCollection: If the collection is not declared.
        UsageError: If it has another source, or an interval is given and no ``scope`` declared.
        SchemaMismatch: If a column is missing, or has another type.
        Refused: If a guard refused; nothing was written.
        StaleState: If the collection kept changing, of which ``UpperMismatch`` is one form.
        Fenced: If another writer, or a newer deployment, took over.
    """
    declaration = _find_declaration(deployment, name)
    if interval is not None and declaration.scope is None:
        raise UsageError(
            f"{name!r} has no `scope`, so that an interval limits nothing: all other rows would be taken away",
            hint="declare a `scope`, or hand all rows over without an interval",
        )
    return _HandOver(
        spark=spark,
        declaration=declaration,
        source=OpenedSource(where=f"the data frame for {name!r}", desired=frame, pinnable=False),
        deployment=deployment,
        overrides=Overrides(max_delete_ratio=max_delete_ratio, allow_empty=allow_empty),
        dry_run=dry_run,
        clock=clock or SystemClock(),
        interval=interval,
    ).run()


def apply_changes(
    spark: SparkSession,
    name: str,
    frame: DataFrame,
    *,
    deployment: Deployment,
    upper: Frontier | None = None,
    max_delete_ratio: float | None = None,
    allow_empty: bool | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> CollectionReport:
    """Change a collection that is declared with ``source: {format: frame}`` by ``frame``; return the report.

    The frame has the columns of the collection, and ``_diff``, a whole number: so many copies of the row come, or go if
    it is below 0. Changes of equal rows are added up. What goes has to be stored, and no key may be left with two rows.
    Nothing but the rows that change is read, if a digest is kept. The frame is evaluated once in each attempt.

    ``upper`` is the collection's upper that the changes were computed against, as a report or a shard says: if it has
    moved on, nothing is written. Without it, changes that meet a concurrent commit are applied to the new contents.
    The guards and ``dry_run`` are those of ``reconcile_frame``.

    Raises:
        UpperMismatch: If the collection is not at ``upper``; nothing was written.
        Refused: If a row that goes is not stored, a ``_diff`` is NULL, a key would have two rows, there are more
            changes than the driver holds, or a guard refused; nothing was written.
        ReadOnly: If the deployment is read-only: staged corrections take each other's place, and changes cannot.
        NotPossible: If corrections are staged that were not flushed yet.
        Paused: If somebody paused the collection.
        TidemarkError: As ``reconcile_frame``.
    """
    return _HandOver(
        spark=spark,
        declaration=_find_declaration(deployment, name),
        source=OpenedSource(where=f"the changes of {name!r}", desired=frame, pinnable=False),
        deployment=deployment,
        overrides=Overrides(max_delete_ratio=max_delete_ratio, allow_empty=allow_empty),
        dry_run=dry_run,
        clock=clock or SystemClock(),
        are_changes=True,
        upper=upper,
    ).run()


def _find_declaration(deployment: Deployment, name: str) -> Declaration:
    declaration = deployment.registry.get(name)
    if declaration.kind is not Kind.DIFFERENTIAL:
        raise UsageError(
            f"{name!r} is {declaration.kind}: it keeps what arrives, and is made equal to nothing",
            hint="append the rows, by `append_frame` or `append_rows`",
        )
    if not declaration.is_handed_over:
        raise UsageError(
            f"{name!r} has a source of its own, and the next run over it would take the rows back",
            hint="correct the source; or declare `source: {format: frame}` and a `schema`, and run `tidemark apply`",
        )
    return declaration


@dataclass(frozen=True, kw_only=True)
class _HandOver:
    """One call of a program."""

    spark: SparkSession
    declaration: Declaration
    source: OpenedSource
    deployment: Deployment
    overrides: Overrides
    dry_run: bool
    clock: Clock
    interval: Interval | None = None
    are_changes: bool = False
    upper: Frontier | None = None  # that the changes were computed against

    @property
    def name(self) -> str:
        return self.declaration.name

    def run(self) -> CollectionReport:
        """Do what the call says, and record as a run what it came to; of a dry run a refusal is reported, too."""
        began_ms, settings, shards = self.clock.now_ms(), self.deployment.settings, self._shards
        refusal: TidemarkError | None = None
        try:
            with (
                nullcontext() if self.dry_run else holding(settings, "reconcile", [self.name]),
                naming_damage(lambda: shards.open(self.name).load()),
            ):
                report = self._correct()
        except TidemarkError as error:
            if isinstance(error, UpperMismatch) and self.upper is not None:
                raise  # which says nothing of the collection: the caller computes again
            outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
            report, refusal = CollectionReport(outcome=outcome, error=ErrorReport.of(error)), error
        report = replace(report, seconds=(self.clock.now_ms() - began_ms) / 1000)
        if not self.dry_run:
            self._record(report, began_ms)
        if refusal is not None and not (self.dry_run and isinstance(refusal, Refused)):
            raise refusal
        return report

    def _correct(self) -> CollectionReport:
        resting = None if self.dry_run else find_resting(self.deployment, self.clock).get(self.name)
        if resting is not None and self.are_changes:  # skipped, they would be lost
            raise Paused(f"{self.name!r} is not changed: {resting.details[SKIPPED_BECAUSE]}")
        if resting is not None:
            return resting
        shard = open_applied(self._shards, self.deployment, self.declaration)
        writer, mode = (None, Mode.READ_ONLY) if self.dry_run else join_to_write(shard, self.deployment)
        if writer is not None and mode is Mode.READ_ONLY and self.are_changes:
            raise ReadOnly(
                f"deployment {self.deployment.generation} is read-only, and changes of {self.name!r} cannot be staged: "
                "later ones would take their place",
                hint="hand all rows over by `reconcile_frame`, which stages; or the changes to the deployment that may "
                "write",
            )
        reconciliation = Reconciliation(
            spark=self.spark,
            settings=self.deployment.settings,
            shards=self._shards,
            shard=shard,
            declaration=self.declaration,
            data_interval=self.interval,
            overrides=self.overrides,
            clock=self.clock,
            deployment=self.deployment,
            stages=writer is not None and mode is Mode.READ_ONLY,
            handed_over=self.source,
            hands_changes=self.are_changes,
            computed_at=self.upper,
        )
        if writer is None:
            return reconciliation.plan()
        with naming_drop(shard):
            return reconciliation.run(writer)

    def _record(self, report: CollectionReport, began_ms: int) -> None:
        whole = Report(
            operation="reconcile",
            started_at=began_ms,
            finished_at=self.clock.now_ms(),
            generation=self.deployment.generation,
            collections={self.name: report},
        )
        record_run(self.deployment, whole, clock=self.clock)

    @cached_property
    def _shards(self) -> Shards:
        return Shards.connect(self.deployment.settings)
