"""Appends rows that Spark computes as a batch: a data frame, or a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.clock import Clock
from tidemark.collections.append.append import Append
from tidemark.collections.append.batch_fit import fit_columns
from tidemark.collections.append.forward import Appended
from tidemark.collections.append.ways_in import NOTHING_ASKED, Rules
from tidemark.collections.apply.execute import read_stored
from tidemark.collections.declarations.collection import Declaration, OnSchemaChange
from tidemark.collections.deployment import Deployment
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark, to_spark
from tidemark.collections.sources.batch_file import GivenColumns
from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.opened_source import OpenedSource
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import SourceMoved, UsageError
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.frames import stage
from tidemark.report import CollectionReport


def append_frame(
    shard: Shard,
    name: BatchName,
    rows: DataFrame,
    *,
    deployment: Deployment,
    clock: Clock,
    declaration: Declaration | None = None,
    where: str = "the data frame",
) -> CollectionReport:
    """Append the rows of a data frame as the batch ``name``, once; for batches too large for the driver.

    ``rows`` have the user columns of the append-only collection, in any order, and are evaluated only if the batch is
    missing. The applied declaration holds as in ``append_rows``, and so does the given one; without one at hand the
    columns of the collection never change. ``where`` names the rows in messages.

    Raises:
        SchemaMismatch: If the columns are not the collection's; nothing was appended.
        ReadOnly: If the deployment is read-only and the collection rejects batches, or would have to change its schema.
        TidemarkError: As ``append_rows``, and what evaluating the frame raises.
    """
    source = OpenedSource(where=where, desired=rows, pinnable=False)
    return append_source(shard, name, lambda: source, deployment=deployment, clock=clock, declaration=declaration)


def append_source(
    shard: Shard,
    name: BatchName,
    open_source: Callable[[], OpenedSource],
    *,
    deployment: Deployment,
    clock: Clock,
    declaration: Declaration | None,
) -> CollectionReport:
    """Append the rows of a source as ``append_frame`` does; open the source only if the batch is missing.

    Raises:
        SourceMoved: If the source changed while it was read; nothing was appended.
        TidemarkError: As ``append_frame``.
    """
    began_ms = clock.now_ms()
    own = NOTHING_ASKED if declaration is None else Rules.declared(declaration)
    with Append(shard=shard, name=name, deployment=deployment, clock=clock, own=own) as batch:
        done = batch.run(_append_once, batch, open_source, declaration)
    return replace(done.report(), seconds=(clock.now_ms() - began_ms) / 1000)


def _append_once(batch: Append, open_source: Callable[[], OpenedSource], declaration: Declaration | None) -> Appended:
    if (answer := batch.look()) is not None:
        return answer
    if batch.rules.status is not None:
        raise UsageError(
            f"{batch.shard.name!r} keeps a history of statuses, and a data frame has no order",
            hint=f"append files: tidemark append {batch.shard.name} FILE --producer P --range A:B",
        )
    source = open_source()
    rows = _fit(batch, source, declaration)
    start = F.lit(batch.name.range.start).cast("bigint")
    stamped = rows.withColumn(PRODUCER, F.lit(batch.name.producer)).withColumn(BATCH, start)
    if ENTRY in batch.head.table.schema().column_names:
        stamped = stamped.withColumn(ENTRY, F.lit(None).cast("bigint"))
    with translating(source.where):
        staged = stage(batch.shard, stamped, branch=batch.begin_pending(), fingerprint=str(batch.name))
    if source.moved():
        raise SourceMoved(f"{source.where} changed while it was read", hint="run it again")
    batch.take(staged)
    return batch.finish()


def _fit(batch: Append, source: OpenedSource, declaration: Declaration | None) -> DataFrame:
    """Return the rows with exactly the columns of the collection, which may evolve if the declaration says so."""
    rows, where = source.desired, source.where
    stored = read_stored(batch.head.table).columns
    if declaration is None or declaration.on_schema_change is OnSchemaChange.FAIL:
        leave_out = declaration is not None and declaration.declares_columns
        return conform(rows, stored, where=where, leave_out_others=leave_out)
    types = from_spark(rows.schema, where=where)
    given = GivenColumns(where=where, names=tuple(rows.columns), types=types)
    fit_columns(batch, given, evolve=True)
    stored = read_stored(batch.head.table).columns
    missing = {
        column.name: F.lit(None).cast(to_spark(column.type)) for column in stored if column.name not in rows.columns
    }
    return conform(rows.withColumns(missing), stored, where=where)
