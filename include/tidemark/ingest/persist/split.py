"""Splits the rows of open files: those that are persisted, in order of time, and the remainder, which stays open.

Files that are persisted at once do not overlap in time: a reader of an hour opens those of that hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from tidemark.errors import CorruptState
from tidemark.iceberg.files.data_files import arrow_schema, mark_sorted, write_rows
from tidemark.iceberg.maintenance.compaction import Rewrite, read_rows_of
from tidemark.iceberg.reading.arrow import scan_tasks
from tidemark.iceberg.shard.branch_names import COMPACTION
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import StagedBatch, branch_name
from tidemark.ingest.partitions.event_times import to_milliseconds
from tidemark.ingest.persist.duplicates import Identity
from tidemark.ingest.persist.inputs import ALL_TIMES, Inputs, is_ready, lies_within, merge_intervals
from tidemark.interval import EARLIEST_MS, LATEST_MS, Interval, Unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS = 100_000  # a file holds whole partitions until it has so many rows
SPARK_FILE_BYTES = 32 * 1024 * 1024  # of the files to read; each task sorts and writes so much
OWN_COLUMNS = "_tidemark_"  # and more, in Spark's frames alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the rows of ``inputs`` are split: those of open files in one of ``intervals`` are ready.

    The intervals begin where partitions do, or there is one of all times. ``order_id`` is of the table's sort order by
    the event time, in ``column``.
    """

    inputs: Inputs
    column: str
    unit: Unit
    intervals: Sequence[Interval]
    order_id: int
    identity: Identity | None = None  # what makes rows duplicates; None: there are none

    def open_of(self, rewrite: Rewrite) -> list[FileScanTask]:
        return [task for task in self.inputs.open if task.file.file_path in rewrite.tasks]


def split_here(head: ShardHead, rewrites: Sequence[Rewrite], split: Split) -> None:
    """Write the rows anew in this process, which holds them all; persisted ones go to main, the first rewrite."""
    taken = [_read(head, split.inputs.persisted)]
    for rewrite in rewrites:
        rows = _read(head, split.open_of(rewrite))
        ready = pa.array(is_ready(rows, split.column, split.intervals))
        rewrite.added = write_rows(head.table, rows.filter(pc.invert(ready)))
        taken.append(rows.filter(ready))
    in_order = pa.concat_tables(taken)
    if split.identity is not None:
        in_order = split.identity.drop_duplicates(in_order)
    else:
        in_order = in_order.take(pc.sort_indices(in_order.column(split.column)))  # by name, `.x` would be a path
    rewrites[0].added += write_in_order(head.table, in_order, split.column, split.unit, order_id=split.order_id)


def write_in_order(table: Table, rows: pa.Table, column: str, unit: Unit, *, order_id: int) -> tuple[DataFile, ...]:
    """Write rows that are in order of the event times in ``column`` as persisted files: small partitions share one."""
    files: list[DataFile] = []
    for group in _group(rows.column(column), unit):
        files += write_rows(table, rows.slice(group.start, len(group)), order_id=order_id)
    return tuple(files)


def _read(head: ShardHead, tasks: Sequence[FileScanTask]) -> pa.Table:
    """Return the rows of some files, whose texts may come as large ones or not."""
    schema = arrow_schema(head.table)
    return scan_tasks(head, tasks).select(schema.names).cast(schema)


def _group(times: pa.ChunkedArray, unit: Unit) -> list[range]:
    """Cut rows in order of time where a partition begins, and enough rows came before."""
    at = to_milliseconds(times).cast(pa.timestamp("ms"))
    starts = pc.floor_temporal(at, unit=unit.value).cast(pa.int64()).to_numpy(zero_copy_only=False)
    cuts = [0]
    for start in (np.flatnonzero(np.diff(starts)) + 1).tolist():
        if start - cuts[-1] >= FILE_ROWS:
            cuts.append(start)
    return [range(start, end) for start, end in pairwise([*cuts, len(starts)])]


