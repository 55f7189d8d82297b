"""Reads planned numbers of a buffer as rows, part by part, with the counts of each part.

Spark's tasks do this, too: without pyiceberg.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.ingest.messages import COLUMNS, QUARANTINE_SCHEMA, DecodedRows, RowDecoder, decode_rows, quarantined_rows
from tidemark.ingest.order.entry_numbers import as_entries
from tidemark.ingest.partitions.arrivals import NO_ARRIVALS, Arrivals
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.formats.entry import BadReason, EntryFormat
from tidemark.write_buffer.keys import Key, Spread, find_spread
from tidemark.write_buffer.ranges import NumberRange, split_ranges
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import read_batches

if TYPE_CHECKING:
    from tidemark.ingest.batches import PlannedBatch
    from tidemark.ingest.buffer_log import BufferLog
    from tidemark.ingest.plan import PlannedRange


NOT_CHECKED = Spread()
STAMPS = pa.schema([(PRODUCER, pa.string()), (BATCH, pa.int64())])  # the columns that name the batch of a row
SAMPLED_ENTRIES, SAMPLED_ROWS = 16, 64  # of a batch of messages, and of each of these entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of the numbers ``[start, end)`` of one sequencer."""

    sequencer_id: int
    start: int
    end: int
    is_of_batch: bool = False
    has_quarantined: bool = False  # the bad rows are in the quarantine already
    entries: int = 0
    bad_entries: int = 0  # entries with a bad row
    rows: int = 0
    bad_rows: int = 0
    other_tables: int = 0  # rows of tables that the collection does not take
    read_bytes: int = 0  # payloads
    spread: Spread = NOT_CHECKED
    arrivals: Arrivals = NO_ARRIVALS
    arrived_ms: int | None = None  # since when the rows count as arrived; None: since the commit that accepts them

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Tally:
        """Read back what ``str`` wrote."""
        fields = json.loads(text)
        found = {"spread": Spread(**fields["spread"]), "arrivals": Arrivals.parse(fields["arrivals"])}
        return cls(**fields | found)

    def count(self, messages: pa.RecordBatch, decoded: DecodedRows) -> Tally:
        """Return the counts of some messages, which are those of the same numbers."""
        return replace(
            self,
            entries=len(messages),
            bad_entries=len({row.number for row in decoded.bad}),
            rows=decoded.good.num_rows,
            bad_rows=len(decoded.bad),
            other_tables=decoded.other_tables,
            read_bytes=int(pc.sum(pc.binary_length(messages.column("payload"))).as_py() or 0),
            arrivals=decoded.arrivals,
        )

    def add(self, other: Tally) -> Tally:
        """Return the counts of both, of the range that spans both."""
        return Tally(
            sequencer_id=self.sequencer_id,
            start=min(self.start, other.start),
            end=max(self.end, other.end),
            is_of_batch=self.is_of_batch,
            has_quarantined=self.has_quarantined,
            entries=self.entries + other.entries,
            bad_entries=self.bad_entries + other.bad_entries,
            rows=self.rows + other.rows,
            bad_rows=self.bad_rows + other.bad_rows,
            other_tables=self.other_tables + other.other_tables,
            read_bytes=self.read_bytes + other.read_bytes,
            spread=self.spread.add(other.spread),
            arrivals=self.arrivals.add(other.arrivals),
            arrived_ms=min((ms for ms in (self.arrived_ms, other.arrived_ms) if ms is not None), default=None),
        )


