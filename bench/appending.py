"""Appending a large data frame against a plain Iceberg append, and flushing many small batches without a JVM."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from bench.figures import Figure
from bench.tables import FILE_FORM, write_sources
from include.catalog.deployment import deployment_of
from include.clock import SystemClock
from include.collections.append import ArrowDelivery, append
from include.collections.flush import flush_all
from include.collections.frame_append import append_frame
from include.collections.mode import Mode, switch_mode
from include.collections.schema_forms import from_spark, to_iceberg
from include.collections.staged_batches import BatchName
from include.persist.layout import TABLE_PROPERTIES
from include.persist.ledger import Range
from include.persist.shard_state import ShardKind
from include.persist.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from include.settings import Settings

COLLECTIONS, BATCHES, ROWS = 10, 100, 10
WARM_UPS = 2
CLOCK = SystemClock()
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


def measure_appending(
    spark: SparkSession, settings: Settings, folder: Path, *, rows: int, runs: int
) -> Iterator[Figure]:
    """Yield the ratio of an append to a plain Iceberg append of the same frame, measured alternately."""
    frame = spark.read.parquet(str(write_sources(spark, folder / "appended", rows, {})["base"]))
    shards = Shards.connect(settings)
    schema = to_iceberg(from_spark(frame.schema, where="the frame"))
    shard = shards.create("appended", schema=schema, kind=ShardKind.APPEND_ONLY)
    plain = frame.limit(0).writeTo("tidemark.collections.plain")
    for name in FILE_FORM:
        plain = plain.tableProperty(name, TABLE_PROPERTIES[name])
    plain.create()
    times: dict[str, list[float]] = {"tidemark": [], "plain append": []}
    for run in range(-WARM_UPS, runs):
        name = BatchName("bench", Range(run, run + 1))
        appends = {
            "tidemark": lambda name=name: append_frame(
                shard, name, frame, deployment=deployment_of(settings), clock=CLOCK
            ),
            "plain append": lambda: frame.writeTo("tidemark.collections.plain").append(),
        }
        for kind in sorted(appends, reverse=run % 2 == 0):  # neither is always the one that comes after the other
            started = time.perf_counter()
            appends[kind]()
            if run >= 0:
                times[kind].append(time.perf_counter() - started)
    assert shard.load().row_count == (runs + WARM_UPS) * rows
    yield Figure.ratio(
        f"append of {rows / 1_000_000:g} M rows / plain Iceberg append",
        numerator=("tidemark", times["tidemark"]),
        denominator=("plain append", times["plain append"]),
        at_most=1.15,
    )


def measure_flushing(settings: Settings) -> Iterator[Figure]:
    """Yield the time of one flush of all that ``COLLECTIONS`` have staged; staging is not part of it."""
    shards = Shards.connect(settings)
    opened = [
        shards.create(f"flushed_{number}", schema=SCHEMA, kind=ShardKind.APPEND_ONLY) for number in range(COLLECTIONS)
    ]
    switch_mode(shards, deployment_of(settings), Mode.READ_ONLY, who="bench", why="")
    for shard in opened:
        for batch in range(BATCHES):
            numbers = Range(batch * ROWS, (batch + 1) * ROWS)
            name = BatchName("bench", numbers)
            rows = pa.table({"id": pa.array(range(*numbers), pa.int64()), "name": ["bench"] * ROWS})
            append(
                shard,
                name,
                ArrowDelivery(name, lambda _table, rows=rows: rows),
                deployment=deployment_of(settings),
                clock=CLOCK,
            )
    switch_mode(shards, deployment_of(settings), Mode.READ_WRITE, who="bench", why="")
    started = time.perf_counter()
    report = flush_all(shards, deployment_of(settings), [], clock=CLOCK)
    seconds = time.perf_counter() - started
    assert all(each.inserted == BATCHES * ROWS for each in report.collections.values())
    assert len(report.collections) == COLLECTIONS
    yield Figure(f"flush of {COLLECTIONS} x {BATCHES} staged batches", "s", (seconds,), at_most=20)
