"""Writes to a Kafka topic: to the partition that the caller names, acknowledged by all replicas."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from tidemark.clock import Clock
from tidemark.write_buffer.errors import BufferUnreachable, EntryTooLarge
from tidemark.write_buffer.formats.entry import Entry, Message, Sequence
from tidemark.write_buffer.kafka.topic import LIMIT_NAME, NOT_ACKNOWLEDGED, KafkaTopic, failure, usable_bytes
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES, Stored, Writer

_POLL_S = 0.02
_SENT_AT_ONCE = 100_000
_LARGEST_CLIENT_LIMIT = 1_000_000_000
_TUNABLE = {
    "compression.type": "snappy",
    "message.timeout.ms": "4500",  # a broker that is down is reported within 5 s
    "queue.buffering.max.messages": str(2 * _SENT_AT_ONCE),
}


@dataclass(slots=True)
class _Delivery:
    """The outcome of one message of ``size_bytes``."""

    size_bytes: int
    answer: Stored | None = None
    error: KafkaError | None = None

    def arrived(self, error: KafkaError | None, message: KafkaMessage) -> None:
        if error is not None:
            self.error = error
        else:
            sequence = Sequence(int(message.partition() or 0), int(message.offset() or 0))
            self.answer = Stored(sequence, message.timestamp()[1])

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class KafkaWriter(Writer):
    """Writes to the partitions that the topic had when this was opened.

    Raises:
        BufferMissing: If there is no such topic, and ``create`` is false.
        BufferUnreachable: If no broker answers in time.
        ConfigurationInvalid: If librdkafka or the broker refuse the settings.
    """

    limit_name = LIMIT_NAME

    def __init__(self, topic: KafkaTopic, *, clock: Clock, create: bool = False) -> None:
        sequencer_ids = topic.open(create=create).sequencer_ids
        super().__init__(sequencer_ids, name=topic.name, limit_bytes=usable_bytes(topic.read_limit_bytes()))
        self._topic, self._clock = topic, clock
        configuration = {
            # The client's own limit counts other bytes than the topic's: keep it so high that it never applies.
            "message.max.bytes": str(min(2 * max(self._limit_bytes, DEFAULT_LIMIT_BYTES), _LARGEST_CLIENT_LIMIT)),
            **_TUNABLE,
            **topic.client_configuration(),
            **topic.connection.producer,
            "acks": "all",
            "enable.idempotence": "true",  # the client's own retries neither double an entry nor change the order
        }
        try:
            self._producer = Producer(configuration)
            # Connect now: otherwise the first entry waits half a second for the producer's id.
            self._producer.list_topics(topic.connection.topic, timeout=topic.connection.timeout_s)
        except KafkaException as error:
            raise failure(error.args[0], self.name) from error

    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:
        return self.store_entries([entry], sequencer_id)[0]

    def store_entries(self, entries: Iterable[Entry], sequencer_id: int) -> list[Stored]:
        self.check_sequencer(sequencer_id)
        answers: list[Stored] = []
        waiting: list[_Delivery] = []
        for entry in entries:
            message = Message.of(entry, self._clock.now_ms())
            try:
                self.check_size(message)
            except EntryTooLarge:
                self._wait(waiting)  # all earlier entries are stored before the caller gets the error
                raise
            waiting.append(self._send(message, sequencer_id))
            if len(waiting) == _SENT_AT_ONCE:
                answers += self._wait(waiting)
                waiting = []
        return answers + self._wait(waiting)

    def _send(self, message: Message, sequencer_id: int) -> _Delivery:
        delivery = _Delivery(message.size_bytes())
        while True:
            try:
                self._producer.produce(
                    self._topic.connection.topic,
                    value=message.payload,
                    partition=sequencer_id,
                    headers=list(message.headers),
                    timestamp=message.time_ms or 0,
                    on_delivery=delivery.arrived,
                )
            except BufferError:  # the client's queue is full: its messages are sent, or time out
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                raise self._refused(error.args[0], delivery.size_bytes) from error
            else:
                return delivery

    def _wait(self, waiting: list[_Delivery]) -> list[Stored]:
        answers = []
        for delivery in waiting:
            while not delivery.done:  # by a call of poll, of this thread or of another one
                self._producer.poll(_POLL_S)
            if delivery.error is not None:
                raise self._refused(delivery.error, delivery.size_bytes)
            if delivery.answer is not None:
                answers.append(delivery.answer)
        return answers

    def _refused(self, error: KafkaError, size_bytes: int) -> Exception:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:  # the topic's limit fell since this writer was opened
            self._limit_bytes = usable_bytes(self._topic.read_limit_bytes())
            return EntryTooLarge(size_bytes, self._limit_bytes, buffer=self.name, limit_name=LIMIT_NAME)
        if error.code() in NOT_ACKNOWLEDGED:
            return BufferUnreachable(
                f"{self.name} did not acknowledge an entry in time: {error.str()}",
                hint="the entry may be in the log all the same: look before it is written again",
            )
        return failure(error, self.name)

    def close(self) -> None:
        """Close the connections; no message is under way, since every call waits for its answers."""
        self._producer.purge()
        until = time.monotonic() + 1.0
        while len(self._producer) and time.monotonic() < until:
            self._producer.poll(_POLL_S)
