"""Entries (one write each), the messages that a log stores for them, and the rows in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

Headers = tuple[tuple[str, bytes], ...]

CONTENT_TYPE, TABLE_HEADER = "content-type", "tidemark-table"


class EntryFormat(StrEnum):
    """A format and its version. Writers write the value; ``parse_content_type`` also accepts other spellings."""

    JSON_ROWS = "application/x-ndjson; version=1"
    LINE_PROTOCOL = "application/vnd.influxdata.line-protocol; version=1"
    BATCH_ROWS = "application/vnd.tidemark.batch-rows; version=1"  # JSON rows that count once their batch is named


DEFAULT_FORMAT = EntryFormat.JSON_ROWS  # of messages without the header: most foreign producers write JSON
_DEFAULT_VERSION = "1"
_FORMATS = {
    ("application/x-ndjson", "1"): EntryFormat.JSON_ROWS,
    ("application/json", "1"): EntryFormat.JSON_ROWS,  # one row is a document of one line
    ("application/vnd.influxdata.line-protocol", "1"): EntryFormat.LINE_PROTOCOL,
    ("application/vnd.tidemark.batch-rows", "1"): EntryFormat.BATCH_ROWS,
}


def parse_content_type(text: str) -> EntryFormat | None:
    """Return the format that ``text`` names; ``None`` if this process does not know the format or its version.

    Case does not matter, a missing version is the first one, and ``charset=utf-8`` is accepted. The format of an
    unknown version is never guessed: a newer program wrote the payload.
    """
    media_type, *parameters = (part.strip().lower() for part in text.split(";"))
    version = _DEFAULT_VERSION
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        value = value.strip().strip('"')
        if name.strip() == "version":
            version = value
        elif (name.strip(), value) != ("charset", "utf-8") and parameter:
            return None
    return _FORMATS.get((media_type, version))


class Sequence(NamedTuple):
    """The place of an entry: numbers grow inside one sequencer, with holes, and say nothing across sequencers."""

    sequencer_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One write: rows of any number of tables, in one format. ``headers`` are carried along, names in any case."""

    payload: bytes
    format: EntryFormat = DEFAULT_FORMAT
    headers: Headers = ()

    @property
    def table(self) -> str | None:
        """The table of rows that name no table."""
        name = find_header(self.headers, TABLE_HEADER)
        return None if name is None else name.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Message:
    """What a log stores for an entry. Messages of foreign producers may lack payload and time."""

    payload: bytes | None
    headers: Headers = ()
    time_ms: int | None = None  # by the producer's clock, in ms since the Unix epoch
    key: bytes | None = None  # of a message of Kafka; folders keep none

    @classmethod
    def of(cls, entry: Entry, time_ms: int, key: bytes | None = None) -> Message:
        return cls(entry.payload, ((CONTENT_TYPE, entry.format.encode()), *entry.headers), time_ms, key)

    def size_bytes(self) -> int:
        """Return the size that limits count: payload and headers."""
        return len(self.payload or b"") + sum(len(name.encode()) + len(value) for name, value in self.headers)


class BadReason(StrEnum):
    """Why a message or a row is bad: for the quarantine."""

    FORMAT_UNKNOWN = "format-unknown"
    PAYLOAD_MISSING = "payload-missing"
    TIMESTAMP_MISSING = "timestamp-missing"
    DAMAGED = "damaged"  # the checksum of the log does not match
    ROW_UNREADABLE = "row-unreadable"
    TABLE_MISSING = "table-missing"
    EVENT_TIME_MISSING = "event-time-missing"
    EVENT_TIME_AHEAD = "event-time-ahead"
    LATE = "late"  # the partition of the row was closed before
    KEY_MISSING = "key-missing"  # of a change to the latest row of a key
    KEY_SPREAD = "key-spread"  # changes of the key lie in several sequencers, so that their order is not defined
    CHANGE_UNKNOWN = "change-unknown"  # the message does not say what became of which row
    BATCH_UNORDERED = "batch-unordered"  # rows of an appended batch have no place in the order of changes


@dataclass(frozen=True, slots=True)
class SequencedEntry:
    """An entry with its place in the log and the time at which its producer wrote it."""

    sequence: Sequence
    time_ms: int
    entry: Entry
    key: bytes | None = None  # of a message of Kafka


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that is not an entry; the stream goes on after it. ``detail`` is one sentence for a person."""

    sequence: Sequence
    message: Message
    reason: BadReason
    detail: str

    @property
    def time_ms(self) -> int | None:
        """The producer's time, as in an entry; None if the message has none."""
        return self.message.time_ms


Delivered = SequencedEntry | BadMessage


def read_message(sequence: Sequence, message: Message) -> Delivered:
    """Return the entry in ``message``, or what is wrong with it; a missing content type means the default format."""
    if message.payload is None:
        return BadMessage(sequence, message, BadReason.PAYLOAD_MISSING, "Payload missing")
    if message.time_ms is None:
        return BadMessage(sequence, message, BadReason.TIMESTAMP_MISSING, "Timestamp missing")
    content_type = find_header(message.headers, CONTENT_TYPE)
    text = DEFAULT_FORMAT if content_type is None else content_type.decode("utf-8", errors="replace")
    entry_format = parse_content_type(text)
    if entry_format is None:
        return BadMessage(sequence, message, BadReason.FORMAT_UNKNOWN, f"Unknown message format: {text}")
    headers = tuple(pair for pair in message.headers if pair[0].lower() != CONTENT_TYPE)
    return SequencedEntry(sequence, message.time_ms, Entry(message.payload, entry_format, headers), message.key)


def find_header(headers: Headers, name: str) -> bytes | None:
    """Return the value of the last header ``name`` (lower case); headers may be written in any case."""
    return next((value for header, value in reversed(headers) if header.lower() == name), None)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, its values as JSON has them (whole numbers of any size), and the bytes that it came from."""

    table: str
    values: dict[str, Any]
    raw: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A part of an entry that is not a row, or a message that is not an entry; ``detail`` is a sentence for people."""

    raw: bytes | None  # None: a message without a payload
    reason: BadReason
    detail: str


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one entry, in order; bad rows do not spoil the good ones."""

    good: tuple[Row, ...] = ()
    bad: tuple[BadRow, ...] = ()
