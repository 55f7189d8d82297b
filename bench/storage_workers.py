"""Storage workers: how soon a message is a visible row, what a second worker adds, and what an hour leaves.

The source of the comparison of one worker with two is throttled: each worker reads so many entries a second at most, as
if its network were the limit. The hour is one of rounds: 720 rounds as fast as they go, with the ages that upkeep keeps
scaled to the pace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from bench.declared import register
from bench.figures import Figure, write_or_print
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest import range_rows
from tidemark.settings import Settings
from tidemark.storage.board import Board, Entry
from tidemark.storage.commands import CreateIngestionDataflow, Ingestion
from tidemark.storage.dataflows import upkeep
from tidemark.storage.dataflows.dataflow import Seen, Surroundings
from tidemark.storage.dataflows.ingestion import IngestionDataflow
from tidemark.storage.processes.process import Until, run_worker
from tidemark.storage.sharing import place_of
from tidemark.write_buffer import registry
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message
from tools.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "sent_ms", LongType()), NestedField(3, "t", StringType())
)
COLUMNS = "id bigint, sent_ms bigint, t string"
PARTITIONS, WORKERS = 8, 2
PRODUCED_S, PER_SECOND = 60, 500
ENTRIES, ENTRIES_A_SECOND, MOST_ENTRIES = 400_000, 20_000, 50_000
HOUR_S, EVERY_S = 3_600, 5


def declare(settings: Settings, buffer: str, *, every: str, most_entries: int = 50_000) -> Declaration:
    """Create and register a collection that workers fill."""
    source = {"buffer": buffer, "every": every, "most_entries": most_entries}
    declared = Declaration.model_validate(
        {"name": "events", "kind": "append-only", "schema": COLUMNS, "source": source}
    )
    Shards.connect(settings).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    return register(settings, declared)


@contextmanager
def running(settings: Settings, workers: int, command: Sequence[str]) -> Iterator[None]:
    """Run workers as processes of their own while the block runs."""
    environ = os.environ | {"TIDEMARK_HOME": str(settings.home)}
    processes = [
        subprocess.Popen([sys.executable, "-m", *command, "--worker", str(n), "--workers", str(workers)], env=environ)
        for n in range(workers)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def commits(settings: Settings) -> list[tuple[int, int]]:
    """Return when each commit of rows became visible, in ms, and how many rows main had then."""
    table = Shards.connect(settings).open("events").load().table
    main = table.metadata.refs["main"].snapshot_id
    found: list[tuple[int, int]] = []
    snapshot = table.snapshot_by_id(main)
    while snapshot is not None:
        summary = snapshot.summary
        found.append((snapshot.timestamp_ms, int((summary["total-records"] if summary else None) or 0)))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found[::-1]


def wait_for(settings: Settings, rows: int, *, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while commits(settings)[-1][1] < rows:
        assert time.monotonic() < until_s, f"{commits(settings)[-1]} of {rows} rows"
        time.sleep(0.5)


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Run a broker while the block runs; yield its address."""
    broker = KafkaBroker(folder, Settings.load(os.environ).jars)
    broker.start()
    try:
        yield broker.address
    finally:
        broker.stop()


