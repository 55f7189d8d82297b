"""Reads a Kafka topic: one consumer per partition, assigned by hand. No reader position is kept at the broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition as Partition

from tidemark.write_buffer.formats.entry import Delivered, Message, Sequence, read_message
from tidemark.write_buffer.kafka.topic import ELECTING, END_REACHED, OUT_OF_RANGE, UNHEARD_OF, KafkaTopic, failure
from tidemark.write_buffer.reader import Position, Reader, Stream

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.write_buffer.formats.arrow_messages import MessageColumns, RawHeaders

log = logging.getLogger(__name__)

_LOOK_S = 0.05  # between two looks at a watermark that lies below the position
_PROGRESS_PATIENCE_MS = 3_000
_TUNABLE = {
    "queued.max.messages.kbytes": "10240",  # per partition: memory does not grow with the backlog
    "fetch.queue.backoff.ms": "20",  # when the queue is full; the client's own 1000 would let the reader starve
    "fetch.wait.max.ms": "100",
    "fetch.message.max.bytes": "4194304",
}
_PROTECTED = {
    "group.id": "tidemark",  # the client needs a group; nobody ever commits offsets for it
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",  # a lost number is an error: the client must not skip it
    "allow.auto.create.topics": "false",
    "enable.partition.eof": "true",  # reports the end even after trailing holes, which transactions leave
    "isolation.level": "read_committed",
}


class KafkaReader(Reader):
    """Reads the partitions that the topic had when this was opened: all of them, each from its beginning.

    Raises:
        BufferMissing: If there is no such topic, and ``create`` is false.
        BufferUnreachable: If no broker answers in time.
        ConfigurationInvalid: If librdkafka or the broker refuse the settings.
    """

    def __init__(self, topic: KafkaTopic, *, create: bool = False) -> None:
        state = topic.open(create=create)
        super().__init__(state.sequencer_ids, name=topic.name, identity=state.identity)
        self._topic = topic
        self._log = KafkaLog(topic)
        self._log.connect()
        self._partitions: dict[int, KafkaLog] = {}

    def close(self) -> None:
        super().close()
        for kafka_log in (self._log, *self._partitions.values()):
            kafka_log.close()
        self._partitions.clear()

    def tell_progress(self, group: str, numbers: Mapping[int, int]) -> None:
        """Commit ``numbers`` as the offsets of the consumer group ``group``, for people who watch lags at the broker.

        No run resumes from these offsets. A broker that refuses them is logged, and is not an error.
        """
        if not numbers:
            return
        configuration: dict[str, Any] = {
            **self._topic.client_configuration(),
            "group.id": group,
            "enable.auto.commit": "false",
            "socket.timeout.ms": str(_PROGRESS_PATIENCE_MS),
            "allow.auto.create.topics": "false",
        }
        places = [Partition(self._topic.connection.topic, *place) for place in sorted(numbers.items())]
        consumer = Consumer(configuration)
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            log.warning("the broker did not take the offsets of the group %s in %s: %s", group, self.name, error)
        finally:
            consumer.close()

    def _bounds(self, sequencer_id: int) -> tuple[int, int]:
        return self._log.bounds(sequencer_id)

    def _open_stream(self, sequencer_id: int, position: Position) -> Stream:
        kafka_log = self._partitions.setdefault(sequencer_id, KafkaLog(self._topic))
        return _KafkaStream(kafka_log, sequencer_id, position, buffer=self.name)


class KafkaLog:
    """One consumer of a topic, made when it is first needed; ``place`` lets it deliver a partition from a number on."""

    def __init__(self, topic: KafkaTopic) -> None:
        self.topic = topic
        self._trouble: KafkaError | None = None  # the client's last error on its connections
        self._consumer: Consumer | None = None

    def connect(self) -> Consumer:
        """Return the consumer.

        Raises ``ConfigurationInvalid`` if librdkafka refuses the settings.
        """
        if self._consumer is not None:
            return self._consumer
        configuration: dict[str, Any] = {
            **_TUNABLE,
            **self.topic.client_configuration(),
            **self.topic.connection.consumer,
            **_PROTECTED,
            "error_cb": self._note_error,
        }
        try:
            self._consumer = Consumer(configuration)
        except KafkaException as error:
            raise failure(error.args[0], self.topic.name) from error
        return self._consumer

    def bounds(self, sequencer_id: int) -> tuple[int, int]:
        """Return the earliest number and the watermark that a broker has now.

        Raises:
            BufferUnreachable: If no broker answers in time.
            BufferMissing: If the topic does not exist any more.
        """
        partition = Partition(self.topic.connection.topic, sequencer_id)
        timeout_s = self.topic.connection.timeout_s
        until = time.monotonic() + timeout_s
        while True:
            try:
                earliest, watermark = self.connect().get_watermark_offsets(partition, timeout=timeout_s)
            except KafkaException as error:
                code = error.args[0].code()
                if code in UNHEARD_OF:
                    self.topic.open()  # raises if there is no such topic
                if code not in UNHEARD_OF | ELECTING or time.monotonic() > until:
                    raise failure(error.args[0], self.topic.name) from error
                time.sleep(_LOOK_S)
            else:
                return earliest, watermark

    def place(self, sequencer_id: int, number: int | None) -> None:
        """Deliver from ``number`` on, from the beginning if it is ``None``; what was fetched before is dropped."""
        offset = OFFSET_BEGINNING if number is None else number
        self.connect().assign([Partition(self.topic.connection.topic, sequencer_id, offset)])

    def unplace(self) -> None:
        """Deliver nothing."""
        if self._consumer is not None:
            self._consumer.unassign()

    def consume(self, limit: int, timeout_s: float) -> list[KafkaMessage]:
        """Return up to ``limit`` messages and events; wait for the first one only."""
        consumer = self.connect()
        ready = consumer.consume(limit, timeout=0)
        if not ready and timeout_s > 0:
            ready = consumer.consume(1, timeout=timeout_s)
            if ready and limit > 1:
                ready += consumer.consume(limit - 1, timeout=0)
        return ready

    def check_reachable(self, sequencer_id: int) -> None:
        """Ask the broker for an answer, if the client had trouble with a connection since the last call.

        Raises ``BufferUnreachable`` if the broker does not answer.
        """
        if self._trouble is not None:
            self.bounds(sequencer_id)
            self._trouble = None

    def close(self) -> None:
        """Give back the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _note_error(self, error: KafkaError) -> None:
        self._trouble = error


