"""Which data files a persist reads: the open ones that may have rows of the partitions, below the times of the split.

The rows of one partition below one time are an interval; the intervals of one persist are sorted, and none overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import DateType, NestedField, PrimitiveType

from tidemark.ingest.partitions.event_times import to_milliseconds
from tidemark.ingest.partitions.state import Begun
from tidemark.interval import EARLIEST_MS, LATEST_MS, Interval
from tidemark.lifecycle.partitions import find_bounds

SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
ALL_TIMES: Final = Interval(EARLIEST_MS, LATEST_MS + 1)
_DAY_MS: Final = 86_400_000


def bounds_of(partition: str) -> Interval:
    """Return the event times of a partition; the last one has the last time, to which later ones are cut, too."""
    bounds = find_bounds(partition)
    return replace(bounds, end_ms=ALL_TIMES.end_ms) if bounds.end_ms == LATEST_MS else bounds


def intervals_of(begun: Iterable[Begun]) -> list[Interval]:
    """Return the event times of the rows that some persists take, sorted.

    Of a partition that is left with nothing they are all: files of several such partitions lie within one interval.
    """
    found = []
    for each in begun:
        bounds = bounds_of(each.checkpoints.partition.partition)
        end_ms = bounds.end_ms if each.leaves_nothing else min(bounds.end_ms, each.checkpoints.partition.until_ms)
        found.append(replace(bounds, end_ms=end_ms))
    return sorted(found)


class Inputs(NamedTuple):
    """The files that a persist writes anew: open ones, and small persisted ones of the same partitions.

    So a partition does not get a file more with every pass, and late rows come into the order of the others.
    """

    open: list[FileScanTask]
    persisted: list[FileScanTask]


def choose_files(
    table: Table,
    tasks: Iterable[FileScanTask],
    column: str,
    *,
    due: Sequence[Interval],
    partitions: Sequence[Interval],
    order_id: int | None,
    with_duplicates: bool = False,
) -> Inputs:
    """Choose the files that may have rows to persist.

    ``due`` are the times of these rows, ``partitions`` those of their partitions, both sorted. ``order_id`` is of the
    sort order that marks persisted files. ``with_duplicates`` also takes every persisted file that may have a row with
    the event time of one of these rows.
    """
    field = table.schema().find_field(column)
    found = Inputs([], [])
    times_of_open: list[Interval] = []
    persisted: list[tuple[FileScanTask, Interval]] = []
    for task in tasks:
        if (times := find_times(task.file, field)) is None:
            continue
        if order_id is not None and task.file.sort_order_id == order_id:
            persisted.append((task, times))
        elif is_touched(times, due):
            found.open.append(task)
            times_of_open.append(times)
    if not found.open:
        return found
    again = _overlaps(times_of_open, due) if with_duplicates else []
    for task, times in persisted:
        is_small = task.file.file_size_in_bytes < SMALL_FILE_BYTES and is_touched(times, partitions)
        if is_small or is_touched(times, again):
            found.persisted.append(task)
    return found


def _overlaps(files: Iterable[Interval], due: Sequence[Interval]) -> list[Interval]:
    """Return the times that lie in a file and are due: sorted, and none overlap; ``due`` are sorted and do not."""
    files_ = merge_intervals(files)
    found = []
    place = 0
    for each in due:
        while place < len(files_) and files_[place].end_ms <= each.start_ms:
            place += 1
        for other in files_[place:]:
            if other.start_ms >= each.end_ms:
                break
            found.append(Interval(max(each.start_ms, other.start_ms), min(each.end_ms, other.end_ms)))
    return found


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return sorted intervals with the same times, none of which overlap or touch."""
    merged: list[Interval] = []
    for each in sorted(intervals):
        if merged and each.start_ms <= merged[-1].end_ms:
            merged[-1] = replace(merged[-1], end_ms=max(merged[-1].end_ms, each.end_ms))
        else:
            merged.append(each)
    return merged


def lies_within(file: DataFile, field: NestedField, intervals: Sequence[Interval]) -> bool:
    """Tell whether its manifest says that all rows of a file have an event time in one of ``merge_intervals``."""
    times, nulls = find_times(file, field), (file.null_value_counts or {}).get(field.field_id)
    if times is None or nulls != 0:
        return False
    place = bisect_right(intervals, times.start_ms, key=lambda each: each.start_ms) - 1
    return place >= 0 and times.end_ms <= intervals[place].end_ms


def is_touched(times: Interval, intervals: Sequence[Interval]) -> bool:
    """Tell whether one of the sorted intervals has a time of ``times``."""
    first = bisect_right(intervals, times.start_ms, key=lambda each: each.end_ms)  # those before end before the file
    return first < len(intervals) and intervals[first].start_ms < times.end_ms


def find_times(file: DataFile, field: NestedField) -> Interval | None:
    """Return between which event times the rows of a file lie; None if no row has one."""
    values, nulls = (counts.get(field.field_id) for counts in (file.value_counts or {}, file.null_value_counts or {}))
    if values is not None and values == nulls:
        return None
    lower, upper = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if lower is None or upper is None:  # another tool wrote the file, without bounds
        return ALL_TIMES
    first, last = (_to_ms(bound, field) for bound in (lower, upper))
    return Interval(first, last + 1)


def _to_ms(bound: bytes, field: NestedField) -> int:
    value = cast("int", from_bytes(cast("PrimitiveType", field.field_type), bound))  # days, or microseconds
    ms = value * _DAY_MS if isinstance(field.field_type, DateType) else value // 1_000
    return min(max(ms, EARLIEST_MS), LATEST_MS)


def is_ready(rows: pa.Table, column: str, intervals: Sequence[Interval]) -> NDArray[np.bool_]:
    """Tell of each row whether its event time lies in one of ``intervals``."""
    at = pc.fill_null(to_milliseconds(rows.column(column)), EARLIEST_MS - 1).to_numpy(zero_copy_only=False)
    starts = np.array([each.start_ms for each in intervals], np.int64)
    ends = np.array([each.end_ms for each in intervals], np.int64)
    places = np.searchsorted(starts, at, side="right") - 1
    found: NDArray[np.bool_] = (places >= 0) & (at < ends[places])
    return found