def make_topic(address: str, topic: str) -> str:
    """Make a topic; return its address."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result()
    return f"kafka://{address}/{topic}"


def measure_latency(folder: Path, broker: str) -> Iterator[Figure]:
    """Yield how long messages on a real broker take until they are visible rows, with ``every: 5s``."""
    settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(folder / "home")})
    declare(settings, make_topic(broker, "events"), every="5s")
    with running(settings, WORKERS, ["tidemark", "storage", "run"]):
        _produce(broker, 1)
        wait_for(settings, PER_SECOND, seconds=60)  # the workers have begun
        _produce(broker, PRODUCED_S, first=PER_SECOND)
        wait_for(settings, PER_SECOND * (PRODUCED_S + 1), seconds=60)
    latencies = sorted(_latencies(settings))
    for share, at_most in ((0.5, 6.0), (0.95, 12.0)):
        name = f"from message to visible row, every 5s, {WORKERS} workers, p{int(100 * share)}"
        yield Figure(name, "s", (latencies[int(share * len(latencies))] / 1000,), at_most=at_most)


def _produce(broker: str, seconds: int, *, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": "0", "linger.ms": 5})
    began_s = time.monotonic()
    for number in range(seconds * PER_SECOND):
        row = {"id": first + number, "sent_ms": time.time_ns() // 1_000_000, "t": "x" * 50}
        producer.produce("events", json.dumps(row).encode(), partition=number % PARTITIONS)
        producer.poll(0)
        time.sleep(max(0.0, began_s + number / PER_SECOND - time.monotonic()))
    assert producer.flush(60) == 0


def _latencies(settings: Settings) -> Iterator[int]:
    """Yield of each row but the first ones how long it took from its message to the commit that showed the row."""
    table = Shards.connect(settings).open("events").load().table
    main = [snapshot_id for snapshot_id, _ in _lineage(table)]
    for before, after in pairwise(main):
        came = table.snapshot_by_id(after)
        assert came is not None
        rows = table.scan(snapshot_id=after, selected_fields=("id", "sent_ms")).to_arrow().to_pylist()
        known = {row["id"] for row in table.scan(snapshot_id=before, selected_fields=("id",)).to_arrow().to_pylist()}
        yield from (
            came.timestamp_ms - row["sent_ms"] for row in rows if row["id"] not in known and row["id"] >= PER_SECOND
        )


def _lineage(table: Any) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    snapshot = table.snapshot_by_id(table.metadata.refs["main"].snapshot_id)
    while snapshot is not None:
        found.append((snapshot.snapshot_id, snapshot.timestamp_ms))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found[::-1]


def measure_rates(folder: Path, broker: str, *, runs: int) -> Iterator[Figure]:
    """Yield how many rows a second one worker, and two, make visible from a throttled source."""
    rates: dict[int, list[float]] = {1: [], WORKERS: []}
    for number in range(runs):
        for workers, found in rates.items():
            settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(folder / f"home-{number}-{workers}")})
            topic = f"rates-{number}-{workers}"
            declare(settings, make_topic(broker, topic), every="1s", most_entries=MOST_ENTRIES)
            _fill(broker, topic)
            with running(settings, workers, ["bench.storage_workers"]):
                wait_for(settings, ENTRIES, seconds=300)
            shown = [each for each in commits(settings) if each[1]]
            (began_ms, before), (ended_ms, after) = shown[0], shown[-1]
            found.append((after - before) * 1000 / (ended_ms - began_ms))
    for workers, found in rates.items():
        yield Figure(f"rows from a throttled source, {workers} workers", "rows/s", tuple(found))
    ratio = f"rate of {WORKERS} workers / one worker, source throttled"
    yield Figure.ratio(ratio, numerator=("two", rates[WORKERS]), denominator=("one", rates[1]), at_least=1.6)


def _fill(broker: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": "0", "queue.buffering.max.messages": ENTRIES})
    for number in range(ENTRIES):
        row = {"id": number, "sent_ms": 0, "t": "x" * 50}
        producer.produce(topic, json.dumps(row).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def measure_an_hour(folder: Path) -> Iterator[Figure]:
    """Yield what an hour of rounds leaves: files, after maintenance, and the largest metadata on the way."""
    settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(folder / "hour")})
    buffer = open_folder(folder / "hour-buffer", sequencers=2)
    declared = declare(settings, (folder / "hour-buffer").as_uri(), every="1s")
    started = CreateIngestionDataflow("collection-1", Ingestion(json.dumps(declared.to_json()), ()), 0, {})
    shards = Shards.connect(settings)
    around = Surroundings(settings, 0, SystemClock(), lambda: deployment_of(settings), shards, Board(settings))
    running_here = {"dataflows": {"collection-1": {"started_at": 0, "upper": 0}}, "ended": ""}
    around.seen = Seen({place_of(0): Entry(place_of(0), 1, 1, running_here, 0)}, (0,))
    around.may_write = True
    dataflow = IngestionDataflow(around, started, 0)
    shard, sizes, began_s = shards.open("events"), [0], time.monotonic()
    for number in range(HOUR_S // EVERY_S):
        for log in buffer.logs.values():
            log.append(encode_message(Message(json.dumps({"id": number, "sent_ms": 0, "t": "x"}).encode(), (), 1_000)))
        if number:  # ages are counted in rounds
            round_ms = 1000 * (time.monotonic() - began_s) / number
            upkeep.SNAPSHOT_AGE_MS = int(300 / EVERY_S * round_ms)  # type: ignore[misc]
            upkeep.HISTORY_MS = int(HOUR_S / EVERY_S * round_ms)  # type: ignore[misc]
        dataflow._rounds._due_s = 0.0  # noqa: SLF001 - as fast as it goes
        dataflow.step()
        if number % 16 == 15:
            sizes.append(_metadata_bytes(shard))
    dataflow.close()
    assert not dataflow.news.error, dataflow.news
    report = maintain_all(None, deployment_of(settings), ["events"])
    assert report.outcome == "ok", report
    head = shard.load()
    files = len(read_data_files(head.table.io, head.contents))
    yield Figure("an hour of every 5s, one round", "s", ((time.monotonic() - began_s) / (HOUR_S / EVERY_S),))
    yield Figure("an hour of every 5s, files after maintenance", "files", (float(files),), at_most=40)
    yield Figure("an hour of every 5s, largest metadata", "MB", (max(sizes) / 1e6,), at_most=5)


def _metadata_bytes(shard: Any) -> int:
    location = shard.load().table.metadata_location.removeprefix("file://")
    return Path(location).stat().st_size


def throttled_worker(index: int, workers: int) -> None:
    """Be a worker whose source gives so many entries a second at most."""
    read_batches = registry.read_batches

    def read_slowly(*arguments: Any) -> Iterator[Any]:
        for batch in read_batches(*arguments):
            time.sleep(batch.num_rows / ENTRIES_A_SECOND)
            yield batch

    vars(range_rows)["read_batches"] = read_slowly
    settings = Settings.load(os.environ)
    run_worker(settings, index=index, workers=workers, until=Until(), stop=Event(), clock=SystemClock())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.storage_workers", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        throttled_worker(arguments.worker, arguments.workers)
        return 0
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        with running_broker(Path(folder, "kafka")) as broker:
            figures = [
                *measure_latency(Path(folder), broker),
                *measure_rates(Path(folder), broker, runs=arguments.runs),
            ]
        figures += measure_an_hour(Path(folder))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
