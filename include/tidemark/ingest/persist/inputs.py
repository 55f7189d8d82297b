"""Which data files a persist reads: the open ones that may have rows of the partitions, below the times of the split.

The rows of one partition below one time are an interval; the intervals of one persist are sorted, and none overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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
from tidemark.interval import EARLIEST_MS, LATEST_MS, Interval
from tidemark.lifecycle.checkpoints import Checkpoints
from tidemark.lifecycle.partitions import find_bounds

SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
_DAY_MS: Final = 86_400_000


def intervals_of(checkpoints: Iterable[Checkpoints]) -> list[Interval]:
    """Return the event times of the rows that the persists with these checkpoints take, sorted."""
    found = []
    for each in checkpoints:
        bounds = find_bounds(each.partition.partition)
        found.append(Interval(bounds.start_ms, min(bounds.end_ms, each.partition.until_ms)))
    return sorted(found)


class Inputs(NamedTuple):
    """The files that a persist writes anew: open ones, and small persisted ones of the same partitions.

    So a partition does not get a file more with every pass, and late rows come into the order of the others.
    """

    open: list[FileScanTask]
    persisted: list[FileScanTask]


def choose_files(
    table: Table, tasks: Iterable[FileScanTask], column: str, checkpoints: Iterable[Checkpoints], order_id: int | None
) -> Inputs:
    """Choose the files that may have rows to persist; ``order_id`` is of the order that marks persisted files."""
    field, checkpoints = table.schema().find_field(column), list(checkpoints)
    due = intervals_of(checkpoints)
    whole = sorted(find_bounds(each.partition.partition) for each in checkpoints)
    found = Inputs([], [])
    for task in tasks:
        is_persisted = order_id is not None and task.file.sort_order_id == order_id
        if is_persisted and task.file.file_size_in_bytes >= SMALL_FILE_BYTES:
            continue
        times = find_times(task.file, field)
        if times is not None and _is_touched(times, whole if is_persisted else due):
            found[is_persisted].append(task)
    return found if found.open else Inputs([], [])


def _is_touched(times: Interval, intervals: Sequence[Interval]) -> bool:
    first = bisect_right(intervals, times.start_ms, key=lambda each: each.end_ms)  # those before end before the file
    return first < len(intervals) and intervals[first].start_ms < times.end_ms


def find_times(file: DataFile, field: NestedField) -> Interval | None:
    """Return between which event times the rows of a file lie; None if no row has one."""
    values, nulls = (counts.get(field.field_id) for counts in (file.value_counts or {}, file.null_value_counts or {}))
    if values is not None and values == nulls:
        return None
    lower, upper = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if lower is None or upper is None:  # another tool wrote the file, without bounds
        return Interval(EARLIEST_MS, LATEST_MS + 1)
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
