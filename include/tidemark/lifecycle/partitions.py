"""The partition of an event time: one hour, day or month in UTC, with a name that sorts and says which unit it is."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.errors import UsageError
from tidemark.interval import Interval, Unit, instant, milliseconds

# How much of a time in ISO form names its partition.
_LENGTHS = {Unit.HOUR: len("2013-01-03T05"), Unit.DAY: len("2013-01-03"), Unit.MONTH: len("2013-01")}
_UNITS = {length: unit for unit, length in _LENGTHS.items()}


def name_partition(unit: Unit, time_ms: int) -> str:
    """Return the name of the partition that an event time lies in: ``2013-01-03T05``, ``2013-01-03`` or ``2013-01``.

    Raises ``UsageError`` if partitions are never of that unit.
    """
    if unit not in _LENGTHS:
        raise UsageError(f"partitions are not cut by {unit}", hint=f"cut them by {', '.join(_LENGTHS)}")
    return unit.floor(instant(time_ms)).isoformat()[: _LENGTHS[unit]]


def find_bounds(partition: str) -> Interval:
    """Return the event times ``[start, end)`` of the partition of that name.

    Raises ``UsageError`` for a text that names no partition.
    """
    unit = _UNITS.get(len(partition))
    try:
        start = datetime.fromisoformat(f"{partition}-01" if unit is Unit.MONTH else partition).replace(tzinfo=UTC)
        bounds = None if unit is None else Interval(milliseconds(start), milliseconds(unit.after(start)))
    except ValueError:
        bounds = None
    # ISO has other forms of the same length, such as 2013-W01-4.
    if unit is None or bounds is None or name_partition(unit, bounds.start_ms) != partition:
        raise UsageError(
            f"{partition!r} names no partition", hint="write an hour 2013-01-03T05, a day 2013-01-03 or a month 2013-01"
        )
    return bounds
