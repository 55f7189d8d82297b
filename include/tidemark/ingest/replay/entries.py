"""Reads planned numbers of a buffer again, and writes the rows that are needed as data files, which nobody sees yet.

Rows that the quarantine has stay there, whatever became of the columns and rules since. An entry whose rows cannot be
decoded any more keeps the rows that it has on `main`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.ingest.buffer_log import RETRIED, RETRIED_ROWS, ROWS_BITS, BufferLog
from tidemark.ingest.messages import COLUMNS, RowDecoder, decoded_columns
from tidemark.ingest.order.entry_numbers import as_entries
from tidemark.ingest.partitions.arrivals import NO_ARRIVALS, Arrivals
from tidemark.ingest.partitions.event_times import EventTimes, to_milliseconds
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.persist.split import write_in_order
from tidemark.ingest.persist.time_order import add_time_order
from tidemark.ingest.range_rows import STAMPS, choose_messages
from tidemark.ingest.replay.plan import find_needed, floor_times
from tidemark.interval import EARLIEST_MS, LATEST_MS
from tidemark.lifecycle.partitions import name_partition
from tidemark.lifecycle.replay_plan import ReplayPlan
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.ranges import NumberRange
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import read_batches

MOST_BYTES = 64 * 1024 * 1024  # of rows in memory: then they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How entries become rows of one collection: those that ``plan`` needs, persisted ones apart by ``base``."""

    shard: Shard
    table: Table
    log: BufferLog
    rules: PartitionRules
    source_table: str | None  # whose rows the collection takes
    plan: ReplayPlan
    base: ReplayPlan
    turn: int = 0  # of the log
    former_names: Mapping[str, str] = field(default_factory=dict)  # and the present names of these columns

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*decoded_columns(self.table), (ENTRY, pa.int64()), *STAMPS])

    @property
    def times(self) -> EventTimes:
        """What judges event times: no row is late, or too early, when it comes back."""
        return EventTimes(column=self.rules.column, unit=self.rules.unit, max_ahead_ms=LATEST_MS - EARLIEST_MS)

    def decoder(self, without: Iterable[tuple[int, int]]) -> RowDecoder:
        """Return what decodes all rows but those at some places."""
        columns = decoded_columns(self.table)
        former = [pa.field(old, columns.field(new).type) for old, new in self.former_names.items()]
        return RowDecoder(pa.schema([*columns, *former]), self.source_table, self.times, frozenset(without))

    def rename(self, rows: pa.Table) -> pa.Table:
        """Return decoded rows under the present names of their columns."""
        for old, new in self.former_names.items():
            place = rows.schema.get_field_index(new)
            rows = rows.set_column(place, rows.schema.field(place), pc.coalesce(rows.column(new), rows.column(old)))
        return rows.drop_columns(list(self.former_names))


