"""Appends what Spark computes as a batch: a data frame, or the slice of the declared source that an interval names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.collections.append.append import append
from tidemark.collections.append.file import evolve_columns
from tidemark.collections.append.pending_delivery import PendingDelivery
from tidemark.collections.append.ways_in import decide_direct_write, role_of
from tidemark.collections.apply.batch_fit import plan_fit
from tidemark.collections.apply.execute import read_stored
from tidemark.collections.declarations.collection import Kind, OnReadOnly, OnSchemaChange
from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark, to_spark
from tidemark.collections.sources.batch_file import GivenColumns
from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.open_source import open_source
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import SourceMoved, UsageError
from tidemark.iceberg.shard.layout import BATCH, PRODUCER
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.frames import stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.collections.schema.types import Columns
    from tidemark.collections.sources.formats.sql import SourceDeclaration
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards
    from tidemark.iceberg.staging.branches import StagedBatch
    from tidemark.interval import Interval
    from tidemark.report import CollectionReport

DEFAULT_PRODUCER = "source"


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

    Args:
        shard: An append-only collection.
        name: The batch; the frame is evaluated only if it is not there already.
        rows: Its user columns, in any order.
        deployment: Whose this is.
        clock: Tells the time.
        declaration: What the collection says about batches; without one it stages, and keeps its columns.
        where: Names the rows in messages.

    Raises:
        SchemaMismatch: If the columns are not the collection's; nothing was appended.
        ReadOnly: If the deployment is read-only and the collection rejects batches, or would have to change its schema.
        TidemarkError: As ``append``, and what evaluating the frame raises.
    """
    return _append(
        shard,
        name,
        lambda: (rows, lambda: None),
        deployment=deployment,
        clock=clock,
        declaration=declaration,
        where=where,
    )


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
    """Append the slice ``interval`` of the declared source, once: the batch is named by it, in ms.

    Raises:
        UsageError: If the collection is not append-only, has no source, or one that no interval cuts.
        SourceMoved: If a file changed while it was read; nothing was appended.
        TidemarkError: As ``append_frame``, and what opening the source raises.
    """
    source = check_interval_source(declaration)
    name = BatchName(producer, Range(interval.start_ms, interval.end_ms))

    def open_rows() -> tuple[DataFrame, Callable[[], None]]:
        opened = open_source(
            spark, source, collection=declaration.name, shards=shards, settings=deployment.settings, interval=interval
        )
        return opened.frame(), lambda: _check_not_moved(opened)

    where = f"the source of {declaration.name!r}"
    shard = shards.open(declaration.name)
    return _append(shard, name, open_rows, deployment=deployment, clock=clock, declaration=declaration, where=where)


def check_interval_source(declaration: Declaration) -> SourceDeclaration:
    """Return the source whose slices are batches.

    Raises:
        UsageError: If the collection is not append-only, has no source, or one that no interval cuts.
        OnlyThroughBuffer: If its rows come out of a write buffer.
    """
    source = declaration.source
    decide_direct_write(role_of(declaration), collection=declaration.name)
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


def _check_not_moved(opened: OpenedSource) -> None:
    if opened.moved():
        raise SourceMoved(f"{opened.where} changed while it was read", hint="run it again")


def _append(
    shard: Shard,
    name: BatchName,
    open_rows: Callable[[], tuple[DataFrame, Callable[[], None]]],
    *,
    deployment: Deployment,
    clock: Clock,
    declaration: Declaration | None,
    where: str,
) -> CollectionReport:
    if declaration is not None:
        decide_direct_write(role_of(declaration), collection=declaration.name)
    if declaration is not None and declaration.status is not None:
        raise UsageError(
            f"{declaration.name!r} keeps a history of statuses, and a data frame has no order",
            hint=f"append files: tidemark append {declaration.name} FILE --producer P --range A:B",
        )
    began_ms = clock.now_ms()
    delivery = _FrameDelivery(shard, name, open_rows, deployment=deployment, declaration=declaration, where=where)
    with delivery:
        done = append(
            shard,
            name,
            delivery,
            deployment=deployment,
            clock=clock,
            stage_when_read_only=declaration is None or declaration.on_read_only is OnReadOnly.STAGE,
            expect=None if declaration is None else declaration.expect,
        )
    return replace(done.report(), seconds=(clock.now_ms() - began_ms) / 1000)


class _FrameDelivery(PendingDelivery):
    """Rows that Spark writes."""

    def __init__(
        self,
        shard: Shard,
        name: BatchName,
        open_rows: Callable[[], tuple[DataFrame, Callable[[], None]]],
        *,
        deployment: Deployment,
        declaration: Declaration | None,
        where: str,
    ) -> None:
        super().__init__(shard, name, generation=deployment.generation)
        self._open_rows = open_rows
        self._deployment, self._declaration, self._where = deployment, declaration, where

    def write_pending(self, shard: Shard, branch: str) -> StagedBatch:
        rows, check_unmoved = self._open_rows()
        fitting = self._fit(rows, read_stored(shard.load().table).columns)
        start = F.lit(self._name.range.start).cast("bigint")
        stamped = fitting.withColumn(PRODUCER, F.lit(self._name.producer)).withColumn(BATCH, start)
        with translating(self._where):
            staged = stage(shard, stamped, branch=branch, fingerprint=str(self._name))
        check_unmoved()
        return staged

    def _fit(self, rows: DataFrame, stored: Columns) -> DataFrame:
        declaration = self._declaration
        leave_out = declaration is not None and declaration.declares_columns
        if declaration is None or declaration.on_schema_change is OnSchemaChange.FAIL:
            return conform(rows, stored, where=self._where, leave_out_others=leave_out)
        types = from_spark(rows.schema, where=self._where)
        given = GivenColumns(where=self._where, names=tuple(rows.columns), types=types)
        if changes := plan_fit(given, stored, collection=self._shard.name, evolve=True):
            evolve_columns(self._shard, changes, self._deployment)
        missing = {
            column.name: F.lit(None).cast(to_spark(column.type)) for column in stored if column.name not in rows.columns
        }
        return conform(rows.withColumns(missing), stored, where=self._where)
