"""Reads one range of numbers as Arrow batches, from files or from Kafka, with memory that does not grow with it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.errors import BufferUnreachable
from tidemark.write_buffer.file.buffer import FileReader
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.kafka.errors import END_REACHED, OUT_OF_RANGE, failure
from tidemark.write_buffer.kafka.reader import KafkaLog
from tidemark.write_buffer.ranges import DEFAULT_STALLED_S, iterate_range
from tidemark.write_buffer.reader import check_range_start
from tidemark.write_buffer.registry import kafka_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from confluent_kafka import Message as KafkaMessage

    from tidemark.write_buffer.address import Connection
    from tidemark.write_buffer.formats.arrow_messages import RawHeaders
    from tidemark.write_buffer.ranges import NumberRange

_BATCH_MESSAGES = 10_000  # the client holds back at most 10 MB, and with them what a batch can be
_WAIT_S = 0.5


def read_batches(connection: Connection, part: NumberRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``part`` in the order of their numbers; holes are skipped.

    Raises:
        NoLongerExists: If retention took some of them since the range was planned.
        AfterWatermark: If the log was made anew or cut since then.
        BufferUnreachable: If the log cannot be read, or stalls.
        ConfigurationInvalid: If the buffer is in the memory of another process.
    """
    made = MessageColumns(part.sequencer_id, columns)
    if connection.type == "kafka":
        log = KafkaLog(kafka_topic(connection))
        try:
            yield from _read_kafka(log, part, made)
        finally:
            log.close()
    elif connection.type == "file":
        with FileReader(open_folder(Path(connection.place))) as reader:
            for delivered in iterate_range(reader, part.sequencer_id, part.start, part.end):
                yield made.batch_of(delivered)
    else:
        raise ConfigurationInvalid(
            f"Spark cannot read a {connection.type} buffer", hint="its entries are in the memory of another process"
        )


def _read_kafka(log: KafkaLog, part: NumberRange, columns: MessageColumns) -> Iterator[pa.RecordBatch]:
    number = part.start
    _place(log, part, number)
    until = time.monotonic() + DEFAULT_STALLED_S
    while number < part.end:
        arrived = log.consume(_BATCH_MESSAGES, _WAIT_S)
        messages = [each for each in arrived if each.error() is None]
        if len(messages) < len(arrived):
            number = max(number, _hear(log, arrived, part, number))
        if messages:
            number = max(number, _number(messages[-1]) + 1)
            if number > part.end:
                messages = [each for each in messages if _number(each) < part.end]
        if messages:
            yield _batch(messages, columns)
            until = time.monotonic() + DEFAULT_STALLED_S
        elif number < part.end and time.monotonic() > until:
            log.check_reachable(part.sequencer_id)
            raise BufferUnreachable(
                f"{log.topic.name} delivers nothing of sequencer {part.sequencer_id} from number {number} on",
                hint="is the broker well?",
            )


def _hear(log: KafkaLog, arrived: list[KafkaMessage], part: NumberRange, number: int) -> int:
    """Act on the events among what arrived; return up to which number the log has been seen, holes included."""
    for each in arrived:
        error = each.error()
        if error is None:
            number = _number(each) + 1
        elif error.code() == END_REACHED:
            number = _number(each)
        elif error.code() in OUT_OF_RANGE:
            _place(log, part, number)  # says what is gone
        elif not error.retriable() or error.fatal():
            raise failure(error, log.topic.name)
    return number


def _place(log: KafkaLog, part: NumberRange, number: int) -> None:
    earliest, watermark = log.bounds(part.sequencer_id)
    check_range_start(part.sequencer_id, number, earliest=earliest, watermark=watermark, buffer=log.topic.name)
    log.place(part.sequencer_id, number)


def _batch(messages: list[KafkaMessage], columns: MessageColumns) -> pa.RecordBatch:
    times: list[int | None] = []
    headers: list[RawHeaders] = []
    if columns.need_times:
        stamps = [each.timestamp() for each in messages]
        times = [None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms for kind, time_ms in stamps]
    if columns.need_headers:
        found: list[Any] = [each.headers() for each in messages]  # the client's types leave out missing values
        headers = [tuple(pairs) if pairs else () for pairs in found]
    numbers: list[Any] = [each.offset() for each in messages]  # never None in a message that was consumed
    return columns.batch(numbers, times, [each.value() for each in messages], headers)


def _number(message: KafkaMessage) -> int:
    return int(message.offset() or 0)