class _KafkaStream(Stream):
    def __init__(self, log: KafkaLog, sequencer_id: int, position: Position, *, buffer: str) -> None:
        super().__init__(sequencer_id, position, buffer=buffer)
        self._log = log
        self._placed = False
        self._failure: KafkaError | None = None  # raised after the messages before it are delivered

    def close(self) -> None:
        if not self._closed:
            self._log.unplace()
        super().close()

    def _take(self, limit: int, timeout_s: float) -> list[Delivered]:
        messages = self._receive(limit, timeout_s)
        if not messages and self._failure is None:
            self._log.check_reachable(self.sequencer_id)
        return [
            read_message(Sequence(self.sequencer_id, _number(message)), read_kafka_message(message))
            for message in messages
        ]

    def _take_batch(self, columns: MessageColumns, end: int, limit: int, timeout_s: float) -> pa.RecordBatch | None:
        messages = self._receive(limit, timeout_s)
        if messages and _number(messages[-1]) >= end:
            messages = [message for message in messages if _number(message) < end]
        return _batch(messages, columns) if messages else None

    def _receive(self, limit: int, timeout_s: float) -> list[KafkaMessage]:
        """Return up to ``limit`` messages, and stand behind them; wait up to ``timeout_s`` for the first."""
        until = time.monotonic() + timeout_s
        while True:
            left = max(until - time.monotonic(), 0.0)
            self._raise_failure()
            if self._placed or self._place():
                messages = self._sort_out(self._log.consume(limit, left))
                if messages:
                    return messages
            else:
                time.sleep(min(_LOOK_S, left))
            if self._failure is None and time.monotonic() >= until:
                return []

    def _place(self) -> bool:
        """Assign the partition at the position; return False if the log ends before it: the broker would move us."""
        number = self.position.number
        # Asked in any case: so the client looks for the leader at once, and not after half a second.
        earliest, watermark = self._log.bounds(self.sequencer_id)
        self.position.check(self.sequencer_id, earliest=earliest, watermark=watermark, buffer=self.buffer)
        if number is not None and number > watermark:
            return False
        self._log.place(self.sequencer_id, number)
        self._placed = True
        return True

    def _sort_out(self, arrived: list[KafkaMessage]) -> list[KafkaMessage]:
        """Return the messages in ``arrived``, and stand after all of it; keep the first failure for later."""
        messages = [message for message in arrived if message.error() is None]
        if messages:
            self.position.advance(_number(messages[-1]) + 1)
        if len(messages) < len(arrived):
            for event in arrived:
                error = event.error()
                if error is not None and error.code() == END_REACHED:
                    self.position.advance(max(_number(event), self.position.number or 0))
                elif error is not None and self._failure is None:
                    self._failure = error
        return messages

    def _raise_failure(self) -> None:
        error, self._failure = self._failure, None
        if error is None:
            return
        self._placed = False
        if error.code() in OUT_OF_RANGE:
            self._place()  # raises an error that names the lost numbers
        elif not error.retriable() or error.fatal():
            raise failure(error, self.buffer)


def read_kafka_message(message: KafkaMessage) -> Message:
    """Return a message of Kafka as a message of write buffers; a header without a value gets an empty one."""
    time_type, time_ms = message.timestamp()
    pairs: Any = message.headers() or ()  # the client's own types leave out that a value may be missing
    headers = tuple((name, b"" if value is None else value) for name, value in pairs)
    time = None if time_type == TIMESTAMP_NOT_AVAILABLE else time_ms
    return Message(message.value(), headers, time, _key(message))


def _batch(messages: list[KafkaMessage], columns: MessageColumns) -> pa.RecordBatch:
    times: list[int | None] = []
    headers: list[RawHeaders] = []
    if columns.need_times:
        stamps = [message.timestamp() for message in messages]
        times = [None if time_type == TIMESTAMP_NOT_AVAILABLE else time_ms for time_type, time_ms in stamps]
    if columns.need_headers:
        raw: list[Any] = [message.headers() for message in messages]  # the client's types leave out missing values
        headers = [tuple(pairs) if pairs else () for pairs in raw]
    numbers: list[Any] = [message.offset() for message in messages]  # never None in a message that was consumed
    keys = [_key(message) for message in messages] if columns.need_keys else []
    return columns.batch(numbers, times, [message.value() for message in messages], headers, keys)


def _key(message: KafkaMessage) -> bytes | None:
    key: bytes | None = message.key()
    return key


def _number(message: KafkaMessage) -> int:
    return int(message.offset() or 0)
