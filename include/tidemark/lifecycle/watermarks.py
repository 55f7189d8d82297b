"""How far event time is complete: one watermark per sequencer, and the time that all of them have passed.

A watermark is the greatest event time seen, less the time that rows may be late. A sequencer that has nothing more to
read and was quiet for that time has the wall clock instead, or a partition would never close at night. No watermark is
later than the wall clock less that time: a row a little ahead of it says nothing of those that are yet to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.interval import EARLIEST_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerTimes:
    """What one sequencer has brought so far."""

    end: int  # the first number that was never seen
    max_time_ms: int | None  # the greatest event time, but for those too far ahead; None: there was no other
    last_ms: int  # when its last rows arrived

    def advance(self, later: SequencerTimes) -> SequencerTimes:
        """Return the greater of both, in each of their parts."""
        times = [time for time in (self.max_time_ms, later.max_time_ms) if time is not None]
        return SequencerTimes(
            end=max(self.end, later.end), max_time_ms=max(times, default=None), last_ms=max(self.last_ms, later.last_ms)
        )


def is_ahead(time_ms: int, *, arrived_ms: int, max_ahead_ms: int) -> bool:
    """Tell whether an event time is so far after its arrival that it is an error of the producer."""
    return time_ms > arrived_ms + max_ahead_ms


def find_watermark(times: SequencerTimes | None, *, now_ms: int, late_ms: int, is_caught_up: bool) -> int | None:
    """Return the time below which a sequencer brings no more rows, but for late ones; None if nothing is known.

    ``times`` is None for a sequencer that brought nothing yet. ``is_caught_up`` says that none of its entries waits: an
    ingest that was down for an hour finds quiet sequencers with an hour of rows.
    """
    reached = [] if times is None or times.max_time_ms is None else [times.max_time_ms]
    if is_caught_up and (times is None or now_ms - times.last_ms >= late_ms):
        reached.append(now_ms)
    return max(min(max(reached), now_ms) - late_ms, EARLIEST_MS) if reached else None


def find_passed(
    sequencers: Mapping[int, SequencerTimes], caught_up: Mapping[int, bool], *, now_ms: int, late_ms: int
) -> int | None:
    """Return the event time that the watermarks of all sequencers have passed; None if one of them is unknown.

    ``caught_up`` names all sequencers of the buffer, and says of each whether none of its entries waits.
    """
    watermarks = [
        find_watermark(sequencers.get(id_), now_ms=now_ms, late_ms=late_ms, is_caught_up=is_caught_up)
        for id_, is_caught_up in caught_up.items()
    ]
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None
