"""Make one collection equal to its source: compute the difference, ask the guards, publish, or compute again."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tidemark.collections.declarations.collection import OnForeignCommit
from tidemark.collections.digest.digest import digest_to_bytes
from tidemark.collections.digest.row_layout import NEW
from tidemark.collections.quality.guards import SAMPLE_ROWS
from tidemark.collections.reconcile.comparison import Comparison, CopyNeeded, Difference
from tidemark.collections.reconcile.pinned_snapshot import Pinned, pin
from tidemark.collections.reconcile.scope import in_scope
from tidemark.collections.reconcile.vanished_columns import check_columns_occur
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.sources.scratch_folder import scratch_folder
from tidemark.collections.staged.batches import corrections_branch
from tidemark.errors import (
    CommitStateUnknown,
    ConflictsUnsettled,
    ForeignCommit,
    InputsGone,
    SourceMoved,
    TidemarkError,
    Unreachable,
    UpperMismatch,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.report import CollectionReport, ErrorReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.quality.guards import Overrides
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.frontier import Frontier
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.interval import Interval
    from tidemark.settings import Settings

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
FAIL_POINTS = ("reconcile.pinned", "reconcile.compared", "reconcile.before-publish", "reconcile.published")
_COPY_FROM_ATTEMPT = 3  # a source that moved under two attempts is copied for the third
_BACKOFF_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """One run over one collection.

    Args:
        spark: The session to compute in.
        settings: Where there is room for what a run writes down for itself.
        shard: The stored collection.
        declaration: What it should be.
        open_source: Opens the source in its present state; called again for every attempt.
        interval: The run's data interval; a collection with a scope is limited to it.
        overrides: Guards that are set for this run alone.
        clock: Tells the time of the corrections.
        stages: Whether corrections are staged, as a read-only deployment has it, and not published.
    """

    spark: SparkSession
    settings: Settings
    shard: Shard
    declaration: Declaration
    open_source: Callable[[], OpenedSource]
    interval: Interval | None
    overrides: Overrides
    clock: Clock
    stages: bool = False

    def run(self, writer: Writer) -> CollectionReport:
        """Correct the collection, computing again from the source whenever something moved in between.

        Args:
            writer: Joined before, once: an attempt that joined again would not notice that it was fenced.

        Raises:
            Refused: If a guard said no, or another engine wrote and that may not be dropped; nothing was written.
            StaleState: If things kept moving until the attempts were used up.
            Fenced: If another writer took over.
        """
        return self._until_settled(lambda *, copy: self._attempt(writer, copy=copy))

    def plan(self) -> CollectionReport:
        """Return what ``run`` would do now, with samples and the guards' answer; nothing is written."""
        return self._until_settled(self._plan)

    def _until_settled(self, attempt_once: Callable[..., CollectionReport]) -> CollectionReport:
        copy = False
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                report = attempt_once(copy=copy)
            except CopyNeeded:
                copy = True
            except (UpperMismatch, InputsGone, SourceMoved) as error:
                if attempt == MAX_ATTEMPTS:
                    raise
                log.info("%s: attempt %s came to nothing, computing again: %s", self.shard.name, attempt, error)
                copy = copy or (isinstance(error, SourceMoved) and attempt + 1 >= _COPY_FROM_ATTEMPT)
                time.sleep(random.uniform(0, _BACKOFF_S * attempt))  # noqa: S311  no secret: two runs should not march in step
            else:
                if attempt > 1:
                    report.details["attempts"] = attempt
                return report
        raise AssertionError("the last attempt returns or raises")

    def _plan(self, *, copy: bool) -> CollectionReport:
        with scratch_folder(self.spark, self.settings) as scratch:
            pinned = self._pin()
            difference = self._compare(pinned, self._open(scratch, copy=copy), scratch)
            report = self._report(pinned, difference, upper=pinned.upper)
            if difference.corrections is not None:
                report.details["sample"] = difference.corrections.samples(SAMPLE_ROWS)
            return report

    def _attempt(self, writer: Writer, *, copy: bool) -> CollectionReport:
        with scratch_folder(self.spark, self.settings) as scratch:
            pinned = self._pin()
            fail_point("reconcile.pinned")
            source = self._open(scratch, copy=copy)
            difference = self._compare(pinned, source, scratch)
            if difference.refusal is not None:
                raise difference.refusal
            fail_point("reconcile.compared")
            upper = self._publish(writer, pinned, difference, source)
        fail_point("reconcile.published")
        return self._report(pinned, difference, upper=upper)

    def _pin(self) -> Pinned:
        head = self.shard.load()
        if (found := head.foreign or head.foreign_updates) and (
            self.declaration.on_foreign_commit is OnForeignCommit.FAIL
        ):
            raise ForeignCommit(
                f"another engine wrote to {self.shard.name!r}: {found}",
                hint="take the rows out or into the source, or set `on_foreign_commit: reset`",
            )
        return pin(self.spark, self.shard, head, self.declaration.key)

    def _open(self, scratch: str, *, copy: bool) -> OpenedSource:
        """Open the source, after the pin: so each commit rests on a source state no older than the one before it."""
        source = self.open_source()
        return source.materialise(f"{scratch}/source") if copy else source

    def _compare(self, pinned: Pinned, source: OpenedSource, scratch: str) -> Difference:
        with source.reading():
            desired, condition = self._conform(pinned, source), None
            scope, interval = self.declaration.scope, self.interval
            is_scoped = scope is not None and interval is not None
            if scope is not None and interval is not None:
                condition = in_scope(scope, interval, pinned.shape.schema)
                desired = desired.where(condition)
            looks = pinned.looks(source.fingerprint)
            difference = Comparison(
                shape=pinned.shape,
                desired=pinned.shape.number(desired, NEW),
                read_stored=partial(pinned.read, condition),
                known=pinned.digest if pinned.head.is_empty or not is_scoped else None,
                looks=looks[-1:] if is_scoped else looks,
                kept_bucket_count=looks[-1] if is_scoped else pinned.kept_bucket_count,
                is_scoped=is_scoped,
                is_pinned=source.pinnable,
                guards=self.overrides.apply(self.declaration.guards),
                row_bytes=pinned.row_bytes,
                scratch=scratch,
                foreign_rows=pinned.head.foreign.added if pinned.head.foreign else 0,
            ).compute()
            if difference.corrections is not None:
                check_columns_occur(source, pinned, condition)
        _check_not_moved(source)
        return _with_whole_digest(pinned, difference) if is_scoped else difference

    def _conform(self, pinned: Pinned, source: OpenedSource) -> DataFrame:
        stored = from_spark(pinned.shape.schema, where=f"collection {self.shard.name!r}")
        others = self.declaration.declares_columns
        return conform(source.frame(), stored, where=source.where, leave_out_others=others)

    def _publish(self, writer: Writer, pinned: Pinned, difference: Difference, source: OpenedSource) -> Frontier:
        lower = pinned.upper
        now = max(self.clock.now_ms(), lower)
        is_whole = self.declaration.scope is None or self.interval is None  # of a slice, the rest may be out of date
        note, blob = _digest_after(pinned, difference, source.fingerprint if is_whole else "")
        if difference.is_empty and not pinned.head.foreign:
            fail_point("reconcile.before-publish")
            if self.stages:
                drop_staged(self.shard, [self._branch])  # what an earlier run staged is not wanted any more
                return lower
            hashed_as = pinned.head.table.metadata.current_schema_id
            advanced = writer.advance(
                lower=lower, new_upper=now + 1, digest=blob, digest_note=note, digest_schema_id=hashed_as
            )
            return advanced.state.upper
        batch = Batch(schema_id=pinned.head.table.metadata.current_schema_id)
        try:
            if difference.corrections is not None:
                with source.reading():
                    batch = difference.corrections.write(writer, pinned, now)
                _check_not_moved(source)
            fail_point("reconcile.before-publish")
            if self.stages:
                stage_whole(
                    self.shard, batch, branch=self._branch, lower=lower, time=now, digest=blob, digest_note=note
                )
                return lower
            published = writer.compare_and_append(batch, lower=lower, new_upper=now + 1, digest=blob, digest_note=note)
        except (CommitStateUnknown, ConflictsUnsettled, Unreachable):
            raise  # the commit may have landed: if it did not, maintenance removes what is left
        except TidemarkError:
            self._discard(pinned, batch)
            raise
        return published.state.upper

    @property
    def _branch(self) -> str:
        """Where the corrections of this slice are staged; those of a later run take their place."""
        scope, interval = self.declaration.scope, self.interval
        if scope is None or interval is None:
            return corrections_branch(self.settings.generation, None)
        covered = scope.every.covering(interval)
        return corrections_branch(self.settings.generation, (covered.start_ms, covered.end_ms))

    def _discard(self, pinned: Pinned, batch: Batch) -> None:
        """Remove what a batch that lost has left: nobody will ever publish it."""
        staged = drop_staged(self.shard, [branch for branch, _ in batch.branches])
        written = batch.deletes if staged else (*batch.added, *batch.retracted, *batch.deletes)
        delete_files(pinned.head.table, [file.file_path for file in written])

    def _report(self, pinned: Pinned, difference: Difference, *, upper: Frontier) -> CollectionReport:
        counts, refusal, details = difference.counts, difference.refusal, dict[str, object]()
        if self.overrides.to_json():
            details["guard_overrides"] = self.overrides.to_json()
        if pinned.head.foreign:
            details["foreign_commits"] = str(pinned.head.foreign)
        if pinned.head.foreign_updates:
            details["foreign_updates"] = str(pinned.head.foreign_updates)
        if self.interval is not None and self.declaration.scope is not None:
            details["slice"] = str(self.declaration.scope.every.covering(self.interval))
        corrected = Outcome.STAGED if self.stages else Outcome.CORRECTED
        outcome = Outcome.UNCHANGED if difference.is_empty and not pinned.head.foreign else corrected
        return CollectionReport(
            outcome=Outcome.REFUSED if refusal else outcome,
            lower=pinned.upper,
            upper=upper,
            inserted=counts.inserted,
            retracted=counts.retracted,
            rows_source=counts.source,
            batches=0 if difference.is_empty else 1,
            strategy=difference.method.value,
            details=details,
            error=ErrorReport.of(refusal) if refusal else None,
        )


def _check_not_moved(source: OpenedSource) -> None:
    if source.moved():
        raise SourceMoved(f"{source.where} was changed while it was read")


def _with_whole_digest(pinned: Pinned, difference: Difference) -> Difference:
    """Return ``difference`` of a slice with the digest of the whole collection, to which the slice adds."""
    whole = pinned.digest
    if whole is not None and difference.corrections is not None:
        whole += difference.corrections.digest(whole.bucket_count)
    return replace(difference, digest=whole)


def _digest_after(pinned: Pinned, difference: Difference, source: str) -> tuple[str, bytes | None]:
    """Return the note and the digest to keep; None if there is none, or if the kept one stays right."""
    counts, digest = difference.counts, difference.digest
    if digest is None:
        return "", None
    note = pinned.next_note(rows=digest.row_count, changed=counts.inserted + counts.retracted, source=source)
    folded = digest.fold(min(digest.bucket_count, note.bucket_count))
    kept = None if pinned.head.is_empty else pinned.digest
    if (
        difference.is_empty
        and not pinned.head.foreign
        and kept is not None
        and kept.bucket_count == folded.bucket_count
    ):
        return str(note), None
    return str(note), digest_to_bytes(folded, pinned.shape.layout)
