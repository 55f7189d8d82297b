"""Loads the first contents of a sink with Spark: executors write the parts, and one commit lets the target be them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidemark.collections.declarations.sink import SinkDeclaration, SinkMode
from tidemark.errors import TidemarkError
from tidemark.fail_points import fail_point
from tidemark.iceberg.reading.spark import consolidate, read_snapshot
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.sinks.progress import Progress
from tidemark.sinks.reading.net_changes import check_keys, same_key
from tidemark.sinks.reading.rows import first_snapshot
from tidemark.sinks.target import Extent, Grouping, PartedTarget, PartWriter
from tidemark.sinks.targets.batches import as_table
from tidemark.spark.quoting import quoted

FAIL_POINTS = ("sink.load-begun", "sink.parts-written")
_PART_ROWS = 1_000_000  # about so many rows, of one group or more, are one part where groups stay together
_GROUP = "_tidemark_group"
_PART = StructType([StructField("part", BinaryType())])
_SAMPLE = 5


def load_with_spark(
    spark: SparkSession,
    shard: Shard,
    head: ShardHead,
    target: PartedTarget,
    *,
    before: Progress,
    after: Progress,
    check: Callable[[], None],
) -> int:
    """Write the contents that ``head`` pins, and the progress; return the number of rows. Raises as ``Target.load``.

    ``check`` raises, right before the commit, if the sink may not write any more: no switch fences a new table.

    Raises ``Refused`` if two rows of a mirror have the same key, or a key has a NULL; nothing was written.
    """
    sink = target.sink
    names = [column.name for column in after.columns]
    rows = read_snapshot(spark, shard, head, first_snapshot(head)).select(*map(quoted, names))
    if sink.mode is SinkMode.MIRROR:
        _check_key(rows, sink)
    else:
        assert after.time is not None  # noqa: S101 - for mypy
        time = max(after.time - 1, 0)
        rows = rows.select("*", F.lit(time).cast("bigint").alias(TIME), F.lit(1).cast("bigint").alias(DIFF))
    partition = [quoted(name) for name in sink.to.columns]
    extent = Extent(head.row_count, rows.select(*partition).distinct().count() if partition else 1)
    with target.begin_load(before, after, extent) as load:
        fail_point("sink.load-begun")
        parts = _write_parts(rows, load.writer, extent)
        fail_point("sink.parts-written")
        check()
        return load.commit(parts)


def _check_key(rows: DataFrame, sink: SinkDeclaration) -> None:
    """Refuse a key that two rows share, or that has a NULL, without a list of all keys in this process."""
    key, where = sink.key_columns, f"sink {sink.name!r}"
    counted = consolidate(rows.select(*map(quoted, key), F.lit(1).cast("bigint").alias(DIFF)), key)
    is_odd = F.col(DIFF) > 1
    for name in key:
        is_odd |= F.col(quoted(name)).isNull()
    odd = counted.where(is_odd).orderBy(*(F.col(quoted(name)).isNotNull() for name in key))  # those with NULL first
    sample = odd.limit(_SAMPLE).toArrow().select(list(key))
    check_keys(sample, key, where=where)
    if sample.num_rows:
        raise same_key(sample, odd.count(), key, where=where)


def _write_parts(rows: DataFrame, writer: PartWriter, extent: Extent) -> list[Any]:
    """Return what the writer said of each part; raise the first error that it raised."""
    if (grouping := writer.grouping) is not None:
        numbered = StructType([*rows.schema.fields, StructField(_GROUP, LongType())])
        most = max(rows.sparkSession.sparkContext.defaultParallelism, -(-extent.rows // _PART_ROWS))
        together = min(grouping.count, most)
        rows = rows.mapInArrow(partial(_number, grouping), numbered).repartition(together, _GROUP).drop(_GROUP)
    written = rows.mapInArrow(partial(_write, writer), _PART).collect()
    answers = [pickle.loads(row.part) for row in written]  # noqa: S301 - of our own executors
    for answer in answers:
        if isinstance(answer, TidemarkError):
            raise answer
    return answers


def _number(grouping: Grouping, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the group of each row, in an executor."""
    for batch in batches:
        yield batch.append_column(_GROUP, pa.array(grouping.number(as_table(batch))))


def _write(writer: PartWriter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one part, in an executor. An error is an answer, too: Spark would keep nothing but its text."""
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - for mypy
    try:
        answer = writer.write(context.partitionId(), map(as_table, batches))
    except TidemarkError as error:
        answer = error
    yield pa.RecordBatch.from_pydict({"part": [pickle.dumps(answer)]})
