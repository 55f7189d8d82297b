"""Ingesting small JSON messages from a real broker beside it, against reading, parsing and writing them plainly.

``python -m bench.ingesting MESSAGES`` prints the table; with ``--memory`` the most memory that one ingest takes, in MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.declared import register
from bench.figures import Figure, read_json, write_or_print
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.iceberg.shard.layout import TABLE_PROPERTIES
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import BufferLog, look_at
from tidemark.ingest.ingest import ingest
from tidemark.ingest.messages import RowDecoder, decoded_columns
from tidemark.ingest.parts.ingesting import Engine
from tidemark.ingest.plan import plan_ingest
from tidemark.ingest.range_rows import RowReading, cut_parts
from tidemark.ingest.spark_source import observed_tallies, read_rows
from tidemark.settings import Settings
from tidemark.spark.conf import submit_conf
from tidemark.spark.session import spark_session
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.registry import open_reader
from tidemark.write_buffer.spark_source import BufferDataSource
from tools.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Observation, SparkSession

PARTITIONS, PART_NUMBERS = 4, 500_000
MESSAGES, QUICK_MESSAGES = 4_000_000, 100_000
FEW, MANY = 1_000_000, 16_000_000  # of which memory must be the same
SCHEMA = "id bigint, name string, value double"
TOPIC = "messages"
CLOCK = SystemClock()
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SAMPLE_S = 0.1


def measure_ingesting(settings: Settings, folder: Path, *, messages: int, runs: int) -> Iterator[Figure]:
    """Yield rates and ratios of ``messages``; each side is measured in turn."""
    with filled_broker(settings, folder, messages) as address, spark_session(
        settings, app_name="tidemark-bench", master="local[2]"
    ) as spark:  # fmt: skip
        bench = _Ingesting(spark, settings, address, messages)
        times: dict[str, list[float]] = {}
        for run in range(-1, runs):  # one warm-up
            for name, work in bench.sides(run).items():
                started = time.perf_counter()
                work()
                if run >= 0:
                    times.setdefault(name, []).append(time.perf_counter() - started)
    million = f"{messages / 1_000_000:g} M messages"
    rates = tuple(messages / seconds for seconds in times["raw"])
    yield Figure(f"raw read of {million}", "/s", rates, at_least=400_000)
    yield Figure(f"ingest of {million}", "/s", tuple(messages / seconds for seconds in times["ingest"]))
    for name, beside, at_least in (("reading and parsing", "parsed", 0.6), ("without ledger and commit", "plain", 0.9)):
        yield Figure.ratio(
            f"rate of ingest of {million} / {name}",
            numerator=(name, times[beside]),
            denominator=("ingest", times["ingest"]),
            at_least=at_least,
        )


def measure_memory(settings: Settings, folder: Path, *, few: int = FEW, many: int = MANY) -> Iterator[Figure]:
    """Yield how much more memory a backlog of ``many`` takes than one of ``few``; each in a process of its own."""
    peaks = {}
    for messages in (few, many):
        results = folder / f"memory-{messages}.json"
        command = [sys.executable, "-m", "bench.ingesting", str(messages), "--memory", "--results", str(results)]
        environ = {**os.environ, "TIDEMARK_JARS": str(settings.jars), "SPARK_DRIVER_MEMORY": "1g"}
        subprocess.run(command, stdout=sys.stderr, check=True, env=environ)
        (figure,) = read_json(results)
        peaks[messages] = figure.median
    yield Figure.ratio(
        f"memory of an ingest of {many / 1_000_000:g} M / {few / 1_000_000:g} M",
        numerator=("many", [peaks[many]]),
        denominator=("few", [peaks[few]]),
        at_most=1.2,
    )


class _Ingesting:
    def __init__(self, spark: SparkSession, settings: Settings, address: str, messages: int) -> None:
        self.spark, self.settings, self.address, self.messages = spark, settings, address, messages
        self.shards, self.deployment = Shards.connect(settings), deployment_of(settings)
        self.declaration = self._declare("parsed")
        connection = parse_connection(address)
        table = self.shards.open("parsed").load().table
        decoder = RowDecoder(decoded_columns(table))
        self.reading = RowReading(connection, TOPIC, decoder, table.metadata.current_schema_id)
        with open_reader(connection) as reader:
            self.log = BufferLog.of(connection, identity=reader.identity)
            self.planned = plan_ingest(
                self.log, look_at(reader), {}, {}, starts={}, source=BufferSource(buffer=self.address)
            )
        plain = self._rows().limit(0).writeTo("tidemark.collections.plain")
        for name in ("write.parquet.compression-codec", "write.parquet.compression-level"):
            plain = plain.tableProperty(name, TABLE_PROPERTIES[name])
        plain.create()

    def sides(self, run: int) -> dict[str, Callable[[], None]]:
        sides: dict[str, Callable[[], None]] = {
            "raw": self._read_raw,
            "parsed": self._parse,
            "plain": lambda: self._rows().writeTo("tidemark.collections.plain").append(),
        }
        declaration = self._declare(f"ingested_{run + 1}")
        sides["ingest"] = partial(self._ingest, declaration)
        return dict(sorted(sides.items(), reverse=run % 2 == 0))  # neither always comes after the other

    def _declare(self, name: str) -> Declaration:
        fields = {"name": name, "kind": "append-only", "schema": SCHEMA, "source": {"buffer": self.address}}
        self.shards.create(name, schema=to_iceberg(parse_columns(SCHEMA)), layout=ShardKind.APPEND_ONLY)
        return register(self.settings, Declaration.model_validate(fields))

    def _read_raw(self) -> None:
        self.spark.dataSource.register(BufferDataSource)
        reading = self.spark.read.format("tidemark_buffer").schema("number long, payload binary")
        options = {"buffer": self.address, "part_numbers": str(PART_NUMBERS)}
        reading.options(**options).load().write.format("noop").mode("overwrite").save()

    def _rows(self) -> DataFrame:
        return self._read()[0]

    def _read(self) -> tuple[DataFrame, Observation]:
        return read_rows(self.spark, self.reading, cut_parts(self.log, self.planned, PART_NUMBERS))

    def _parse(self) -> None:
        rows, counts = self._read()
        rows.write.format("noop").mode("overwrite").save()
        assert sum(tally.rows for tally in observed_tallies(counts)) == self.messages

    def _ingest(self, declaration: Declaration) -> None:
        engine = Engine(start_spark=lambda: self.spark, small_entries=0, part_numbers=PART_NUMBERS)
        report = ingest(self.shards, declaration, deployment=self.deployment, clock=CLOCK, engine=engine)
        assert report.inserted == self.messages


@contextmanager
def filled_broker(settings: Settings, folder: Path, messages: int) -> Iterator[str]:
    """A broker with ``messages`` in one topic; yields the address of the buffer."""
    broker = KafkaBroker(folder / "kafka", settings.jars)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result()
        producer = Producer(
            {"bootstrap.servers": broker.address, "linger.ms": 20, "batch.size": 1_000_000,
             "queue.buffering.max.messages": 1_000_000}
        )  # fmt: skip
        for number in range(messages):
            payload = b'{"id":%d,"name":"sensor-%d","value":%.1f}' % (number, number % 97, number % 300 / 10)
            while True:
                try:
                    producer.produce(TOPIC, value=payload, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(120) == 0
        yield f"kafka://{broker.address}/{TOPIC}"
    finally:
        broker.kill()


def peak_memory_mb(settings: Settings, folder: Path, messages: int) -> float:
    """Return the most memory that this process and its children, the broker aside, have during one ingest.

    Of two looks in a row the smaller one counts: a child that is just being forked still has the memory of its parent,
    which would count twice.
    """
    peak = before = 0.0
    ended = Event()
    with filled_broker(settings, folder, messages) as address:
        brokers = set(_children(os.getpid()))

        def sample() -> None:
            nonlocal peak, before
            while not ended.wait(_SAMPLE_S):
                pids = {os.getpid(), *_children(os.getpid())} - brokers
                now = sum(_resident_mb(pid) for pid in pids)
                peak, before = max(peak, min(before, now)), now

        # The heap is there from the start: how much of it a JVM has touched says nothing about what it needs.
        options = f"{submit_conf(settings)[JAVA_OPTIONS]} -Xms1g -XX:+AlwaysPreTouch"
        with spark_session(
            settings, app_name="tidemark-bench", master="local[2]", conf={JAVA_OPTIONS: options}
        ) as spark:
            bench = _Ingesting(spark, settings, address, messages)
            thread = Thread(target=sample)
            thread.start()
            bench.sides(0)["ingest"]()
            ended.set()
            thread.join()
    return peak


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                children += map(int, (task / "children").read_text().split())
    return [each for child in children for each in (child, *_children(child))]


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ingesting", description=__doc__)
    parser.add_argument("messages", type=int)
    parser.add_argument("--memory", action="store_true", help="of one ingest, the most that it takes, instead of time")
    parser.add_argument("--with-memory", action="store_true", help=f"of {MANY} messages beside that of {FEW}, too")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        settings = Settings.load({**os.environ, "TIDEMARK_HOME": folder})
        if arguments.memory:
            peak = peak_memory_mb(settings, Path(folder), arguments.messages)
            figures = [Figure(f"memory of an ingest of {arguments.messages / 1_000_000:g} M", "MB", (peak,))]
        else:
            figures = list(measure_ingesting(settings, Path(folder), messages=arguments.messages, runs=arguments.runs))
        if arguments.with_memory:
            figures += measure_memory(settings, Path(folder))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
