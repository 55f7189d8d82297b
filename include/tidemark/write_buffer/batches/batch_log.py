"""Batches in a buffer: what an append writes there counts as a whole or not at all, and each batch once.

The rows of a batch are entries of a format of their own, which nobody takes for rows by themselves. When all of them
are durable, one entry in a log beside the buffer says whose batch they are, and where they lie: from this entry on the
batch counts. The log beside the buffer has one sequencer, so it puts all batches in one order, and of two that share
a number of a producer's the first one counts. So an append that dies leaves nothing, one that is repeated finds what
the first one wrote, and two at once agree on which of them it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.staged.batches import BatchName, Standing, find_standing
from tidemark.errors import Refused, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.batches.checkpoints import (
    AcceptedBatches,
    AcceptedName,
    count_rows,
    keep_checkpoint,
    read_accepted,
)
from tidemark.write_buffer.batches.names import LoggedBatch, open_batches, read_batches, write_name
from tidemark.write_buffer.formats.arrow_rows import json_columns
from tidemark.write_buffer.formats.entry import TABLE_HEADER, Entry, EntryFormat, Row
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER
from tidemark.write_buffer.keys import POINTS, read_keys
from tidemark.write_buffer.partitioner import Partitioner, choose_sequencer, hash_key
from tidemark.write_buffer.ranges import NumberRange
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader, open_writer
from tidemark.write_buffer.writer import Writer

FAIL_POINTS = ("buffer-batch.after-entries", "buffer-batch.after-name")
ENTRY_ROWS, ENTRY_BYTES = 1_000, 256 * 1024  # of an entry at most, unless one row is larger
_HEADER_BYTES = 1024  # of an entry, beside the name of the table: more than all headers and the frame of a record take
SENT_ROWS = 10_000  # encoded at once


@contextmanager
def open_batch_log(connection: Connection, *, collection: str, table: str) -> Iterator[BufferBatches]:
    """Open a buffer to append to; raises as ``open_reader``."""
    with open_reader(connection) as reader, open_batches(connection) as batches:
        yield BufferBatches(connection, reader, batches, collection, table)


@dataclass(slots=True)
class BufferBatches:
    """The batches of one collection in one buffer; implements ``collections.deployment.BatchLog``."""

    connection: Connection
    buffer: Reader
    batches: Reader | None
    collection: str
    table: str
    _accepted: AcceptedBatches = field(default_factory=AcceptedBatches)  # as of the last look

    @property
    def title(self) -> str:
        return self.buffer.name

    def accepted(self, producer: str) -> Ledger:
        with self._names() as batches:
            return self._look(batches).ledger(self.collection, producer)

    def find(self, producer: str, numbers: Range) -> int | None:
        name = BatchName(producer, numbers)
        with self._names() as batches:
            accepted = self._look(batches)
            published = accepted.ledger(self.collection, producer)
            if batches is None or find_standing(name, published=published, staged=()) is Standing.FREE:
                return None
            own = AcceptedName(self.collection, producer, numbers)
            if own in accepted.rows or not accepted.start:
                return accepted.rows.get(own, 0)
            return count_rows(self.connection, batches, self.buffer.identity, own)

    def add(self, pieces: Iterable[pa.Table], name: tuple[str, Range] | None, *, clock: Clock) -> int:
        if name is not None:
            if (rows := self.find(*name)) is not None:
                return rows
            self._check_producer(name[0])
        with open_writer(self.connection, clock=clock) as writer:
            places, count = self._store_rows(writer, pieces)
        fail_point("buffer-batch.after-entries")
        batch = LoggedBatch(
            number=-1,
            collection=self.collection,
            table=self.table,
            name=None if name is None else BatchName(*name),
            rows=count,
            places=tuple(merge_numbers(places)),
            log=self.buffer.identity,
        )
        write_name(self.connection, batch, clock=clock)
        fail_point("buffer-batch.after-name")
        if batch.name is None:
            return count
        rows = self.find(batch.name.producer, batch.name.range)  # another append may have been faster
        keep_checkpoint(self.connection, self._accepted, clock=clock)
        return count if rows is None else rows

    def _names(self) -> AbstractContextManager[Reader | None]:
        return open_batches(self.connection) if self.batches is None else nullcontext(self.batches)

    def _look(self, batches: Reader | None) -> AcceptedBatches:
        """Read the names that were written since the last look."""
        if batches is not None and self._accepted.last is None:
            self._accepted = read_accepted(self.connection, batches, self.buffer.identity)
        elif batches is not None:
            self._accepted.take(read_batches(batches, self.buffer.identity, self._accepted.end))
        return self._accepted

    def _check_producer(self, producer: str) -> None:
        """Raise ``UsageError`` if a collection that ingests could take the batches for those of another one."""
        for other, producers in self._accepted.ledgers.items():
            if other == self.collection:
                continue
            own_there, own_here = f"{self.collection}.{producer}", producer.removeprefix(f"{other}.")
            if own_there in producers or own_here in producers.keys() - {producer}:
                raise UsageError(
                    f"the producer {producer!r} of {self.collection!r} and a producer of {other!r} have one name where "
                    f"{self.title} is ingested: batches of other collections are known as COLLECTION.PRODUCER there",
                    hint="give the producer another name",
                )

    def _store_rows(self, writer: Writer, pieces: Iterable[pa.Table]) -> tuple[list[tuple[int, int]], int]:
        """Write the rows; return the places of their entries, sequencer and number, and how many rows there are."""
        ids = writer.sequencer_ids()
        key = read_keys(self.connection).get(self.table)
        if key == POINTS:
            raise UsageError(
                f"{self.title} keeps the table {self.table!r} as one of points, whose key rows lack",
                hint="append to another table: declare the collection under another name",
            )
        only = choose_sequencer(hash_key(self.table, [uuid4().hex]), ids)  # rows without a key have no order
        partitioner = Partitioner(ids, {self.table: key}) if key and len(ids) > 1 else None
        headers = ((TABLE_HEADER, self.table.encode()),)
        limit = min(ENTRY_BYTES, writer.limit_bytes - _HEADER_BYTES - len(self.table.encode()))
        places: list[tuple[int, int]] = []
        count = 0
        for piece in pieces:
            if unknown := [column for column in key or () if column not in piece.column_names]:
                raise UsageError(
                    f"{self.title} keeps the key column {unknown[0]!r} for the table {self.table!r}, and "
                    f"{self.collection!r} has no such column",
                    hint="add it to the `schema`, and apply it",
                )
            for start in range(0, piece.num_rows, SENT_ROWS):
                lines: dict[int, list[bytes]] = {}
                for row in json_rows(piece.slice(start, SENT_ROWS)):
                    id_ = partitioner.sequencer_of(Row(self.table, row)) if partitioner else only
                    lines.setdefault(id_, []).append(_line_of(row))
                for id_, texts in sorted(lines.items()):
                    entries = [Entry(b"\n".join(part), EntryFormat.BATCH_ROWS, headers) for part in _cut(texts, limit)]
                    places += [stored.sequence for stored in writer.store_entries(entries, id_)]
                count += sum(map(len, lines.values()))
        return places, count


def merge_numbers(places: Iterable[tuple[int, int]]) -> list[NumberRange]:
    """Return numbers of sequencers as ranges that hold nothing else."""
    merged: list[NumberRange] = []
    for sequencer_id, number in sorted(places):
        last = merged[-1] if merged else None
        if last is not None and (last.sequencer_id, last.end) == (sequencer_id, number):
            merged[-1] = NumberRange(sequencer_id, last.start, number + 1)
        else:
            merged.append(NumberRange(sequencer_id, number, number + 1))
    return merged


def _cut(lines: Iterable[bytes], limit: int) -> Iterator[list[bytes]]:
    """Yield the lines of one entry after the other, of ``limit`` bytes at most if a line is not larger by itself."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and (len(part) == ENTRY_ROWS or size + len(line) > limit):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    if part:
        yield part


# -- rows as JSON ----------------------------------------------------------------------------------------------------


def json_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows with values that JSON has, from which an ingest makes the same values again.

    Raises ``Refused`` if there is a value that no JSON row can hold.
    """
    if TABLE_MEMBER in rows.column_names:
        raise Refused(f"a row in a buffer has no column {TABLE_MEMBER!r}: it names the table", hint="rename the column")
    try:
        columns = json_columns(rows)
    except ValueError as error:
        hint = "repair it, or leave `writes_to` out and apply that: the rows are then stored directly"
        raise Refused(str(error), hint=hint) from error
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _line_of(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
