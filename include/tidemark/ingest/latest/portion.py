"""Reads planned numbers as changes, a portion at a time, and writes what is bad among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.latest.changes import Folding
from tidemark.ingest.latest.decoding import COLUMNS, ChangeDecoder, ForeignKeys
from tidemark.ingest.messages import DecodedRows, quarantined_rows
from tidemark.ingest.plan import PlannedRange
from tidemark.ingest.range_rows import Tally
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.ranges import NumberRange
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import read_batches

PORTION_ENTRIES = 500_000  # of all sequencers: one commit, which looks at the keys of all stored rows
PORTION_BYTES = 256 * 1024 * 1024  # of the changes that are kept
_BAD_BYTES = 32 * 1024 * 1024  # of bad rows in memory


@dataclass(frozen=True, slots=True)
class ChangeReading:
    """How the messages of a buffer become changes of one collection."""

    connection: Connection
    reader: Reader
    log: BufferLog
    decoder: ChangeDecoder

    def read(
        self, part: PlannedRange, columns: Sequence[str] = COLUMNS, foreign: ForeignKeys | None = None
    ) -> Iterator[tuple[pa.RecordBatch, DecodedRows]]:
        """Yield the messages of ``part``, batch by batch, with the changes in them.

        Raises as ``read_batches``.
        """
        numbers = NumberRange(part.sequencer_id, part.first, part.end)
        for messages in read_batches(self.connection, numbers, tuple(columns), self.reader):
            yield messages, self.decoder.decode(messages, foreign)


@dataclass(slots=True)
class Portion:
    """What was read for one commit: ranges, the last change of each key by sequencer, and counts by sequencer."""

    ranges: list[PlannedRange] = field(default_factory=list)
    changes: dict[int, pa.Table] = field(default_factory=dict)
    tallies: dict[int, Tally] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many numbers were read."""
        return sum(part.end - part.first for part in self.ranges)


def read_portion(
    reading: ChangeReading, planned: Sequence[PlannedRange], *, most_bytes: int = PORTION_BYTES
) -> Portion:
    """Read the planned ranges, or their beginning if the changes have more than ``most_bytes``.

    Raises as ``read_batches``.
    """
    portion, size_bytes = Portion(), 0
    for part in planned:
        if size_bytes > most_bytes:
            break
        folding = Folding(reading.decoder.judge.key)
        tally = empty = Tally(sequencer_id=part.sequencer_id, start=part.start, end=part.end)
        end = part.end
        for messages, decoded in reading.read(part):
            folding.add(decoded.good)
            tally = tally.add(empty.count(messages, decoded))
            if size_bytes + folding.size_bytes > most_bytes:
                end = min(part.end, messages.column("number")[-1].as_py() + 1)
                break
        if (last := folding.last()) is not None:
            portion.changes[part.sequencer_id] = last
            size_bytes += last.nbytes
        portion.tallies[part.sequencer_id] = replace(tally, end=end)
        portion.ranges.append(replace(part, end=end))
    return portion


def write_bad(
    reading: ChangeReading,
    parts: Sequence[PlannedRange],
    foreign: Mapping[int, ForeignKeys],
    table: Table,
    *,
    topic: str,
) -> tuple[tuple[DataFile, ...], dict[int, int]]:
    """Read ``parts`` again, and write what is bad in them as files of the quarantine, which has ``table``.

    ``foreign`` has the keys that are not taken from a sequencer. Also returns the counts of bad rows by sequencer.

    Raises as ``read_batches``.
    """
    files: list[DataFile] = []
    counts: dict[int, int] = {}
    waiting: list[pa.Table] = []
    for part in parts:
        stamps = ((PRODUCER, reading.log.producer(part.sequencer_id)), (BATCH, part.start))
        for messages, decoded in reading.read(part, (*COLUMNS, "headers"), foreign.get(part.sequencer_id)):
            rows = quarantined_rows(decoded.bad, messages, topic=topic, sequencer_id=part.sequencer_id)
            counts[part.sequencer_id] = counts.get(part.sequencer_id, 0) + rows.num_rows
            waiting.append(with_constants(rows, stamps))
            if sum(rows.nbytes for rows in waiting) > _BAD_BYTES:
                files += _write(table, waiting)
                waiting = []
    return (*files, *_write(table, waiting)), counts


def _write(table: Table, tables: Sequence[pa.Table]) -> tuple[DataFile, ...]:
    if not tables:
        return ()
    rows = pa.concat_tables(tables)
    for name in (name for name in table.schema().column_names if "." not in name):
        if name not in rows.column_names:  # a quarantine made by appends of files has further columns
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return write_rows(table, rows)
