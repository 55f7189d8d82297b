"""Which numbers a run reads: a range per sequencer, bounded by watermarks that are asked for once, cut into parts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.errors import UsageError
from tidemark.write_buffer.errors import AfterWatermark, UnknownSequencer
from tidemark.write_buffer.position import check_range_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.write_buffer.reader import Reader

DEFAULT_PART_NUMBERS = 1_000_000


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
        wanted = {each: (reader.fetch_earliest(each), None) for each in sorted(known)}
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
    for each in ranges:
        count = -(-(each.end - each.start) // part_numbers)
        bounds = [each.start + (each.end - each.start) * place // count for place in range(count + 1)]
        parts += [(place, NumberRange(each.sequencer_id, *cut)) for place, cut in enumerate(pairwise(bounds))]
    return [part for _, part in sorted(parts)]
