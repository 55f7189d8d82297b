"""Appends a batch to an append-only collection: visible at once where the deployment may write, staged otherwise.

The batch's range goes into the ledger in the commit that makes its rows visible, and a range that is in the ledger is
done. So a batch may be appended again at any time, whatever became of earlier attempts.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tidemark.collections.deployment import Mode
from tidemark.collections.mode import join_to_write
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.staged.audit import read_whole, whole_ranges
from tidemark.collections.staged.batches import Standing, find_standing, queued_batches
from tidemark.errors import (
    ConflictsUnsettled,
    DamagedBatch,
    ExpectationFailed,
    FencedByEpoch,
    InputsGone,
    RangeOverlap,
    ReadOnly,
    Sealed,
    UpperMismatch,
    UsageError,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.layout import BATCH, PRODUCER
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.files import stage_files
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.clock import Clock
    from tidemark.collections.declarations.append_only import Expectations
    from tidemark.collections.deployment import Deployment
    from tidemark.collections.staged.batches import BatchName
    from tidemark.frontier import Frontier
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

FAIL_POINTS = ("append.after-files",)
ATTEMPTS = 12
_BACKOFF_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The answer to an append: ``appended`` (visible), ``staged`` (waits for a flush), ``skipped`` (was visible)."""

    outcome: Outcome
    rows: int = 0
    lower: Frontier | None = None
    upper: Frontier | None = None

    def report(self) -> CollectionReport:
        return CollectionReport(
            outcome=self.outcome,
            lower=self.lower,
            upper=self.upper,
            inserted=self.rows if self.outcome is Outcome.APPENDED else 0,
            rows_source=self.rows,
            batches=0 if self.outcome is Outcome.SKIPPED else 1,
        )


class Delivery(Protocol):
    """How the rows of one batch get into data files; asked only if the batch is not there already."""

    def stage(self, shard: Shard, branch: str, check: Callable[[ShardHead], None]) -> int:
        """Put the rows onto ``branch``, whole and in one commit that ``check`` agrees to, and return how many."""

    def write(self, shard: Shard, head: ShardHead) -> Batch:
        """Write the rows for an immediate publish: as files, or on a pending branch that no flush looks at."""


def append(
    shard: Shard,
    name: BatchName,
    delivery: Delivery,
    *,
    deployment: Deployment,
    clock: Clock,
    stage_when_read_only: bool = True,
    expect: Expectations | None = None,
) -> Appended:
    """Append the batch ``name``, once.

    Args:
        shard: An append-only collection.
        name: The batch.
        delivery: Writes its rows, if they are not there already.
        deployment: Whose this is.
        clock: Tells the time.
        stage_when_read_only: Whether the batch is staged while the deployment is read-only.
        expect: What must hold before the rows become visible; of a batch that is staged, the flush looks at it.

    Raises:
        ExpectationFailed: If the rows are not what is expected; nothing was appended.
        UsageError: If the collection is not append-only.
        RangeOverlap: If part of the range was accepted before; naming both ranges.
        ReadOnly: If the deployment is read-only and such batches are not to be staged; the rows were not looked at.
        FencedByGeneration: If a newer deployment leads.
        Sealed: If the collection is closed.
        ConflictsUnsettled: If other commits kept winning; nothing was appended, or it was and is found next time.
    """
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
        writer, mode = join_to_write(shard, deployment)
        head = shard.load()
        check_append_only(head, shard.name)
        standing = standing_in(head, name, shard=shard, generation=deployment.generation)
        if standing is Standing.PUBLISHED:
            return Appended(outcome=Outcome.SKIPPED)
        if mode is Mode.READ_ONLY and standing is Standing.FREE and not stage_when_read_only:
            raise ReadOnly(
                f"deployment {deployment.generation} is read-only, and {shard.name!r} rejects batches meanwhile",
                hint="append again when the mode is read-write; see `tidemark mode`",
            )
        try:
            if standing is Standing.STAGED:
                return _take_staged(writer, head, name, mode=mode, deployment=deployment, clock=clock, expect=expect)
            return _deliver(writer, head, name, delivery, mode=mode, deployment=deployment, clock=clock, expect=expect)
        except (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap) as error:
            # Look again: the mode, the ledger and what is staged may all have changed. Only an overlap with what
            # was published besides stays one.
            if isinstance(error, RangeOverlap) and isinstance(failure, RangeOverlap):
                raise
            failure = error
    raise ConflictsUnsettled(
        f"the append of {name} to {shard.name!r} kept losing to other commits", hint="run it again"
    ) from failure


def check_append_only(head: ShardHead, collection: str) -> None:
    """Refuse to append to what is made equal to a source.

    Raises:
        UsageError: If the collection is of another kind.
    """
    if head.state.layout is not ShardKind.APPEND_ONLY:
        raise UsageError(
            f"{collection!r} is a {head.state.layout} collection: its rows come from its source",
            hint=f"run `tidemark reconcile {collection}`",
        )


