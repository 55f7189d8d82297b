"""Ranges of numbers, one per sequencer: planned up to watermarks that are read once, cut, read to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from tidemark.errors import UsageError
from tidemark.write_buffer.errors import AfterWatermark, BufferUnreachable, UnknownSequencer
from tidemark.write_buffer.formats.entry import Delivered
from tidemark.write_buffer.reader import Reader, Stream, check_range_start

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.write_buffer.formats.arrow_messages import MessageColumns

Taken = TypeVar("Taken")

DEFAULT_PART_NUMBERS = 1_000_000
DEFAULT_STALLED_S = 30.0
_WAIT_S = 0.5
_MOST = 1_000
_BATCH_MESSAGES = 10_000  # memory stays small: Kafka's client buffers at most 10 MB


@dataclass(frozen=True, slots=True, order=True)
class NumberRange:
    """The numbers ``[start, end)`` of one sequencer, perhaps with holes."""

    sequencer_id: int
    start: int
    end: int


def plan_ranges(reader: Reader, wanted: Mapping[int, tuple[int, int | None]] | None = None) -> list[NumberRange]:
    """Return the ranges to read, without empty ones: the ``wanted`` ranges, or the whole log.

    ``wanted`` has ``(start, end)`` by sequencer, half-open; the end ``None`` is the watermark.

    Raises:
        UnknownSequencer: If a wanted sequencer does not exist.
        UsageError: If a range is reversed.
        NoLongerExists: If retention removed the beginning of a range.
        AfterWatermark: If a range begins or ends beyond the watermark.
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
    """Cut ``ranges`` into parts of at most ``part_numbers``.

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
    """Return the entries of ``[start, end)``, at most the first ``limit``; everything else as ``iterate_range``."""
    end = reader.fetch_high_watermark(sequencer_id) if end is None else end
    entries: list[Delivered] = []
    if limit != 0:
        for taken in iterate_range(reader, sequencer_id, start, end, most=limit or _MOST, stalled_s=stalled_s):
            entries += taken
            if limit is not None and len(entries) >= limit:
                break
    return entries[:limit]


def iterate_range(
    reader: Reader, sequencer_id: int, start: int, end: int, *, most: int = _MOST, stalled_s: float = DEFAULT_STALLED_S
) -> Iterator[list[Delivered]]:
    """Yield the entries of ``[start, end)``, in lists that are not empty; nothing for an empty range.

    ``reader`` has no open streams; its position afterwards is undefined. The start 0 means the earliest number of the
    log; ``end`` is at most the watermark. ``most`` is the largest length of a list, ``stalled_s`` how long the log may
    deliver nothing before the end of the range.

    Raises:
        NoLongerExists: If retention removed a part of the range.
        BufferUnreachable: If the log cannot be read, or stalls.
    """
    if start >= end:
        return
    reader.seek(sequencer_id, start)

    def take(stream: Stream) -> list[Delivered]:
        return [delivered for delivered in stream.take(most, timeout_s=_WAIT_S) if delivered.sequence.number < end]

    yield from _take_to_end(reader, sequencer_id, end, take, stalled_s)


def iterate_batches(reader: Reader, part: NumberRange, columns: MessageColumns) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``part`` in the order of their numbers; the memory does not grow with the part.

    Raises:
        NoLongerExists: If retention removed messages since the range was planned.
        AfterWatermark: If the log was made anew or cut since the range was planned.
        BufferMissing: If the log has lost the sequencer since the range was planned.
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
