"""Scheduled persists of many rows, some of them late and some still young, against a plain sort and write of them.

Also a persist that drops duplicates, and a pass of the policy over many partitions.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import functions as F

from bench.declared import register
from bench.figures import Figure, write_or_print
from bench.tables import FILE_FORM
from bench.timing import alternate
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.frame import append_frame
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.layout import TABLE_PROPERTIES
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest.ingest import ingest
from tidemark.ingest.partitions.state import PROPERTY, PartitionRules, Partitions
from tidemark.ingest.parts import ingesting
from tidemark.ingest.persist.inputs import find_times, intervals_of
from tidemark.ingest.persist.limits import as_chunks
from tidemark.ingest.persist.persist import Engine, persist
from tidemark.ingest.persist.split import SPARK_FILE_BYTES
from tidemark.ingest.persist.time_order import find_time_order
from tidemark.interval import Unit
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.chunks import Action
from tidemark.lifecycle.partitions import name_partition
from tidemark.lifecycle.policy import Snapshot, decide
from tidemark.lifecycle.state import LifecycleState, Partition
from tidemark.lifecycle.windows import Slice, Windows
from tidemark.settings import Settings
from tidemark.spark.session import spark_session
from tidemark.write_buffer.file.folder import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.manifest import DataFile
    from pyspark.sql import DataFrame, SparkSession

ROWS, BATCHES, LATE_OF_HUNDRED, LATE_BY_HOURS = 10_000_000, 20, 5, 6
YOUNG_BATCHES = 2  # the last ones: they arrive so late that a pass leaves them open, but for their late rows
PARTITIONS = 10_000
MINUTE_MS, HOUR_MS, START_MS = 60_000, 3_600_000, 1_357_016_400_000  # 2013-01-01T05
END_MS = START_MS + BATCHES * HOUR_MS
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "at", TimestamptzType())
)
PLAIN = "tidemark.collections.plain"


@dataclass(frozen=True)
class _At:
    """A clock that stands still."""

    time_ms: int

    def now_ms(self) -> int:
        return self.time_ms


# While its rows are appended, and not read from the buffer.
_APPENDED = Declaration.model_validate(
    {"name": "events", "kind": "append-only", "schema": "id bigint, name string, at timestamp"}
)


@dataclass(frozen=True)
class _Persisting:
    """A collection with open rows, in as many files as there were batches or more, and a plain table beside it."""

    spark: SparkSession
    settings: Settings
    rows: int

    def declaration(self, *key: str) -> Declaration:
        return Declaration.model_validate(
            {
                "name": "events",
                "kind": "append-only",
                "schema": "id bigint, name string, at timestamp",
                "source": {"buffer": (self.settings.home / "buffer").as_uri()},
                "event_time": "at",
                "partition": "hour",
                "key": [*key],
            }
        )

    def fill(self) -> None:
        """Append an hour at a time, each row somewhere in that hour, or late; ingests count them, the young ones last.

        When a pass comes, most rows are 35 minutes old, and the young ones 4.
        """
        open_folder(self.settings.home / "buffer", sequencers=1)
        shards, deployment = Shards.connect(self.settings), deployment_of(self.settings)
        shard = shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
        old = range(BATCHES - YOUNG_BATCHES)
        for numbers, clock in ((old, _At(END_MS)), (range(len(old), BATCHES), _At(END_MS + 31 * MINUTE_MS))):
            register(self.settings, _APPENDED)
            for number in numbers:
                name = BatchName("bench", Range(number, number + 1))
                append_frame(shard, name, self._batch(number), deployment=deployment, clock=clock)
            engine, declaration = ingesting.Engine(), register(self.settings, self.declaration())
            ingest(shards, declaration, deployment=deployment, clock=clock, engine=engine)
        plain = self._stored().limit(0).writeTo(PLAIN)
        for asked in FILE_FORM:
            plain = plain.tableProperty(asked, TABLE_PROPERTIES[asked])
        plain.create()

    def _batch(self, number: int) -> DataFrame:
        each = self.rows // BATCHES
        drawn = F.pmod(F.xxhash64("id"), F.lit(HOUR_MS * 100))
        late_hours = F.when(drawn % 100 < LATE_OF_HUNDRED, 1 + F.pmod(F.hash("id"), F.lit(LATE_BY_HOURS))).otherwise(0)
        at_ms = F.lit(START_MS + number * HOUR_MS) - late_hours * HOUR_MS + drawn.cast("bigint") % HOUR_MS
        ids = self.spark.range(number * each, (number + 1) * each, 1, 2)
        return ids.select(
            "id", F.concat(F.lit("sensor-"), F.col("id") % 97).alias("name"), F.timestamp_millis(at_ms).alias("at")
        )

    def _stored(self) -> DataFrame:
        return self.spark.read.table("tidemark.collections.events")

    def persist(self, *key: str) -> None:
        """Make a pass as the DAG does; of rows that are equal in event time and ``key`` it persists one."""
        shard = Shards.connect(self.settings).open("events")
        deployment, clock = deployment_of(self.settings), _At(END_MS + 35 * MINUTE_MS)
        engine = Engine(start_spark=lambda: self.spark)
        report = persist(shard, self.declaration(*key), deployment=deployment, clock=clock, engine=engine)
        assert report.strategy == "persisted", report

    def sort_and_write(self) -> None:
        """Sort the same rows by time into as many files."""
        size = sum(file.file_size_in_bytes for file in self.files())
        rows = self._stored().repartitionByRange(ceil(size / SPARK_FILE_BYTES), "at").sortWithinPartitions("at")
        rows.writeTo(PLAIN).option("distribution-mode", "none").append()

    def files(self) -> list[DataFile]:
        head = Shards.connect(self.settings).open("events").load()
        return list(read_data_files(head.table.io, head.contents).values())

    def check_split(self) -> None:
        """Assert that most rows are persisted, and that young ones are open."""
        order_id = find_time_order(Shards.connect(self.settings).open("events").load().table, "at")
        counts = {True: 0, False: 0}
        for file in self.files():
            counts[file.sort_order_id == order_id] += file.record_count
        young = self.rows * YOUNG_BATCHES / BATCHES * (1 - LATE_OF_HUNDRED / 100)
        assert sum(counts.values()) == self.rows, counts
        assert 0.95 < counts[False] / young < 1.05, counts

    def overlap(self) -> float:
        """Return how much of the time of the persisted files is that of two files, from 0 to 1."""
        table = Shards.connect(self.settings).open("events").load().table
        order_id, field = find_time_order(table, "at"), table.schema().find_field("at")
        persisted = [find_times(file, field) for file in self.files() if file.sort_order_id == order_id]
        times = sorted(each for each in persisted if each is not None)
        assert len(times) > 1, "of one file nobody can tell"
        twice = sum(max(0, one.end_ms - 1 - after.start_ms) for one, after in pairwise(times))
        return twice / sum(each.end_ms - each.start_ms for each in times)

    def location(self) -> str:
        with closing(sqlite3.connect(self.settings.catalog_path)) as database:
            query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'events'"
            return str(database.execute(query).fetchone()[0])

    def restore(self, location: str) -> None:
        """Put the collection back: metadata and data files are never changed, only pointed at."""
        with closing(sqlite3.connect(self.settings.catalog_path)) as database, database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'events'", (location,))


def measure_persisting(spark: SparkSession, settings: Settings, *, rows: int, runs: int) -> Iterator[Figure]:
    """Yield how long persists take against a plain sort and write, and how far the persisted files overlap."""
    bench = _Persisting(spark, settings, rows)
    bench.fill()
    location, overlaps = bench.location(), list[float]()

    def persist_due() -> None:
        bench.persist()
        overlaps.append(bench.overlap())

    sides: dict[str, Callable[[], None]] = {
        "persist": persist_due,
        "persist by key": partial(bench.persist, "id"),
        "plain": bench.sort_and_write,
    }
    checked = {"persist", "persist by key"}
    times = alternate(
        sides,
        runs,
        before=lambda: bench.restore(location),
        check=lambda side: bench.check_split() if side in checked else None,
    )
    of = f"{rows / 1_000_000:g} M rows, {LATE_OF_HUNDRED} % late"
    plain = ("sort and write", times["plain"])
    for name, limit in (("persist", 1.5), ("persist by key", None)):
        yield Figure(f"{name} of {of}", "s", tuple(times[name]))
        ratio = f"{name} of {of} / plain sort and write"
        yield Figure.ratio(ratio, numerator=(name, times[name]), denominator=plain, at_most=limit)
    yield Figure("overlap in time of files persisted at once", "%", tuple(100 * each for each in overlaps), at_most=1)


def measure_policy(settings: Settings, *, runs: int) -> Iterator[Figure]:
    """Yield how long a pass over many partitions takes until it is decided what to do; and until all that is done.

    A pass reads the state and decides. With much to do, it then writes the state with the persists under way, and at
    its end reads and writes that once more; files and commits are left out.
    """
    state, rules = LifecycleState(partitions=_partitions()), LifecycleRules()
    declared = PartitionRules("at", Unit.HOUR, rules)
    head = Shards.connect(settings).create("policy", schema=SCHEMA, layout=ShardKind.APPEND_ONLY).load()
    stored, now_ms = str(Partitions(column="at", unit=Unit.HOUR, state=state)), HOUR_MS + 1_000
    until_decided, until_done = [], []
    for _ in range(runs):
        began = time.perf_counter()
        known, _given_up = _read_partitions(stored).drop_persists()
        snapshot = Snapshot(collection="policy", partitions=as_chunks(head, known, declared))
        due = [each for each in decide(snapshot, rules, now_ms=now_ms) if each.action is Action.PERSIST]
        until_decided.append(time.perf_counter() - began)
        known, begun = known.start_persist(due, now_ms=now_ms, rules=rules)
        intervals_of(begun)
        finished = str(_read_partitions(str(known)).finish_persist(begun, rules))
        until_done.append(time.perf_counter() - began)
        assert len(begun) == PARTITIONS // 2
        persisted = [each for each in _read_partitions(finished).state.partitions.values() if each.windows.is_persisted]
        assert len(persisted) == PARTITIONS // 2
    pass_ = f"policy pass over {PARTITIONS} partitions"
    yield Figure(pass_, "s", tuple(until_decided), at_most=1)
    yield Figure(f"{pass_}, {PARTITIONS // 2} of them persisted", "s", tuple(until_done))


def _partitions() -> dict[str, Partition]:
    """Return partitions with rows of four sequencers; those of every other one are an hour older."""
    late_ms, partitions = 300_000, {}
    for number in range(PARTITIONS):
        start_ms = START_MS + number * HOUR_MS
        windows = Windows()
        for sequencer_id in range(4):
            numbers = NumberRange(number, number + 1)
            arrived = Slice(
                sequencer_id=sequencer_id, numbers=numbers, rows=100, start_ms=start_ms, end_ms=start_ms + 100
            )
            windows = windows.add_range(arrived, arrived_ms=number % 2 * HOUR_MS, late_ms=late_ms)
        partitions[name_partition(Unit.HOUR, start_ms)] = Partition(windows=windows)
    return partitions


def _read_partitions(text: str) -> Partitions:
    return Partitions.parse({PROPERTY: text}, "at", Unit.HOUR)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.persisting", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        settings = Settings.load({**os.environ, "TIDEMARK_HOME": folder})
        figures = [*measure_policy(settings, runs=arguments.runs)]
        with spark_session(settings, app_name="tidemark-bench", master="local[2]") as spark:
            figures += measure_persisting(spark, settings, rows=arguments.rows, runs=arguments.runs)
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
