"""The collection `events`, and a topic of a real broker as the target of its sinks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.sinks.changes import change

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tools.kafka_broker import KafkaBroker

PARTITIONS = 3


class Seen(NamedTuple):
    """A message as any consumer gets it."""

    partition: int
    key: Any
    value: Any
    headers: dict[str, bytes]


@dataclass
class Topic:
    """The target, as any consumer of committed messages sees it."""

    address: str
    name: str

    @property
    def uri(self) -> str:
        return f"kafka://{self.address}/{self.name}?sequencers={PARTITIONS}"

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def exists(self) -> bool:
        return self.name in self.admin.list_topics(timeout=10).topics  # by name, the broker would make it

    def messages(self, name: str | None = None) -> list[Seen]:
        """Return what is committed, those of each partition in their order."""
        found: list[Seen] = []
        topic = name or self.name
        conf = {
            "bootstrap.servers": self.address, "group.id": "a test", "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
        }  # fmt: skip
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        consumer = Consumer(conf)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            for message in consumer.consume(1_000, timeout=1.0):
                error = message.error()
                if error is None:
                    found.append(_seen(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        return found

    def has_nothing_open(self) -> bool:
        """Tell whether who reads what is committed comes to the ends of all partitions."""
        partitions = self.admin.list_topics(self.name, timeout=10).topics[self.name].partitions
        latest = {TopicPartition(self.name, partition): OffsetSpec.latest() for partition in partitions}
        committed, all_ = (
            self.admin.list_offsets(latest, isolation_level=level)
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        return all(committed[each].result().offset == all_[each].result().offset for each in latest)

    def contents(self) -> list[tuple[Any, ...]]:
        """Return the values of the last message of each key, as a compacted topic keeps them."""
        return sorted(tuple(value.values()) for value in self.last_values())

    def last_values(self) -> list[dict[str, Any]]:
        """Return the values of the last message of each key that has one."""
        last = {json.dumps(seen.key): seen.value for seen in self.messages()}
        return [value for value in last.values() if value is not None]

    def sums(self) -> list[tuple[Any, ...]]:
        """Return the rows whose diffs do not sum up to nothing, as often as they do."""
        sums: dict[tuple[Any, ...], int] = {}
        for seen in self.messages():
            row = tuple(value for name, value in seen.value.items() if name not in {"_time", "_diff"})
            sums[row] = sums.get(row, 0) + seen.value["_diff"]
        assert min(sums.values(), default=0) >= 0
        return sorted(row for row, count in sums.items() for _ in range(count))

    def write(self, *messages: tuple[str | None, str | None]) -> None:
        """Write as a foreign producer does: keys and values."""
        producer = Producer({"bootstrap.servers": self.address, "log_level": "0"})
        for key, value in messages:
            producer.produce(self.name, key=key, value=value)
        assert producer.flush(30) == 0


def _seen(message: Any) -> Seen:
    key, value = message.key(), message.value()
    return Seen(
        message.partition(),
        None if key is None else json.loads(key),
        None if value is None else json.loads(value),
        dict(message.headers() or ()),
    )


@pytest.fixture
def topic(kafka: KafkaBroker, unique_name: str) -> Topic:
    return Topic(kafka.address, unique_name)


@pytest.fixture
def sinking(carrying: Home) -> Home:
    """Three rows."""
    change(carrying, put={0: "a", 1: "b", 2: None})
    return carrying
