"""The way of a batch into a write buffer in place of the table; and the answer to an append, wherever the rows went.

The buffer remembers the batches that went into it, so that an append asks it as it asks a ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.collections.append.ways_in import Writing, role_of
from tidemark.collections.sources.connections import check_connections
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.staged.audit import Trouble
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import Refused, TidemarkError, UsageError
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.row_positions import scan_file
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS
from tidemark.iceberg.shard.ledger import FORWARDED, Ledger
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import BatchLog, Deployment
    from tidemark.collections.staged.audit import Audited
    from tidemark.collections.staged.batches import QueuedBatch
    from tidemark.iceberg.commit.batch import Batch
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard


FAIL_POINTS = ("forward.after-batch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The answer to an append: ``appended`` (visible), ``staged`` (waits for a flush), ``skipped`` (was visible).

    Or ``forwarded``: in a write buffer, now or before; visible where it is ingested.
    """

    outcome: Outcome
    rows: int = 0
    lower: Frontier | None = None
    upper: Frontier | None = None
    buffer: str = ""  # that has the rows

    def report(self) -> CollectionReport:
        return CollectionReport(
            outcome=self.outcome,
            lower=self.lower,
            upper=self.upper,
            inserted=self.rows if self.outcome is Outcome.APPENDED else 0,
            rows_source=self.rows,
            batches=0 if self.outcome is Outcome.SKIPPED else 1,
            details={"buffer": self.buffer} if self.buffer else {},
        )


def user_columns(table: Table) -> pa.Schema:
    """Return the columns that a user declared, as Arrow has them."""
    system = {name for names in SYSTEM_COLUMNS.values() for name in names}
    return pa.schema([field for field in arrow_schema(table) if field.name not in system])


def check_before_spark(declarations: Sequence[Declaration], deployment: Deployment) -> None:
    """Check what appends by Spark need besides the stores: connections of sources, and buffers of ``writes_to``.

    One collection that has all is enough: where others lack something, each of them fails alone.

    Raises as ``check_connections``, or as ``Buffers.open``.
    """
    check_connections(declarations, deployment.settings)
    errors: list[TidemarkError] = []
    for declaration in declarations:
        if not isinstance(role := role_of(declaration), Writing):
            return
        try:
            with role.open(declaration.name, deployment):
                return
        except TidemarkError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def look_in(log: BatchLog, name: BatchName) -> Appended | None:
    """Return the answer for a batch that the buffer has; None if its numbers are free.

    Raises ``RangeOverlap`` if the buffer has some of its numbers, and lacks others.
    """
    rows = log.find(name.producer, name.range)
    return None if rows is None else Appended(outcome=Outcome.FORWARDED, rows=rows, buffer=log.title)


def forward(log: BatchLog, table: Table, batch: Batch, name: BatchName, *, clock: Clock) -> Appended:
    """Write the rows of files into the buffer as the batch ``name``, once.

    Raises as ``BatchLog.add``.
    """
    columns = user_columns(table).names
    pieces = (placed.rows for file in batch.added for placed in scan_file(table, file, columns))
    rows = log.add(pieces, (name.producer, name.range), clock=clock)
    fail_point("forward.after-batch")
    return Appended(outcome=Outcome.FORWARDED, rows=rows, buffer=log.title)


def forwarded_ranges(shard: Shard, producer: str, deployment: Deployment) -> Ledger:
    """Return the ranges of a producer that the buffer has, if the collection writes to one."""
    declared = deployment.registry.find(shard.name)
    role = None if declared is None else role_of(declared)
    if not isinstance(role, Writing):
        return Ledger()
    with role.open(shard.name, deployment) as log:
        return log.accepted(producer)


def forward_staged(
    head: ShardHead,
    audited: Audited,
    queued: Sequence[QueuedBatch],
    declaration: Declaration,
    *,
    deployment: Deployment,
    clock: Clock,
) -> None:
    """Write the staged batches that are to be published into the buffer, if the collection writes to one.

    What an ingest has staged comes from the buffer. A collection that does not read the buffer keeps no rows: the flush
    then puts the ranges into a ledger of their own, since a collection that reads the buffer later lacks these rows. A
    batch of which the buffer has a part, or that the buffer cannot hold, stays staged.
    """
    role = role_of(declaration)
    if not isinstance(role, Writing) or not audited.batches:
        return
    stores = isinstance(declaration.source, BufferSource)
    kept: list[Batch] = []
    with role.open(declaration.name, deployment) as log:
        for batch in audited.batches:
            ((branch, _),) = batch.branches
            (of_batch,) = (each for each in queued if each.branch == branch)
            try:
                if not of_batch.is_ingested:
                    forward(log, head.table, batch, of_batch.name, clock=clock)
            except (Refused, UsageError) as error:  # of this batch alone: the buffer has a part, or cannot hold a row
                audited.troubles.append(Trouble(of_batch, error))
            else:
                forwarded = replace(batch, added=(), producer=of_batch.name.producer + FORWARDED)
                kept.append(batch if stores or of_batch.is_ingested else forwarded)
    audited.batches = kept
