"""Reads a range of numbers to its end, which a stream by itself never comes to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidemark.write_buffer.errors import BufferUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.write_buffer.formats.entry import Delivered
    from tidemark.write_buffer.reader import Reader

DEFAULT_STALLED_S = 30.0
_WAIT_S = 0.5
_MOST = 1_000


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
    until = time.monotonic() + stalled_s
    with reader.streams() as streams:
        stream = streams[sequencer_id]
        while (stream.next_number or 0) < end:
            arrived = [each for each in stream.take(most, timeout_s=_WAIT_S) if each.sequence.number < end]
            if arrived:
                yield arrived
                until = time.monotonic() + stalled_s
            elif time.monotonic() > until:
                raise BufferUnreachable(
                    f"{stream.buffer} delivers nothing of sequencer {sequencer_id} from {stream.next_number} on, "
                    f"although the end of the range, {end}, is not reached",
                    hint="is the broker well?",
                )
