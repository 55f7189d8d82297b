"""Messages as Arrow batches, a column at a time: Python objects per row would cost more than reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from tidemark.write_buffer.formats.entry import BadMessage, Delivered, Entry, Headers, Message, Sequence, read_message

# In the order of the columns. `reason` is NULL for entries, `format` for bad messages.
TYPES = {
    "sequencer": pa.int32(),
    "number": pa.int64(),
    "time_ms": pa.int64(),
    "format": pa.string(),
    "table": pa.string(),
    "reason": pa.string(),
    "payload": pa.binary(),
    "headers": pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])),
    "key": pa.binary(),  # NULL where the buffer keeps none
}
_FROM_HEADERS = frozenset({"format", "table", "reason", "headers"})
RawHeaders = tuple[tuple[str, bytes | None], ...]  # as Kafka has them, where a value may be missing


class Content(NamedTuple):
    """Format, table and headers of a message, or the reason why the message is bad."""

    format: str | None
    table: str | None
    reason: str | None
    headers: Headers


class MessageColumns:
    """Makes batches of the messages of one sequencer, with the columns ``names`` in this order."""

    def __init__(self, sequencer_id: int, names: Iterable[str]) -> None:
        self._sequencer_id = sequencer_id
        self._names = tuple(names)
        self.schema = pa.schema([pa.field(name, TYPES[name]) for name in self._names])
        self.need_headers = not _FROM_HEADERS.isdisjoint(self._names)
        self.need_times = not {"time_ms", "reason"}.isdisjoint(self._names)
        self.need_keys = "key" in self._names

    def batch_of(self, delivered: list[Delivered]) -> pa.RecordBatch:
        """Return entries and bad messages of a stream as one batch."""
        messages = [
            entry.message if isinstance(entry, BadMessage) else Message.of(entry.entry, entry.time_ms, entry.key)
            for entry in delivered
        ]
        contents = [_content(entry, message.headers) for entry, message in zip(delivered, messages, strict=True)]
        numbers = pa.array([entry.sequence.number for entry in delivered], pa.int64())
        times_ms = pa.array([message.time_ms for message in messages], pa.int64())
        payloads, keys = (
            pa.array([getattr(message, part) for message in messages], pa.binary()) for part in ("payload", "key")
        )
        return self._batch(numbers, times_ms, payloads, contents, keys)

    def batch(
        self,
        numbers: list[int],
        times_ms: list[int | None],
        payloads: list[bytes | None],
        headers: list[RawHeaders],
        keys: list[bytes | None],
    ) -> pa.RecordBatch:
        """Return one batch of parallel lists.

        ``times_ms``, ``headers`` and ``keys`` may be empty if no column needs them.
        """
        times, bytes_ = pa.array(times_ms, pa.int64()), pa.array(payloads, pa.binary())
        contents: list[Content] = []
        if times.null_count or bytes_.null_count or len(set(headers)) > 1:
            given = times_ms or [0] * len(numbers)
            contents = [
                read_content(pairs, has_payload=payload is not None, has_time=time_ms is not None)
                for pairs, payload, time_ms in zip(headers, payloads, given, strict=bool(headers))
            ]
        elif headers:  # nearly always: one producer writes all messages in one way
            contents = [read_content(headers[0], has_payload=True, has_time=True)]
        return self._batch(pa.array(numbers, pa.int64()), times, bytes_, contents, pa.array(keys, pa.binary()))

    def _batch(
        self, numbers: pa.Array, times_ms: pa.Array, payloads: pa.Array, contents: list[Content], keys: pa.Array
    ) -> pa.RecordBatch:
        """Return one batch; a single content holds for all messages."""
        count = len(numbers)

        def of_contents(column: str) -> pa.Array:
            values = pa.array([getattr(content, column) for content in contents], TYPES[column])
            return pa.repeat(values[0], count) if len(values) == 1 else values

        makers: dict[str, Callable[[], pa.Array]] = {
            "sequencer": lambda: pa.repeat(pa.scalar(self._sequencer_id, pa.int32()), count),
            "number": lambda: numbers,
            "time_ms": lambda: times_ms,
            "payload": lambda: payloads,
            "key": lambda: keys,
        }
        arrays = [makers[name]() if name in makers else of_contents(name) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@lru_cache(maxsize=1024)
def read_content(headers: RawHeaders, *, has_payload: bool, has_time: bool) -> Content:
    """Return the content that ``read_message`` finds; cached, as the messages of a log have few different headers."""
    pairs = tuple((name, b"" if value is None else value) for name, value in headers)
    message = Message(b"" if has_payload else None, pairs, 0 if has_time else None)
    return _content(read_message(Sequence(0, 0), message), pairs)


def _content(delivered: Delivered, headers: Headers) -> Content:
    if isinstance(delivered, BadMessage):
        return Content(None, Entry(b"", headers=headers).table, delivered.reason.value, headers)
    return Content(delivered.entry.format.value, delivered.entry.table, None, headers)
