"""Appending a large data frame against a plain Iceberg append, and flushing many small batches without a JVM."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import functions as F

from bench.figures import Figure
from bench.tables import FILE_FORM, write_sources
from bench.timing import alternate
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.frame import append_frame
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode
from tidemark.collections.schema.convert import from_spark, to_iceberg
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.layout import TABLE_PROPERTIES
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.settings import Settings

COLLECTIONS, BATCHES, ROWS = 10, 100, 10
WARM_UPS = 2
SAME_COLUMNS = "plain append of the same columns"
CLOCK = SystemClock()
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


def measure_appending(
    spark: SparkSession, settings: Settings, folder: Path, *, rows: int, runs: int
) -> Iterator[Figure]:
    """Yield the ratios of an append to two plain Iceberg appends, all measured in turn.

    One writes the same rows with the same columns: what is above it is Tidemark's own. The other leaves out
    ``_producer`` and ``_batch``: it shows what these two cost, value by value, in Iceberg's writer.
    """
    frame = spark.read.parquet(str(write_sources(spark, folder / "appended", rows, {})["base"]))
    shards = Shards.connect(settings)
    schema = to_iceberg(from_spark(frame.schema, where="the frame"))
    shard = shards.create("appended", schema=schema, layout=ShardKind.APPEND_ONLY)
    stamped = frame.withColumns({PRODUCER: F.lit("bench"), BATCH: F.lit(1).cast("bigint")})
    plain_appends = {"plain append": _plain(frame, "bare"), SAME_COLUMNS: _plain(stamped, "stamped")}
    starts = count()

    def append_next() -> None:
        start = next(starts)
        name = BatchName("bench", Range(start, start + 1))
        append_frame(shard, name, frame, deployment=deployment_of(settings), clock=CLOCK)

    times = alternate({"tidemark": append_next, **plain_appends}, runs, warm_ups=WARM_UPS)
    assert shard.load().row_count == (runs + WARM_UPS) * rows
    size = f"append of {rows / 1_000_000:g} M rows"
    for kind, limit in ((SAME_COLUMNS, 1.15), ("plain append", None)):
        ours, theirs = ("tidemark", times["tidemark"]), (kind, times[kind])
        yield Figure.ratio(f"{size} / {kind}", numerator=ours, denominator=theirs, at_most=limit)


def _plain(frame: DataFrame, name: str) -> Callable[[], None]:
    """Create a table for the frame, whose files have the form of a collection's, and return what appends to it."""
    table = f"tidemark.collections.{name}"
    created = frame.limit(0).writeTo(table)
    for each in FILE_FORM:
        created = created.tableProperty(each, TABLE_PROPERTIES[each])
    created.create()
    return lambda: frame.writeTo(table).append()


def measure_flushing(settings: Settings) -> Iterator[Figure]:
    """Yield the time of one flush of all that ``COLLECTIONS`` have staged; staging is not part of it."""
    shards = Shards.connect(settings)
    opened = [
        shards.create(f"flushed_{number}", schema=SCHEMA, layout=ShardKind.APPEND_ONLY) for number in range(COLLECTIONS)
    ]
    switch_mode(shards, deployment_of(settings), Mode.READ_ONLY, who="bench", why="")
    for shard in opened:
        for batch in range(BATCHES):
            numbers = Range(batch * ROWS, (batch + 1) * ROWS)
            name = BatchName("bench", numbers)
            rows = pa.table({"id": pa.array(range(*numbers), pa.int64()), "name": ["bench"] * ROWS})
            append_rows(shard, name, rows, deployment=deployment_of(settings), clock=CLOCK)
    switch_mode(shards, deployment_of(settings), Mode.READ_WRITE, who="bench", why="")
    started = time.perf_counter()
    report = flush_all(shards, deployment_of(settings), [], clock=CLOCK)
    seconds = time.perf_counter() - started
    assert all(each.inserted == BATCHES * ROWS for each in report.collections.values())
    assert len(report.collections) == COLLECTIONS
    yield Figure(f"flush of {COLLECTIONS} x {BATCHES} staged batches", "s", (seconds,), at_most=20)