def split_with_spark(
    spark: SparkSession, shard: Shard, head: ShardHead, rewrites: Sequence[Rewrite], split: Split
) -> None:
    """Write the rows anew in Spark's tasks; persisted ones go to main, the first rewrite.

    Only files that may have rows of the remainder are read for it, once more.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - little is split without Spark

    from tidemark.iceberg.reading.spark import FILE, POSITION  # noqa: PLC0415
    from tidemark.spark.quoting import quoted  # noqa: PLC0415

    places = () if split.identity is None else (FILE, POSITION)

    def read(rewrite: Rewrite, tasks: Iterable[FileScanTask], places: Sequence[str]) -> DataFrame:
        chosen = Rewrite(snapshot=rewrite.snapshot, tasks={task.file.file_path: task for task in tasks})
        return read_rows_of(spark, shard, head, chosen, places=places)

    time = quoted(split.column)
    size = sum(use.size_bytes for rewrite in rewrites for use in rewrite.files)
    parts = max(1, ceil(size / SPARK_FILE_BYTES))
    taken = [_half(read(rewrite, split.open_of(rewrite), places), split, is_ready=True) for rewrite in rewrites]
    if split.inputs.persisted:
        taken.append(read(rewrites[0], split.inputs.persisted, places))
    ready = reduce(lambda one, other: one.unionByName(other), taken).repartitionByRange(parts, F.col(time))
    order = [time]
    if split.identity is not None:  # of the same partitions: rows with one event time lie in one of them
        ready, order = split.identity.drop_duplicates_in(ready, places=places), [*map(quoted, split.identity.columns)]
    persisted = _stage(shard, head, rewrites[0], ready.sortWithinPartitions(*order), keeps_order=True)
    rewrites[0].added = mark_sorted(persisted.files, split.order_id)
    field, due = head.table.schema().find_field(split.column), merge_intervals(split.intervals)
    for rewrite in rewrites:
        if left := [task for task in split.open_of(rewrite) if not lies_within(task.file, field, due)]:
            rest = _half(read(rewrite, left, ()), split, is_ready=False)
            rewrite.added += _stage(shard, head, rewrite, rest.coalesce(parts)).files


def _half(rows: DataFrame, split: Split, *, is_ready: bool) -> DataFrame:
    """Return the rows that are ready, or the others."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    from tidemark.spark.quoting import quoted  # noqa: PLC0415

    names, time = [quoted(name) for name in rows.columns], F.col(quoted(split.column))
    if [*split.intervals] == [ALL_TIMES]:
        return rows.where(time.isNotNull() if is_ready else time.isNull())
    own = OWN_COLUMNS
    while any(name.lower().startswith(own) for name in rows.columns):  # a column of the same name would be replaced
        own += "_"
    at_ms, start_ms, end_ms = f"{own}at", f"{own}start", f"{own}end"
    # As ``to_milliseconds``: rounded down, and within the times that have a date.
    at = F.greatest(F.least(F.unix_millis(time.cast("timestamp")), F.lit(LATEST_MS)), F.lit(EARLIEST_MS))
    timed = rows.withColumn(at_ms, at)
    timed = timed.withColumn(start_ms, F.unix_millis(F.date_trunc(split.unit.value, F.timestamp_millis(at_ms))))
    bounds = [(each.start_ms, each.end_ms) for each in split.intervals]
    ends = F.broadcast(rows.sparkSession.createDataFrame(bounds, f"{start_ms} bigint, {end_ms} bigint"))
    is_due = (timed[start_ms] == ends[start_ms]) & (timed[at_ms] < ends[end_ms]) & time.isNotNull()
    return timed.join(ends, on=is_due, how="left_semi" if is_ready else "left_anti").select(*names)


def _stage(
    shard: Shard, head: ShardHead, rewrite: Rewrite, rows: DataFrame, *, keeps_order: bool = False
) -> StagedBatch:
    from tidemark.iceberg.staging.frames import stage  # noqa: PLC0415

    branch = branch_name(generation=head.state.token.generation, writer=COMPACTION, batch=str(uuid4()))
    staged = stage(shard, rows, branch=branch, keeps_order=keeps_order)
    rewrite.branches = (*rewrite.branches, (staged.branch, staged.snapshot_id))
    rewrite.staged = (*rewrite.staged, *staged.files)
    return staged


def count_duplicates(rewrites: Sequence[Rewrite], split: Split) -> int:
    """Return how many rows of the old files are duplicates, and so not in the new ones.

    Raises ``CorruptState`` if the new files lack other rows, or have more.
    """
    before = sum(rewrite.row_count for rewrite in rewrites)
    after = sum(file.record_count for rewrite in rewrites for file in rewrite.added)
    if before < after or (before > after and split.identity is None):
        files = sum(len(rewrite.files) for rewrite in rewrites)
        raise CorruptState(
            f"{files} files hold {after} rows, not the {before} that their manifests say",
            hint="look at the table with `tidemark doctor --deep`; nothing was committed",
        )
    return before - after
