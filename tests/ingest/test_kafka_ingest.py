"""A real broker: partitions are added, topics made anew, and the broker dies while it is read from."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import RangeOverlap
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest import range_rows
from tidemark.report import Outcome
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.batches import batch_log, checkpoints
from tidemark.write_buffer.errors import BufferUnreachable
from tidemark.write_buffer.keys import keep_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka


class Topic:
    """A topic that any producer writes to."""

    def __init__(self, broker: KafkaBroker, name: str, partitions: int) -> None:
        self.broker, self.name, self.written = broker, name, 0
        self.admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        self.create(partitions)

    @property
    def uri(self) -> str:
        return f"kafka://{self.broker.address}/{self.name}"

    def create(self, partitions: int) -> None:
        self.admin.create_topics([NewTopic(self.name, num_partitions=partitions)])[self.name].result()

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result()

    def told(self, group: str) -> list[int]:
        """Return the offsets that the broker knows of a consumer group, for whoever watches them there."""
        watcher = Consumer({"bootstrap.servers": self.broker.address, "group.id": group, "log_level": "0"})
        try:
            return [each.offset for each in watcher.committed([TopicPartition(self.name, n) for n in range(4)], 30)]
        finally:
            watcher.close()

    def write(self, *partitions: int) -> None:
        """Write a row with an id of its own to each."""
        producer = Producer({"bootstrap.servers": self.broker.address, "log_level": "0"})
        for partition in partitions:
            row = {"id": self.written, "name": "x" * 100}
            producer.produce(self.name, value=json.dumps(row).encode(), partition=partition)
            self.written += 1
        assert producer.flush(30) == 0


@pytest.fixture
def topic(kafka: KafkaBroker, unique_name: str) -> Topic:
    return Topic(kafka, unique_name, 4)


@pytest.fixture
def ingesting(home: Settings, tmp_path: Path, topic: Topic) -> Home:
    found = Home(home, tmp_path, now_ms=1_000_000)
    found.declare_reader(source={"buffer": topic.uri})
    return found


def test_partitions_come_once_and_new_ones_from_their_earliest(ingesting: Home, topic: Topic) -> None:
    topic.write(*range(4), 0, 0)
    assert ingesting.ingest().inserted == 6
    assert ingesting.ledgers() == {"0": "0:3", "1": "0:1", "2": "0:1", "3": "0:1"}
    assert topic.told("tidemark.events") == [3, 1, 1, 1]
    topic.admin.create_partitions([NewPartitions(topic.name, 5)])[topic.name].result()
    until = time.monotonic() + 30
    topic.write(4, 4, 0)
    while len(ingesting.ids()) < 9:
        assert time.monotonic() < until
        ingesting.ingest()
    assert ingesting.ids() == list(range(9))
    assert ingesting.ledgers()["4"] == "0:2"
    assert {row["_producer"].split(".")[0] for row in ingesting.rows()} == {topic.name[:70]}

    topic.delete()
    until = time.monotonic() + 30
    topic.create(5)
    topic.write(*[0] * 9)
    while (report := ingesting.ingest()).error is None or report.error.kind != "LogRecreated":
        assert time.monotonic() < until, report
    assert report.exit_code == ExitCode.NOT_POSSIBLE
    assert ingesting.ids() == list(range(9))
    ingesting.declare_reader(source={"buffer": topic.uri, "on_recreated": "earliest"})
    ingesting.ingest()
    assert ingesting.ids() == list(range(18))


def test_broker_that_dies_between_runs_and_while_it_is_read_from(
    ingesting: Home, topic: Topic, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.write(*[number % 4 for number in range(400)])
    assert ingesting.ingest(max_entries=100).inserted == 100
    kafka.kill()
    began = time.monotonic()
    failed = ingesting.ingest()
    assert time.monotonic() - began < 5
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("BufferUnreachable", ExitCode.UNREACHABLE)
    assert ingesting.ids() == sorted(row["id"] for row in ingesting.rows())
    kafka.start()

    restarts: list[threading.Thread] = []
    read_batches = range_rows.read_batches

    def read_and_kill(*arguments: Any) -> Iterator[Any]:
        for batch in read_batches(*arguments):
            yield batch
            if not restarts:
                kafka.kill()
                restarts.append(threading.Thread(target=kafka.start))
                restarts[0].start()

    monkeypatch.setattr(range_rows, "read_batches", read_and_kill)
    try:
        report = ingesting.ingest()
    finally:
        for each in restarts:
            each.join()
    if report.error is not None:  # whether it waited for the broker or gave up is a matter of time
        assert report.exit_code == ExitCode.UNREACHABLE
        report = ingesting.ingest()
    assert report.outcome is Outcome.APPENDED
    topic.write(0, 1, 2, 3)
    ingesting.ingest()
    assert ingesting.ids() == list(range(404))
    assert ingesting.branches() == set()


def test_appended_batches_come_once_whatever_dies(
    ingesting: Home, topic: Topic, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of keys in four partitions, and logs beside the topic that the appends make: of batches, of checkpoints."""
    monkeypatch.setattr(checkpoints, "INTERVAL", 1)
    connection = parse_connection(topic.uri)
    keep_keys(connection, {"gate": ("id",)}, clock=ingesting.clock)
    ingesting.declare_reader(source={"buffer": topic.uri, "table": "gate"})
    ingesting.declare_writer(writes_to=topic.uri)

    def append(start: int, end: int) -> Outcome:
        ids = pa.array(range(start, end), pa.int64())
        rows, name = pa.table({"id": ids, "name": ["x"] * len(ids)}), BatchName("p", Range(start, end))
        return append_rows(
            ingesting.shard("gate"), name, rows, deployment=ingesting.deployment, clock=ingesting.clock
        ).outcome

    assert append(0, 40) is append(0, 40) is Outcome.FORWARDED
    for start, point in enumerate(batch_log.FAIL_POINTS, start=1):
        wanted = (40 * start, 40 * (start + 1))
        with dying_at(point), pytest.raises(Crash):
            append(*wanted)
        assert append(*wanted) is append(0, 40) is Outcome.FORWARDED
    assert f"{topic.name}.batches.checkpoints" in topic.admin.list_topics(timeout=30).topics
    kafka.kill()
    with pytest.raises(BufferUnreachable):
        append(1_000, 1_001)
    kafka.start()
    report = ingesting.ingest()
    assert (report.inserted, report.details.get("key_spread", {}).get("rows")) == (120, 0)
    assert ingesting.ids() == list(range(120))
    assert {row["_producer"] for row in ingesting.rows()} == {"gate.p"}
    with pytest.raises(RangeOverlap):
        append(100, 200)
    assert ingesting.ingest().inserted == 0
