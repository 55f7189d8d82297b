"""The log beside a buffer that names the batches in it: from its name on a batch counts. It is kept for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidemark.clock import Clock
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import CorruptState
from tidemark.iceberg.shard.ledger import Range
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.entry import Delivered, SequencedEntry
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.ranges import NumberRange, read_range
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import find_back_end, open_reader, open_writer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """One batch, and the places of its rows; without a name it is no other batch's repetition."""

    number: int  # in the log of batches
    collection: str  # that the rows were appended to
    table: str  # of the rows
    name: BatchName | None
    rows: int
    places: tuple[NumberRange, ...]
    log: str  # the identity of the buffer in which the rows lie

    @classmethod
    def parse(cls, number: int, fields: Mapping[str, Any]) -> LoggedBatch:
        """Return the batch of ``to_json``. Raises ``ValueError``, or another error of garbage, for something else."""
        return cls(
            number=number,
            collection=fields["collection"],
            table=fields["table"],
            name=BatchName(fields["producer"], Range(*fields["range"])) if fields["producer"] else None,
            rows=fields["rows"],
            places=tuple(NumberRange(*place) for place in fields["places"]),
            log=fields["log"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything but the number."""
        producer, numbers = (self.name.producer, list(self.name.range)) if self.name else (None, None)
        places = [[place.sequencer_id, place.start, place.end] for place in self.places]
        fields = {"collection": self.collection, "table": self.table, "producer": producer, "range": numbers}
        return {**fields, "rows": self.rows, "places": places, "log": self.log}


@contextmanager
def open_batches(connection: Connection) -> Iterator[Reader | None]:
    """Open the log of the batches in a buffer; None while nobody has appended a batch."""
    try:
        reader = open_reader(_place_of(connection))
    except BufferMissing:
        yield None
        return
    with reader:
        yield reader


def read_batches(batches: Reader, identity: str, start: int = 0, end: int | None = None) -> list[LoggedBatch]:
    """Return the batches of the buffer ``identity`` with the numbers ``[start, end)``, in their order.

    What lies in another buffer is left out: the rows went with the buffer that was there before. ``end`` may lie beyond
    the watermark, which None means.

    Raises:
        BufferUnreachable: If the log cannot be read.
        CorruptState: If an entry is damaged.
    """
    found: list[LoggedBatch] = []
    earliest, watermark = batches.fetch_bounds(0)
    for entry in read_range(batches, 0, max(start, earliest), end=watermark if end is None else min(end, watermark)):
        try:
            batch = _parse_name(entry)
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptState(
                f"entry {entry.sequence.number} of {batches.name}, which names a batch, cannot be read: {error}",
                hint="put it back from a copy: without it nobody knows which rows are of that batch",
            ) from error
        found += [batch] if batch.log == identity else []
    return found


def write_name(connection: Connection, batch: LoggedBatch, *, clock: Clock) -> None:
    """Let a batch count, whose rows are durable. Raises as ``open_writer``, where the log is made."""
    with open_writer(_place_of(connection), clock=clock, create=True) as writer:
        writer.store_entry(encode_json_rows([batch.to_json()]), 0)


def _parse_name(entry: Delivered) -> LoggedBatch:
    if not isinstance(entry, SequencedEntry):
        raise ValueError(f"{entry.reason}: {entry.detail}")
    return LoggedBatch.parse(entry.sequence.number, json.loads(entry.entry.payload))


def _place_of(connection: Connection) -> Connection:
    return find_back_end(connection.type).beside(connection, "batches")