def add_up(tallies: Iterable[Tally]) -> dict[int, Tally]:
    """Return one tally for each sequencer, without the rows of batches."""
    totals: dict[int, Tally] = {}
    for tally in (tally for tally in tallies if not tally.is_of_batch):
        total = totals.get(tally.sequencer_id)
        totals[tally.sequencer_id] = tally if total is None else total.add(tally)
    return totals


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Looks whether rows lie in the sequencers that the keys of their tables choose; all rows, or a sample."""

    keys: Mapping[str, Key]
    sequencer_ids: frozenset[int]
    table: str | None  # that the collection takes
    every_row: bool = False

    def look_at(self, messages: pa.RecordBatch, sequencer_id: int) -> Spread:
        """Compare the rows of ``messages``, which has ``COLUMNS``, with the sequencer in which they lie."""
        step = 1 if self.every_row else max(1, len(messages) // SAMPLED_ENTRIES)
        found = NOT_CHECKED
        for at in range(0, len(messages), step):
            message = {name: messages.column(name)[at].as_py() for name in COLUMNS}
            if message["reason"] is None:
                rows = [row for row in decode_rows(message, "*").good if self.table in {None, row.table}]
                chosen = rows if self.every_row else rows[:SAMPLED_ROWS]
                found = found.add(find_spread(chosen, self.keys, self.sequencer_ids, sequencer_id=sequencer_id))
        return found


class WaitingTimes(NamedTuple):
    """Says since when entries wait in the buffer, for rows that are accepted later than they are read."""

    now_ms: int
    most_ms: int  # for which entries count as waiting, at most
    step_ms: int  # times are multiples of these

    def cut(self, messages: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the messages of one time together, with the time in ms: when they were written, as it says.

        So the answer is the same for a process that reads the messages again. The clock of a producer may be wrong: no
        message counts as older than the one before, nor as younger than now.
        """
        written = pc.fill_null(pc.fill_null_forward(messages.column("time_ms")), self.now_ms).to_numpy()
        times = np.clip(np.maximum.accumulate(written), self.now_ms - self.most_ms, self.now_ms) // self.step_ms
        bounds = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), len(messages)]
        for start, end in pairwise(bounds):
            if start < end:
                yield messages.slice(start, end - start), int(times[start]) * self.step_ms


@dataclass(frozen=True, slots=True)
class StampedPart:
    """Numbers to read, and the stamps of their rows."""

    numbers: NumberRange
    stamps: tuple[tuple[str, str | int], ...]  # columns that name the batch, with their values
    place_stamps: tuple[tuple[str, str | int], ...]  # the same of rows for the quarantine: they name the sequencer
    is_of_batch: bool = False  # whether the rows are those of a batch, which do not count by themselves
    has_quarantined: bool = False

    @property
    def tally(self) -> Tally:
        """The counts before anything is read."""
        return Tally(
            sequencer_id=self.numbers.sequencer_id,
            start=self.numbers.start,
            end=self.numbers.end,
            is_of_batch=self.is_of_batch,
            has_quarantined=self.has_quarantined,
        )


