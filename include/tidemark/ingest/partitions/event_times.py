"""Judges the event times of decoded rows, and counts what arrived for each partition; Spark's tasks do this, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.ingest.partitions.arrivals import NO_ARRIVALS, Arrival, Arrivals
from tidemark.interval import EARLIEST_MS, LATEST_MS, Unit, instant, milliseconds, time_text
from tidemark.lifecycle.partitions import name_partition
from tidemark.write_buffer.formats.entry import BadReason


class Unfit(NamedTuple):
    """The row at ``place`` cannot be kept, for example because of its event time."""

    place: int
    reason: BadReason
    detail: str


class Judged(NamedTuple):
    """The rows that can be kept, the others, what was kept by partition, and the numbers of the kept rows' entries."""

    rows: pa.Table
    unfit: list[Unfit]
    arrivals: Arrivals
    numbers: pa.Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """Which column has the event times, what they must be, and how they are cut into partitions."""

    column: str
    unit: Unit
    max_ahead_ms: int
    passed_ms: int | None = None  # rows of partitions that end here, or before, are not kept; None: all are
    since_ms: int = EARLIEST_MS  # rows arrive then, or when their producer wrote them, if later; those of a retry: now
    now_ms: int = LATEST_MS  # and not after now, whatever their producer's clock said

    @property
    def refuses_late(self) -> bool:
        """Whether rows of partitions that are over are not kept."""
        return self.passed_ms is not None

    def judge(self, rows: pa.Table, numbers: pa.Array, arrived_ms: pa.Array) -> Judged:
        """Judge ``rows`` by their event times.

        ``numbers`` are the numbers of the rows' entries, ``arrived_ms`` the times at which producers wrote them.
        """
        times = to_milliseconds(rows.column(self.column))
        arrived_ms = pc.min_element_wise(pc.max_element_wise(arrived_ms, self.since_ms), self.now_ms)
        is_missing = pc.is_null(times)
        is_ahead = _is_true(pc.greater(times, pc.add(arrived_ms, self.max_ahead_ms)))
        is_unfit = pc.or_(is_missing, is_ahead)
        if self.passed_ms is not None:
            first_open_ms = milliseconds(self.unit.floor(instant(self.passed_ms)))
            is_unfit = pc.or_(is_unfit, _is_true(pc.less(times, first_open_ms)))
        places = pc.indices_nonzero(is_unfit).to_pylist()
        unfit = [self._explain(place, times[place].as_py(), arrived_ms[place].as_py()) for place in places]
        late = _count_late(unfit, numbers, times)
        if unfit:
            is_fit = pc.invert(is_unfit)
            rows, numbers, times = rows.filter(is_fit), numbers.filter(is_fit), times.filter(is_fit)
        return Judged(rows, unfit, late.add(Arrivals(partitions=self.count(numbers, times))), numbers)

    def count(self, numbers: pa.Array, times: pa.Array) -> dict[str, Arrival]:
        """Return the rows with these numbers and event times, in ms, by partition."""
        starts = pc.floor_temporal(times.cast(pa.timestamp("ms")), unit=self.unit.value).cast(pa.int64())
        grouped = pa.table({"start": starts, "number": numbers, "time": times}).group_by("start", use_threads=False)
        found = grouped.aggregate([("number", "min_max"), ("time", "min_max"), ("time", "count")]).to_pylist()
        return {
            name_partition(self.unit, row["start"]): Arrival(
                first=row["number_min_max"]["min"],
                end=row["number_min_max"]["max"] + 1,
                rows=row["time_count"],
                start_ms=row["time_min_max"]["min"],
                end_ms=row["time_min_max"]["max"] + 1,
            )
            for row in found
        }

    def _explain(self, place: int, time_ms: int | None, arrived_ms: int) -> Unfit:
        if time_ms is None:
            return Unfit(place, BadReason.EVENT_TIME_MISSING, f"column {self.column!r}: the event time is missing")
        said = f"column {self.column!r}: the event time {time_text(time_ms)}"
        if time_ms > arrived_ms + self.max_ahead_ms:
            ahead = f"is more than {self.max_ahead_ms // 1000} s after its arrival at {time_text(arrived_ms)}"
            return Unfit(place, BadReason.EVENT_TIME_AHEAD, f"{said} {ahead}")
        partition = name_partition(self.unit, time_ms)
        return Unfit(place, BadReason.LATE, f"{said} is of the partition {partition}, which all sequencers have passed")


def to_milliseconds(column: pa.ChunkedArray) -> pa.Array:
    """Return dates and timestamps as ms since the Unix epoch, rounded down; those without a zone are UTC.

    Times before the year 1 and after 9999, which no date of Python has, become the first and the last one.
    """
    if not pa.types.is_date(column.type):
        column = pc.floor_temporal(column.cast(pa.timestamp(column.type.unit)), unit="millisecond")
    times = column.cast(pa.timestamp("ms")).cast(pa.int64()).combine_chunks()
    within = pc.min_element_wise(pc.max_element_wise(times, EARLIEST_MS), LATEST_MS)
    return pc.if_else(pc.is_valid(times), within, times)


def _is_true(found: pa.Array) -> pa.Array:
    return pc.fill_null(found, fill_value=False)


def _count_late(unfit: list[Unfit], numbers: pa.Array, times: pa.Array) -> Arrivals:
    late = [row.place for row in unfit if row.reason is BadReason.LATE]
    if not late:
        return NO_ARRIVALS
    first = f"number {numbers[late[0]].as_py()} with the event time {time_text(times[late[0]].as_py())}"
    return Arrivals(refused=len(late), first_refused=first)
