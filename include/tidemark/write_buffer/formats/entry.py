"""One write as the buffer carries it, and what comes out at the other end: the entry, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tidemark.write_buffer.formats.entry_format import CONTENT_TYPE, DEFAULT_FORMAT, EntryFormat, parse_content_type

Headers = tuple[tuple[str, bytes], ...]

TABLE_HEADER = "tidemark-table"


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
        """The table of rows that do not name theirs."""
        named = find_header(self.headers, TABLE_HEADER)
        return None if named is None else named.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Message:
    """What a log stores for an entry. Foreign producers may leave out what ours never do.

    ``time_ms`` is the producer's clock, in ms since the Unix epoch.
    """

    payload: bytes | None
    headers: Headers = ()
    time_ms: int | None = None

    @classmethod
    def of(cls, entry: Entry, time_ms: int) -> Message:
        return cls(entry.payload, ((CONTENT_TYPE, entry.format.encode()), *entry.headers), time_ms)

    def size_bytes(self) -> int:
        """Return the size that limits count: payload and headers."""
        return len(self.payload or b"") + sum(len(name.encode()) + len(value) for name, value in self.headers)


class BadReason(StrEnum):
    """Why a message is no entry, or a row of an entry no row: for the quarantine."""

    FORMAT_UNKNOWN = "format-unknown"
    PAYLOAD_MISSING = "payload-missing"
    TIMESTAMP_MISSING = "timestamp-missing"
    DAMAGED = "damaged"  # the log itself says that these are not the bytes that were written
    ROW_UNREADABLE = "row-unreadable"
    TABLE_MISSING = "table-missing"


@dataclass(frozen=True, slots=True)
class SequencedEntry:
    """An entry with its place in the log and the time at which its producer wrote it."""

    sequence: Sequence
    time_ms: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that is no entry; the stream goes on after it. ``detail`` is one sentence for a person."""

    sequence: Sequence
    message: Message
    reason: BadReason
    detail: str


Delivered = SequencedEntry | BadMessage


def read_message(sequence: Sequence, message: Message) -> Delivered:
    """Return the entry in ``message``, or what is wrong with it; a missing content type means the default format."""
    if message.payload is None:
        return BadMessage(sequence, message, BadReason.PAYLOAD_MISSING, "Payload missing")
    if message.time_ms is None:
        return BadMessage(sequence, message, BadReason.TIMESTAMP_MISSING, "Timestamp missing")
    stated = find_header(message.headers, CONTENT_TYPE)
    text = DEFAULT_FORMAT if stated is None else stated.decode("utf-8", errors="replace")
    entry_format = parse_content_type(text)
    if entry_format is None:
        return BadMessage(sequence, message, BadReason.FORMAT_UNKNOWN, f"Unknown message format: {text}")
    headers = tuple(pair for pair in message.headers if pair[0].lower() != CONTENT_TYPE)
    return SequencedEntry(sequence, message.time_ms, Entry(message.payload, entry_format, headers))


def find_header(headers: Headers, name: str) -> bytes | None:
    """Return the value of the header ``name`` (lower case): case does not matter, and the last one counts."""
    for each, value in reversed(headers):
        if each.lower() == name:
            return value
    return None