@dataclass(frozen=True, slots=True)
class RowReading:
    """How the messages of a buffer become rows of one collection; travels to Spark's tasks."""

    connection: Connection
    topic: str
    decoder: RowDecoder
    schema_id: int  # of the collection, whose columns the decoder makes
    keys: KeyCheck | None = None
    numbers_entries: bool = False  # whether good rows bear the numbers of their entries
    turn: int = 0  # of the log
    waiting: WaitingTimes | None = None  # None: the rows arrive with the commit that accepts them

    @property
    def good_schema(self) -> pa.Schema:
        """The columns of good rows, with their stamps."""
        numbers = [pa.field(ENTRY, pa.int64())] if self.numbers_entries else []
        return pa.schema([*self.decoder.columns, *numbers, *STAMPS])

    @property
    def no_rows(self) -> tuple[pa.Table, pa.Table]:
        """Return good rows, and rows for the quarantine, of which there are none."""
        return self.good_schema.empty_table(), pa.schema([*QUARANTINE_SCHEMA, *STAMPS]).empty_table()

    @property
    def judges_late(self) -> bool:
        """Whether rows can be bad because they are late."""
        return self.decoder.judge is not None and self.decoder.judge.refuses_late

    def read(
        self, part: StampedPart, *, with_bad: bool = False, reader: Reader | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table | None, Tally]]:
        """Yield, batch by batch, stamped rows, stamped rows for the quarantine, and counts.

        Args:
            part: The numbers to read.
            with_bad: Whether to make rows for the quarantine: they need the headers, which take longer to read.
            reader: An open one of the buffer.

        Raises as ``read_batches``.
        """
        columns = (*COLUMNS, "headers") if with_bad else COLUMNS
        for read in read_batches(self.connection, part.numbers, columns, reader):
            messages = choose_messages(read, of_batches=part.is_of_batch)
            if self.waiting is None:
                yield self._decode(part, messages, with_bad=with_bad)
                continue
            for of_one_time, arrived_ms in self.waiting.cut(messages):
                good, bad, tally = self._decode(part, of_one_time, with_bad=with_bad)
                yield good, bad, replace(tally, arrived_ms=arrived_ms)

    def _decode(
        self, part: StampedPart, messages: pa.RecordBatch, *, with_bad: bool
    ) -> tuple[pa.Table, pa.Table | None, Tally]:
        decoded = self.decoder.decode(messages)
        bad = None
        # The quarantine may lack rows that were not late when it got the others.
        placed = [row for row in decoded.bad if not part.has_quarantined or row.row.reason is BadReason.LATE]
        if with_bad and placed:
            sequencer_id = part.numbers.sequencer_id
            rows = quarantined_rows(placed, messages, topic=self.topic, sequencer_id=sequencer_id)
            bad = with_constants(rows, part.place_stamps)
        tally = part.tally.count(messages, decoded)
        if self.keys is not None:
            tally = replace(tally, spread=self.keys.look_at(messages, part.numbers.sequencer_id))
        good = decoded.good
        if self.numbers_entries:
            good = good.append_column(ENTRY, as_entries(decoded.numbers, self.turn))
        return with_constants(good, part.stamps), bad, tally


def choose_messages(messages: pa.RecordBatch, *, of_batches: bool) -> pa.RecordBatch:
    """Return the messages that belong to batches, as JSON rows, or the others."""
    formats = messages.column("format")
    of_batch = pc.fill_null(pc.equal(formats, EntryFormat.BATCH_ROWS.value), fill_value=False)
    if not of_batches:
        return messages.filter(pc.invert(of_batch)) if pc.any(of_batch).as_py() else messages
    chosen = messages.filter(of_batch)
    as_json = pa.repeat(pa.scalar(EntryFormat.JSON_ROWS.value), len(chosen))
    return chosen.set_column(chosen.schema.get_field_index("format"), "format", as_json)


def cut_parts(
    log: BufferLog, planned: Iterable[PlannedRange], part_numbers: int, batches: Iterable[PlannedBatch] = ()
) -> list[StampedPart]:
    """Cut planned ranges into parts of at most ``part_numbers``; parts of different sequencers take turns.

    The places of planned batches follow, uncut.
    """
    by_sequencer = {part.sequencer_id: part for part in planned}
    ranges = [NumberRange(part.sequencer_id, part.first, part.end) for part in by_sequencer.values()]
    parts = []
    for numbers in split_ranges([part for part in ranges if part.start < part.end], part_numbers):
        whole = by_sequencer[numbers.sequencer_id]
        stamps = ((PRODUCER, log.producer(numbers.sequencer_id)), (BATCH, whole.start))
        parts.append(StampedPart(numbers, stamps, stamps, has_quarantined=whole.has_quarantined))
    for batch in batches:
        of_batch = ((PRODUCER, batch.name.producer), (BATCH, batch.name.range.start))
        for place in batch.places:
            stamps = ((PRODUCER, log.producer(place.sequencer_id)), (BATCH, place.start))
            parts.append(StampedPart(place, of_batch, stamps, is_of_batch=True, has_quarantined=batch.has_quarantined))
    return parts
