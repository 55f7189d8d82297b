"""What only Kafka has: foreign producers, topics that others make, expire and remake, and a broker that dies."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.support.buffers import KafkaContext, entries, entry, take, take_entries
from tests.support.clock import SteppedClock
from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, BufferUnreachable, EntryTooLarge, NoLongerExists
from tidemark.write_buffer.formats.entry import BadMessage, BadReason, Entry, EntryFormat, SequencedEntry
from tidemark.write_buffer.kafka.topic import KafkaTopic
from tidemark.write_buffer.kafka.writer import KafkaWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka
QUIET = {"log_level": "0"}  # about a broker that a test kills on purpose


@pytest.fixture
def context(kafka: KafkaBroker, unique_name: str) -> Iterator[KafkaContext]:
    with KafkaContext(1, kafka.address, unique_name) as context:
        yield context


@pytest.fixture
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.address, **QUIET})


def produce(context: KafkaContext, **messages: Any) -> None:
    """Produce one message as somebody else would."""
    producer = Producer({"bootstrap.servers": context.connection.place, **QUIET})
    producer.produce(context.connection.topic, partition=0, **messages)
    assert producer.flush(10) == 0


def wait_until(happened: Callable[[], object], *, passing: type[Exception] = TimeoutError) -> None:
    """Ask until it has happened, with a deadline; ``passing`` is an error that goes away."""
    until = time.monotonic() + 30
    while True:
        assert time.monotonic() < until
        try:
            if happened():
                return
        except passing:
            continue


def test_topic_create_twice(context: KafkaContext) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: context.topic.open(create=True), range(2))
    assert one == other
    assert one.sequencer_ids == {0}


def test_asking_for_a_topic_does_not_make_it(context: KafkaContext, admin: AdminClient) -> None:
    for opening in (context.reading, context.writing):
        with pytest.raises(BufferMissing):
            opening(create=False)
    assert context.connection.topic not in admin.list_topics(timeout=10).topics, "although the broker would make it"


def test_a_topic_is_made_as_the_creation_says(kafka: KafkaBroker, unique_name: str) -> None:
    options = "sequencers=3&topic.max.message.bytes=5000&producer.compression.type=gzip"
    topic = KafkaTopic(parse_connection(f"kafka://{kafka.address}/{unique_name}?{options}"))
    with KafkaWriter(topic, clock=SteppedClock(), create=True) as writer:
        assert writer.sequencer_ids() == {0, 1, 2}
        writer.store_entry(entry("1"), 2)
    assert topic.read_limit_bytes() == 5000


def test_a_limit_that_fell_since_the_writer_was_opened_is_named(context: KafkaContext, admin: AdminClient) -> None:
    writer = context.writing()
    lower = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, context.connection.topic, incremental_configs=[lower])
    for each in admin.incremental_alter_configs([resource]).values():
        each.result()
    noise = entry(hashlib.shake_128(b"").hexdigest(4_000))
    with pytest.raises(EntryTooLarge, match=r"max\.message\.bytes is 1488 bytes") as refused:
        wait_until(lambda: writer.store_entry(noise, 0) is None)  # brokers hear of it in their own time
    assert refused.value.entry_bytes > 8_000


@pytest.mark.parametrize(
    ("options", "replication"), [({"no.such.option": "1"}, 1), ({"retention.ms": "soon"}, 1), ({}, 3)]
)
def test_a_creation_that_the_broker_refuses_is_a_configuration_error(
    kafka: KafkaBroker, unique_name: str, options: dict[str, str], replication: int
) -> None:
    connection = parse_connection(f"kafka://{kafka.address}/{unique_name}")
    topic = KafkaTopic(replace(connection, topic_options=options, replication=replication))
    with pytest.raises(ConfigurationInvalid, match="refuses"):
        topic.open(create=True)


def test_messages_of_others(context: KafkaContext) -> None:
    """error_no_payload, content_type_header_missing, content_type_header_unknown, headers_case_handling."""
    reader = context.reading()
    produce(context, value=None, headers=[("a", b"1")], timestamp=7)
    produce(context, value=b'{"a":1}', timestamp=8)
    produce(context, value=b"x", headers=[("content-type", b"text/x")])
    produce(context, value=b"", headers=[("CONTENT-type", b"x/y"), ("Content-Type", b"application/json"), ("X", None)])
    with reader.streams() as streams:
        missing, plain, unknown, cased = take(streams[0], 4)
    assert isinstance(missing, BadMessage)
    assert (missing.reason, missing.message.headers, missing.message.time_ms) == (
        BadReason.PAYLOAD_MISSING, (("a", b"1"),), 7,
    )  # fmt: skip
    assert isinstance(plain, SequencedEntry)
    assert (plain.entry, plain.time_ms) == (Entry(b'{"a":1}', EntryFormat.JSON_ROWS), 8)
    assert isinstance(unknown, BadMessage)
    assert (unknown.reason, unknown.detail) == (BadReason.FORMAT_UNKNOWN, "Unknown message format: text/x")
    assert isinstance(cased, SequencedEntry)
    assert cased.entry == Entry(b"", EntryFormat.JSON_ROWS, (("X", b""),))


def test_the_broker_is_never_told_how_far_a_reader_came(context: KafkaContext) -> None:
    context.writing().store_entry(entry("1"), 0)
    reader = context.reading()
    with reader.streams() as streams:
        take(streams[0], 1)
    reader.close()
    asking = Consumer({"bootstrap.servers": context.connection.place, "group.id": "tidemark"})
    (committed,) = asking.committed([TopicPartition(context.connection.topic, 0)], timeout=10)
    asking.close()
    assert committed.offset < 0


def test_what_retention_took_is_said_and_not_jumped_over(context: KafkaContext, admin: AdminClient) -> None:
    writer, behind, fresh = context.writing(), context.reading(), context.reading()
    writer.store_entries([entry(str(number)) for number in range(6)], 0)
    with behind.streams() as streams:
        take(streams[0], 1)
    for each in admin.delete_records([TopicPartition(context.connection.topic, 0, 4)]).values():
        each.result()
    assert (fresh.fetch_earliest(0), fresh.fetch_high_watermark(0)) == (4, 6)
    with fresh.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("4"), entry("5")]
    for _ in range(2):
        with behind.streams() as streams, pytest.raises(NoLongerExists, match="up to 3 entries are lost"):
            streams[0].take(1, timeout_s=5)
    behind.reset_to_earliest()
    with behind.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("4"), entry("5")]


def test_a_topic_that_was_made_anew_is_noticed(context: KafkaContext, admin: AdminClient) -> None:
    writer, reader = context.writing(), context.reading()
    writer.store_entries([entry(str(number)) for number in range(3)], 0)
    with reader.streams() as streams:
        take(streams[0], 3)
    for each in admin.delete_topics([context.connection.topic]).values():
        each.result()
    wait_until(lambda: context.connection.topic not in admin.list_topics(timeout=10).topics)
    again = context.reading()
    assert again.identity != reader.identity
    with reader.streams() as streams, pytest.raises(AfterWatermark, match=r"number 3 .* lies after its watermark 0"):
        wait_until(lambda: bool(streams[0].take(1)), passing=BufferUnreachable)


def test_transactions_leave_holes_also_at_the_end(context: KafkaContext) -> None:
    reader = context.reading()
    producer = Producer({"bootstrap.servers": context.connection.place, "transactional.id": context.connection.topic})
    producer.init_transactions(10)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce(context.connection.topic, value=b'{"number":%d}' % number, partition=0)
        assert producer.flush(10) == 0
        end(10)
    wait_until(lambda: reader.fetch_high_watermark(0) == 6)  # an open transaction ends the log
    with reader.streams() as streams:
        delivered = take(streams[0], 2)
        assert [each.entry.payload for each in delivered if isinstance(each, SequencedEntry)] == [
            b'{"number":0}', b'{"number":2}',
        ]  # fmt: skip
        wait_until(lambda: not streams[0].take(1) and streams[0].next_number == 6)  # behind the last commit's marker


def test_a_new_partition_is_read_from_its_beginning_by_the_next_reader(
    context: KafkaContext, admin: AdminClient
) -> None:
    context.writing().store_entry(entry("old"), 0)
    for each in admin.create_partitions([NewPartitions(context.connection.topic, 2)]).values():
        each.result()
    wait_until(lambda: len(context.topic.open().sequencer_ids) == 2)
    context.writing().store_entry(entry("new"), 1)
    with context.reading().streams() as streams:
        assert take_entries(streams[0], 1) == [entry("old")]
        assert take_entries(streams[1], 1) == [entry("new")]


def test_the_broker_is_killed_and_restarted_in_the_middle(context: KafkaContext, kafka: KafkaBroker) -> None:
    context.topic = KafkaTopic(replace(context.connection, timeout_s=0.5))
    writer, reader = context.writing(), context.reading()
    early, late = ([entry(f"{when} {number}") for number in range(50)] for when in ("early", "late"))
    writer.store_entries(early, 0)
    with reader.streams() as streams:
        read = take_entries(streams[0], 20)
        kafka.kill()
        try:
            began = time.monotonic()
            with pytest.raises(BufferUnreachable, match="did not acknowledge an entry in time"):
                writer.store_entry(entry("uncertain"), 0)
            assert time.monotonic() - began < 5
            with pytest.raises(BufferUnreachable):  # what was fetched before is delivered first
                wait_until(lambda: read.extend(entries(streams[0].take(7, timeout_s=0.2))))
        finally:
            kafka.start()
        writer.store_entries(late, 0)
        wait_until(
            lambda: read.extend(entries(streams[0].take(7, timeout_s=0.5))) or late[-1] in read,
            passing=BufferUnreachable,  # while the client still thinks of the old connection
        )
    assert [each for each in read if each != entry("uncertain")] == early + late
