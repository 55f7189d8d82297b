"""What a run tells of each sequencer: how far it is, how far behind, and what went through.

Source: the metrics of `reference/write_buffer_lifecycle.md`, section 7. They are taken once for each run, so that a lag
is as old as the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.write_buffer.bounded import read_range
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import BadMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemark.ingest.decoding.tally import Tally
    from tidemark.ingest.plan import PlannedRange
    from tidemark.write_buffer.formats.entry import Delivered
    from tidemark.write_buffer.reader import Reader

TIME_COLUMN = "time"  # of points, in ns
STALLED_S = 5.0


def read_one(reader: Reader, sequencer_id: int, start: int, end: int) -> Delivered | None:
    """Return the first entry of ``[start, end)``; None if there is none."""
    if start >= end:
        return None
    found = read_range(reader, sequencer_id, start, end=end, limit=1, stalled_s=STALLED_S)
    return found[0] if found else None


def time_of(delivered: Delivered | None) -> int | None:
    """Return the producer's time of an entry, in ms; None if there is none."""
    if delivered is None:
        return None
    return delivered.message.time_ms if isinstance(delivered, BadMessage) else delivered.time_ms


def lag_ms(oldest_waiting_ms: int | None, *, now_ms: int) -> int:
    """Return how long the oldest entry that waits has been waiting; 0 if none does, or its clock runs ahead."""
    return 0 if oldest_waiting_ms is None else max(0, now_ms - oldest_waiting_ms)


def row_times(delivered: Delivered | None) -> tuple[int | None, int | None]:
    """Return the smallest and the largest time, in ns, of the rows of an entry, over all its tables."""
    if delivered is None or isinstance(delivered, BadMessage):
        return None, None
    times = [row.values.get(TIME_COLUMN) for row in decode_entry(delivered, default_table="*").good]
    whole = [each for each in times if isinstance(each, int) and not isinstance(each, bool)]
    return (min(whole), max(whole)) if whole else (None, None)


def measure(
    reader: Reader, planned: Sequence[PlannedRange], tallies: Mapping[int, Tally], *, now_ms: int
) -> dict[str, dict[str, Any]]:
    """Return the measures of each sequencer that something was read of, by its number.

    Raises:
        BufferUnreachable: If the log cannot be read any more.
    """
    found = {}
    for each in planned:
        last = read_one(reader, each.sequencer_id, max(each.first, each.end - 1), each.end)
        waiting = read_one(reader, each.sequencer_id, each.end, each.watermark)
        earliest_ns, latest_ns = row_times(last)
        tally = tallies.get(each.sequencer_id)
        found[str(each.sequencer_id)] = {
            "start": each.start,
            "end": each.end,
            "watermark": each.watermark,
            "lost": each.lost,
            "last_sequence_number": each.end - 1,
            "sequence_number_lag": each.lag,
            "lag_ms": lag_ms(time_of(waiting), now_ms=now_ms),
            "last_ingest_time_ms": time_of(last),
            "last_min_time_ns": earliest_ns,
            "last_max_time_ns": latest_ns,
            "requests_ok": tally.entries - tally.bad_entries if tally else 0,
            "requests_client_error": tally.bad_entries if tally else 0,
            "rows": tally.rows if tally else 0,
            "bad_rows": tally.bad_rows if tally else 0,
            "rows_of_other_tables": tally.other_tables if tally else 0,
            "read_bytes": tally.read_bytes if tally else 0,
        }
    return found
