"""Publishing many staged batches in one commit, and reading state as a sensor does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import functions as F

from bench.figures import Figure
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.frames import stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

BATCHES = 100
READS = 50
_ROWS = 100


def measure_shards(spark: SparkSession, settings: Settings, *, runs: int) -> Iterator[Figure]:
    """Yield the figures of publishing ``BATCHES`` staged batches and of reading state."""
    shards = Shards.connect(settings)
    schema = Schema(NestedField(1, "id", LongType()))
    times = []
    for run in range(runs):
        shard = shards.create(f"events_{run}", schema=schema, layout=ShardKind.APPEND_ONLY)
        batches = [stage_batch(spark, shard, settings, number) for number in range(BATCHES)]
        writer = Writer.join(shard, settings.generation)
        started = time.perf_counter()
        writer.publish(*batches, lower=0, new_upper=1)
        times.append(time.perf_counter() - started)
        assert shard.load().row_count == BATCHES * _ROWS
    yield Figure(f"publish {BATCHES} staged batches in one commit", "s", tuple(times), at_most=2)

    reads = []
    for _ in range(READS):
        started = time.perf_counter()
        read_state(settings, "events_0")
        reads.append(1000 * (time.perf_counter() - started))
    yield Figure("state read as a sensor does it", "ms", tuple(reads), at_most=10)


def stage_batch(spark: SparkSession, shard: Shard, settings: Settings, number: int) -> Batch:
    """Stage ``_ROWS`` rows as batch ``number`` of one producer."""
    name = f"{number:06}"
    stamps = [F.lit("bench").alias(PRODUCER), F.lit(number).cast("bigint").alias(BATCH)]
    rows = spark.range(number * _ROWS, (number + 1) * _ROWS, 1, 1).select("id", *stamps)
    branch = branch_name(generation=settings.generation, writer="bench", batch=name)
    staged = stage(shard, rows, branch=branch)
    return Batch(
        added=staged.files,
        branches=((staged.branch, staged.snapshot_id),),
        producer="bench",
        range=Range(number * _ROWS, (number + 1) * _ROWS),
    )
