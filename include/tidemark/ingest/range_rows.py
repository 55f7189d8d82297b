"""Reads planned numbers of a buffer as rows of a collection, stamped with their batch; in Spark's tasks or without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.ingest.decoding.bad_rows import quarantined_rows
from tidemark.ingest.decoding.messages import COLUMNS, RowDecoder
from tidemark.ingest.decoding.tally import Tally
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.ranges import NumberRange, split_ranges
from tidemark.write_buffer.registry import read_batches

if TYPE_CHECKING:
    from tidemark.ingest.buffer_log import BufferLog
    from tidemark.ingest.plan import PlannedRange


@dataclass(frozen=True, slots=True)
class StampedPart:
    """Numbers to read, and the stamps of their rows."""

    numbers: NumberRange
    stamps: tuple[tuple[str, str | int], ...]  # columns that name the batch, with their values


@dataclass(frozen=True, slots=True)
class RowReading:
    """How the messages of a buffer become rows of one collection; travels to Spark's tasks."""

    connection: Connection
    topic: str
    decoder: RowDecoder
    schema_id: int  # of the collection, whose columns the decoder makes

    def read(self, part: StampedPart, *, with_bad: bool = False) -> Iterator[tuple[pa.Table, pa.Table | None, Tally]]:
        """Yield, batch by batch, stamped rows, stamped rows for the quarantine, and counts.

        Args:
            part: The numbers to read.
            with_bad: Whether to make rows for the quarantine: they need the headers, which take longer to read.

        Raises:
            TidemarkError: As ``read_batches``.
        """
        columns = (*COLUMNS, "headers") if with_bad else COLUMNS
        for messages in read_batches(self.connection, part.numbers, columns):
            decoded = self.decoder.decode(messages)
            bad = None
            if with_bad and decoded.bad:
                sequencer_id = part.numbers.sequencer_id
                rows = quarantined_rows(decoded.bad, messages, topic=self.topic, sequencer_id=sequencer_id)
                bad = _stamped(rows, part)
            tally = Tally(
                sequencer_id=part.numbers.sequencer_id,
                start=part.numbers.start,
                end=part.numbers.end,
                entries=len(messages),
                bad_entries=len({row.number for row in decoded.bad}),
                rows=decoded.good.num_rows,
                bad_rows=len(decoded.bad),
                other_tables=decoded.other_tables,
                read_bytes=int(pc.sum(pc.binary_length(messages.column("payload"))).as_py() or 0),
            )
            yield _stamped(decoded.good, part), bad, tally


def cut_parts(
    log: BufferLog, planned: Iterable[PlannedRange], part_numbers: int, *, only: Sequence[Tally] | None = None
) -> list[StampedPart]:
    """Cut planned ranges into parts of at most ``part_numbers``; parts of different sequencers take turns.

    With ``only``, the counts of an earlier pass: return the parts that had bad rows.
    """
    from tidemark.iceberg.shard.layout import BATCH, PRODUCER  # noqa: PLC0415 -- Spark's tasks do without pyiceberg

    by_sequencer = {part.sequencer_id: part for part in planned}
    if only is None:
        ranges = [NumberRange(part.sequencer_id, part.first, part.end) for part in by_sequencer.values()]
        cut = split_ranges([part for part in ranges if part.start < part.end], part_numbers)
    else:
        cut = [NumberRange(tally.sequencer_id, tally.start, tally.end) for tally in only if tally.bad_rows]
    parts = []
    for numbers in cut:
        producer, planned_range = log.producer(numbers.sequencer_id), by_sequencer[numbers.sequencer_id]
        parts.append(StampedPart(numbers, ((PRODUCER, producer), (BATCH, planned_range.start))))
    return parts


def _stamped(rows: pa.Table, part: StampedPart) -> pa.Table:
    for name, value in part.stamps:
        rows = rows.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return rows
