"""Ranges of numbers, one per sequencer: planned up to watermarks that are asked for once, cut into parts, read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from tidemark.errors import UsageError
from tidemark.write_buffer.errors import AfterWatermark, BufferUnreachable, UnknownSequencer
from tidemark.write_buffer.reader import check_range_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from tidemark.write_buffer.formats.arrow_messages import MessageColumns
    from tidemark.write_buffer.formats.entry import Delivered
    from tidemark.write_buffer.reader import Reader, Stream


Taken = TypeVar("Taken")

DEFAULT_PART_NUMBERS = 1_000_000
DEFAULT_STALLED_S = 30.0
_WAIT_S = 0.5
_MOST = 1_000
_BATCH_MESSAGES = 10_000  # Kafka's client holds back at most 10 MB, and with them what a batch can be


@dataclass(frozen=True, slots=True, order=True)
class NumberRange:
    """The numbers ``[start, end)`` of one sequencer, of which some may be holes."""

    sequencer_id: int
    start: int
    end: int


def plan_ranges(reader: Reader, wanted: Mapping[int, tuple[int, int | None]] | None = None) -> list[NumberRange]:
    """Return the ranges to read, without empty ones: all that is there, or what is ``wanted``.

    Args:
        reader: Asked once for each sequencer.
        wanted: ``(start, end)`` by sequencer, half-open; the end ``None`` is the watermark.

    Raises:
        UnknownSequencer: If one that is wanted does not exist.
        UsageError: If a range is reversed.
        NoLongerExists: If retention took the beginning of one.
        AfterWatermark: If one begins or ends behind the watermark.
    """
    known = reader.sequencer_ids()
    if wanted is None:
        wanted = {sequencer_id: (reader.fetch_earliest(sequencer_id), None) for sequencer_id in sorted(known)}
    ranges = []
    for sequencer_id, (start, wanted_end) in sorted(wanted.items()):
        if sequencer_id not in known:
            raise UnknownSequencer.named(sequencer_id, known, buffer=reader.name)
        earliest, watermark = reader.fetch_earliest(sequencer_id), reader.fetch_high_watermark(sequencer_id)
        check_range_start(sequencer_id, start, earliest=earliest, watermark=watermark, buffer=reader.name)
        end = watermark if wanted_end is None else wanted_end
        if end > watermark:
            raise AfterWatermark(sequencer_id, end, watermark, buffer=reader.name)
        if end < start:
            raise UsageError(f"the range [{start}, {end}) of sequencer {sequencer_id} is reversed")
        if start < end:
            ranges.append(NumberRange(sequencer_id, start, end))
    return ranges


def split_ranges(ranges: list[NumberRange], part_numbers: int = DEFAULT_PART_NUMBERS) -> list[NumberRange]:
    """Cut ``ranges`` into parts of at most ``part_numbers`` that together are the same numbers.

    Parts of different sequencers take turns, so that tasks that run at the same time read different partitions.
    """
    parts = []
    for whole in ranges:
        count = -(-(whole.end - whole.start) // part_numbers)
        bounds = [whole.start + (whole.end - whole.start) * place // count for place in range(count + 1)]
        parts += [(place, NumberRange(whole.sequencer_id, *cut)) for place, cut in enumerate(pairwise(bounds))]
    return [part for _, part in sorted(parts)]


def read_range(
    reader: Reader,
    sequencer_id: int,
    start: int,
    *,
    end: int | None = None,
    limit: int | None = None,
    stalled_s: float = DEFAULT_STALLED_S,
) -> list[Delivered]:
    """Return what is in ``[start, end)``, at most the first ``limit``; everything else as ``iterate_range``."""
    end = reader.fetch_high_watermark(sequencer_id) if end is None else end
    taken: list[Delivered] = []
    if limit != 0:
        for some in iterate_range(reader, sequencer_id, start, end, most=limit or _MOST, stalled_s=stalled_s):
            taken += some
            if limit is not None and len(taken) >= limit:
                break
    return taken[:limit]


def iterate_range(
    reader: Reader,
    sequencer_id: int,
    start: int,
    end: int,
    *,
    most: int = _MOST,
    stalled_s: float = DEFAULT_STALLED_S,
) -> Iterator[list[Delivered]]:
    """Yield what is in ``[start, end)``, in lists that are not empty; nothing for an empty range.

    Args:
        reader: One whose streams are closed; where it stands afterwards is not said.
        sequencer_id: The log.
        start: The first number (inclusive). 0 means the earliest there is.
        end: The end (exclusive), at most the watermark.
        most: The length of a list.
        stalled_s: How long nothing at all may arrive, although the range is not at its end.

    Raises:
        NoLongerExists: If a part of the range is gone.
        BufferUnreachable: If the log cannot be read, or stalls.
    """
    if start >= end:
        return
    reader.seek(sequencer_id, start)

    def take(stream: Stream) -> list[Delivered]:
        return [delivered for delivered in stream.take(most, timeout_s=_WAIT_S) if delivered.sequence.number < end]

    yield from _take_to_end(reader, sequencer_id, end, take, stalled_s)


def iterate_batches(reader: Reader, part: NumberRange, columns: MessageColumns) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``part`` in the order of their numbers, with memory that does not grow with it.

    Raises:
        NoLongerExists: If retention took some of them since the range was planned.
        AfterWatermark: If the log was made anew or cut since then.
        BufferMissing: If it has lost the sequencer since then.
        BufferUnreachable: If the log cannot be read, or stalls.
    """
    if part.start >= part.end:
        return
    reader.resume(part.sequencer_id, part.start)

    def take(stream: Stream) -> pa.RecordBatch | None:
        return stream.take_batch(columns, end=part.end, limit=_BATCH_MESSAGES, timeout_s=_WAIT_S)

    yield from _take_to_end(reader, part.sequencer_id, part.end, take, DEFAULT_STALLED_S)


def _take_to_end(
    reader: Reader, sequencer_id: int, end: int, take: Callable[[Stream], Taken | None], stalled_s: float
) -> Iterator[Taken]:
    until = time.monotonic() + stalled_s
    with reader.streams() as streams:
        stream = streams[sequencer_id]
        while (stream.next_number or 0) < end:
            if taken := take(stream):
                yield taken
                until = time.monotonic() + stalled_s
            elif time.monotonic() > until:
                raise BufferUnreachable(
                    f"{stream.buffer} delivers nothing of sequencer {sequencer_id} from {stream.next_number} on, "
                    f"although the end of the range, {end}, is not reached",
                    hint="is the broker well?",
                )