class NumberRuns:
    """Numbers of entries, which grow, as runs: most numbers follow each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Add numbers in order, above those that are there."""
        if not len(numbers):
            return
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts, ends = numbers[[0, *breaks]].tolist(), (numbers[[*(breaks - 1), -1]] + 1).tolist()
        if self._ends and self._ends[-1] == starts[0]:
            self._ends.pop()
            del starts[0]
        self._starts += starts
        self._ends += ends

    def find(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell of each number whether it is there."""
        places = np.searchsorted(np.array(self._starts, np.int64), numbers, side="right") - 1
        ends = np.array([*self._ends, -1], np.int64)  # the last one is of numbers before the first run
        found: NDArray[np.bool_] = numbers < ends[places]
        return found


@dataclass(slots=True)
class Written:
    """What was read, and the data files with the rows of it that are needed."""

    open: list[DataFile] = field(default_factory=list)
    persisted: list[DataFile] = field(default_factory=list)
    to_merge: list[DataFile] = field(default_factory=list)  # persisted rows, open again until duplicates are merged
    arrivals_to_merge: Arrivals = NO_ARRIVALS  # the same rows
    rows: Counter[str] = field(default_factory=Counter)  # by partition
    entries: Counter[int] = field(default_factory=Counter)  # that were read, by sequencer
    quarantined: int = 0  # rows that the quarantine has
    decoded: dict[int, NumberRuns] = field(default_factory=dict)  # entries whose rows come back, by sequencer
    undecoded: dict[int, set[int]] = field(default_factory=dict)  # entries whose rows stay, whatever they are

    @property
    def files(self) -> list[DataFile]:
        return [*self.open, *self.persisted, *self.to_merge]


def write_needed(
    written: Written,
    reading: Reading,
    parts: Mapping[int, list[Range]],
    quarantined: Mapping[int, set[tuple[int, int]]],
    *,
    connection: Connection,
    reader: Reader,
) -> None:
    """Read ``parts`` of the sequencers, and write the rows that are needed; the memory does not grow with the parts.

    ``written`` has the files also if the read fails half-way. ``quarantined`` are the number and the place of each row
    in the quarantine, by sequencer. Raises as ``read_batches``.
    """
    written.quarantined = sum(map(len, quarantined.values()))
    pieces = _Pieces(reading, written)
    for sequencer_id, ranges in sorted(parts.items()):
        decoder = reading.decoder(quarantined.get(sequencer_id, ()))
        numbers_decoded = written.decoded.setdefault(sequencer_id, NumberRuns())
        for part in ranges:
            wanted = NumberRange(sequencer_id, part.start, part.end)
            stamps = ((PRODUCER, reading.log.producer(sequencer_id)), (BATCH, part.start))
            for read in read_batches(connection, wanted, COLUMNS, reader):
                messages = choose_messages(read, of_batches=False)
                decoded = decoder.decode(messages)
                written.entries[sequencer_id] += len(messages)
                kept = written.undecoded.setdefault(sequencer_id, set())
                kept.update(row.number for row in decoded.bad)
                bad = np.array(sorted(kept), np.int64)
                # An entry that brings no row replaces none: its rows may be of a table that was declared before.
                numbers = pa.array([], pa.int64()) if decoded.numbers is None else decoded.numbers
                numbers_decoded.add(np.setdiff1d(numbers.to_numpy(), bad))
                rows = reading.rename(decoded.good).append_column(ENTRY, numbers)
                pieces.add(with_constants(rows, stamps), sequencer_id, bad)
    pieces.write()


class _Pieces:
    """Rows that are read and not written yet: open ones, persisted ones, and persisted ones to merge."""

    def __init__(self, reading: Reading, written: Written) -> None:
        self._reading, self._written = reading, written
        self._open: list[pa.Table] = []
        self._persisted: list[pa.Table] = []
        self._to_merge: list[pa.Table] = []
        self._bytes = 0

    def add(self, rows: pa.Table, sequencer_id: int, bad: NDArray[np.int64]) -> None:
        reading = self._reading
        numbers = rows.column(ENTRY).to_numpy()
        times_ms = to_milliseconds(rows.column(reading.rules.column)).to_numpy(zero_copy_only=False)
        needed = self._find(reading.plan, sequencer_id, numbers, times_ms) & ~np.isin(numbers, bad)
        if not needed.any():
            return
        numbers, times_ms, rows = numbers[needed], times_ms[needed], rows.filter(pa.array(needed))
        is_open = self._find(reading.base, sequencer_id, numbers, times_ms)
        if reading.rules.key and not is_open.all():  # they may be duplicates of rows that stay
            merged = reading.times.count(pa.array(numbers[~is_open]), pa.array(times_ms[~is_open]))
            self._written.arrivals_to_merge = self._written.arrivals_to_merge.add(Arrivals(partitions=merged))
        place = rows.schema.get_field_index(ENTRY)
        rows = rows.set_column(place, ENTRY, as_entries(rows.column(ENTRY), reading.turn))
        rows = rows.select(reading.schema.names).cast(reading.schema)
        self._open.append(rows.filter(pa.array(is_open)))
        (self._to_merge if reading.rules.key else self._persisted).append(rows.filter(pa.array(~is_open)))
        starts, counts = np.unique(floor_times(reading.rules.unit, times_ms), return_counts=True)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self._written.rows[name_partition(reading.rules.unit, start)] += count
        self._bytes += rows.nbytes
        if self._bytes > MOST_BYTES:
            self.write()

    def _find(
        self, plan: ReplayPlan, sequencer_id: int, numbers: NDArray[np.int64], times_ms: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        return find_needed(plan, self._reading.rules.unit, sequencer_id, numbers, times_ms)

    def write(self) -> None:
        """Write the rows so far."""
        reading, none = self._reading, self._reading.schema.empty_table()
        kinds = (self._open, self._persisted, self._to_merge)
        open_, persisted, to_merge = (pa.concat_tables([none, *pieces]) for pieces in kinds)
        self._open, self._persisted, self._to_merge, self._bytes = [], [], [], 0
        self._written.open += write_rows(reading.table, open_)
        self._written.to_merge += write_rows(reading.table, to_merge)
        if persisted.num_rows:
            order_id, rules = add_time_order(reading.shard, reading.rules.column), reading.rules
            in_order = persisted.take(pc.sort_indices(persisted.column(rules.column)))  # by name, `.x` would be a path
            self._written.persisted += write_in_order(
                reading.table, in_order, rules.column, rules.unit, order_id=order_id
            )


def find_former_names(table: Table) -> dict[str, str]:
    """Return the names that columns had before, and have no more, with the present names."""
    present = {each.field_id: each.name for each in table.schema().fields}
    former = {
        each.name: present[each.field_id]
        for schema in table.schemas().values()
        for each in schema.fields
        if each.field_id in present
    }
    return {old: new for old, new in former.items() if old not in present.values()}


def find_retried(ledgers: Mapping[str, Ledger], log: BufferLog, plan: ReplayPlan) -> dict[int, set[int]]:
    """Return the entries of planned numbers that have rows which were retried, by sequencer."""
    found = {}
    for id_, wanted in plan.numbers.items():
        producer = log.producer(id_)
        entries = {n for numbers in ledgers.get(producer + RETRIED, Ledger()).ranges for n in range(*numbers)}
        rows = ledgers.get(producer + RETRIED_ROWS, Ledger()).ranges
        entries |= {number >> ROWS_BITS for numbers in rows for number in range(*numbers)}
        found[id_] = {number for number in entries if wanted.start <= number < wanted.end}
    return found


def find_quarantined(quarantine: Shard | None, log: BufferLog, plan: ReplayPlan) -> dict[int, set[tuple[int, int]]]:
    """Return the number and the place of each row of planned numbers in the quarantine, by sequencer."""
    found: dict[int, set[tuple[int, int]]] = {}
    if quarantine is None:
        return found
    table = quarantine.load().table
    columns = ("partition", "offset", "place")
    if not {*columns, PRODUCER} <= {*table.schema().column_names}:
        return found  # made by appends of files: those rows have no entry
    for id_, numbers in plan.numbers.items():
        if numbers.is_empty:
            continue
        row_filter = f"{PRODUCER} = '{log.producer(id_)}' and offset >= {numbers.start} and offset < {numbers.end}"
        for rows in table.scan(row_filter=row_filter, selected_fields=columns).to_arrow_batch_reader():
            places = zip(rows.column("offset").to_pylist(), rows.column("place").to_pylist(), strict=True)
            found.setdefault(id_, set()).update(places)
    return found