def standing_in(head: ShardHead, name: BatchName, *, shard: Shard, generation: int) -> Standing:
    """Say whether the batch was accepted before, as this head shows it; what is staged and damaged does not count."""
    staged = whole_ranges(head, name.range, producer=name.producer, collection=shard.name, generation=generation)
    return find_standing(name, published=head.state.ledgers.get(name.producer, Ledger()), staged=staged)


def _take_staged(
    writer: Writer,
    head: ShardHead,
    name: BatchName,
    *,
    mode: Mode,
    deployment: Deployment,
    clock: Clock,
    expect: Expectations | None,
) -> Appended:
    """Leave what is staged as it is, or publish it if it is this very batch and the deployment may write by now."""
    queued = queued_batches(head, collection=writer.shard.name, generation=deployment.generation)
    own = next((each for each in queued if each.name == name), None)
    staged = None if own is None else read_whole(head.table, own)
    if own is None or staged is None or isinstance(staged, DamagedBatch):
        return Appended(outcome=Outcome.STAGED)  # inside larger ranges, which a flush publishes whole
    if mode is Mode.READ_ONLY:
        return Appended(outcome=Outcome.STAGED, rows=own.rows)
    if expect is not None:
        hint = f"discard it ({own.discard_command}) and append the repaired rows, or alter `expect` and apply it"
        check_expectations(head.table, BatchFiles(own.collection, str(name), staged.files, hint), expect)
    batch = Batch(
        added=staged.files, branches=((own.branch, staged.snapshot_id),), producer=name.producer, range=name.range
    )
    return _publish(writer, head, batch, clock=clock)


def _deliver(
    writer: Writer,
    head: ShardHead,
    name: BatchName,
    delivery: Delivery,
    *,
    mode: Mode,
    deployment: Deployment,
    clock: Clock,
    expect: Expectations | None,
) -> Appended:
    shard, branch = writer.shard, name.branch(deployment.generation)

    def check(fresh: ShardHead) -> None:
        if standing_in(fresh, name, shard=shard, generation=deployment.generation) is not Standing.FREE:
            raise InputsGone(f"{name} of {shard.name!r} was accepted meanwhile")

    if branch in head.staged_branches:  # damaged, or it would stand as staged
        drop_staged(shard, [branch], seen=head)
    if mode is Mode.READ_ONLY:
        return Appended(outcome=Outcome.STAGED, rows=delivery.stage(shard, branch, check))
    batch = delivery.write(shard, head)
    fail_point("append.after-files")
    if batch.branches:  # that took its time
        head = shard.load()
    try:
        if expect is not None:
            hint = "repair the rows, or alter `expect` and apply it; then append the batch again"
            check_expectations(head.table, BatchFiles(shard.name, str(name), batch.added, hint), expect)
    except ExpectationFailed:
        if not batch.branches:  # whoever wrote onto a pending branch drops it
            delete_files(head.table, [file.file_path for file in batch.added])
        raise
    return _publish(writer, head, batch, clock=clock)


def _publish(writer: Writer, head: ShardHead, batch: Batch, *, clock: Clock) -> Appended:
    lower = head.state.upper
    if not isinstance(lower, int):
        raise Sealed(f"collection {writer.shard.name!r} is sealed", hint="nothing can be written to it any more")
    published = writer.compare_and_append(batch, lower=lower, new_upper=max(clock.now_ms(), lower) + 1)
    return Appended(outcome=Outcome.APPENDED, rows=batch.inserted_rows, lower=lower, upper=published.state.upper)


class ArrowDelivery:
    """Rows that this process has in memory; written once, however often the commit has to be tried.

    Files of a batch that another process published first are left to orphan removal.
    """

    def __init__(self, name: BatchName, rows: Callable[[Table], pa.Table]) -> None:
        """Take the batch.

        Args:
            name: The batch.
            rows: Called with the table if the batch is not there already; returns exactly its user columns.
        """
        self._name, self._rows = name, rows
        self._files: tuple[DataFile, ...] = ()
        self._schema_id: int | None = None  # of the files; None: nothing is written

    def stage(self, shard: Shard, branch: str, check: Callable[[ShardHead], None]) -> int:
        files, schema_id = self._write(shard.load().table)
        fingerprint = str(self._name)
        staged = stage_files(shard, files, branch=branch, fingerprint=fingerprint, schema_id=schema_id, check=check)
        return staged.rows

    def write(self, shard: Shard, head: ShardHead) -> Batch:  # noqa: ARG002 -- of the protocol
        files, schema_id = self._write(head.table)
        return Batch(added=files, schema_id=schema_id, producer=self._name.producer, range=self._name.range)

    def _write(self, table: Table) -> tuple[tuple[DataFile, ...], int]:
        schema_id = table.metadata.current_schema_id
        if self._schema_id != schema_id:
            delete_files(table, [file.file_path for file in self._files])
            self._files = write_rows(table, with_batch_columns(self._rows(table), self._name))
            self._schema_id = schema_id
        return self._files, schema_id


def with_batch_columns(rows: pa.Table, name: BatchName) -> pa.Table:
    """Return ``rows`` with the columns that say which batch they came in."""
    for column, value in ((PRODUCER, name.producer), (BATCH, name.range.start)):
        rows = rows.append_column(column, pa.repeat(pa.scalar(value), rows.num_rows))
    return rows
