"""A data interval in ms since the Unix epoch, and the whole units of time that it touches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from tidemark.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_PLACEHOLDER = re.compile(r"\{(start|end)\}")


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The half-open interval ``[start_ms, end_ms)``; never empty."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise UsageError(
                f"the interval [{time_text(self.start_ms)}, {time_text(self.end_ms)}) is empty or reversed",
                hint="an interval is half-open: its end must lie after its start",
            )

    def __str__(self) -> str:
        return f"[{time_text(self.start_ms)}, {time_text(self.end_ms)})"


class Unit(StrEnum):
    """The unit of time for the slices of a scope, in UTC; weeks start on Monday."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    def floor(self, time: datetime) -> datetime:
        """Return the start of the unit that ``time`` lies in."""
        start = time.replace(minute=0, second=0, microsecond=0)
        if self is Unit.HOUR:
            return start
        start = start.replace(hour=0)
        if self is Unit.WEEK:
            return start - timedelta(days=start.weekday())
        if self is Unit.MONTH:
            return start.replace(day=1)
        return start.replace(month=1, day=1) if self is Unit.YEAR else start

    def after(self, start: datetime) -> datetime:
        """Return the start of the unit that follows the one starting at ``start``; the last unit ends with time."""
        days = {Unit.DAY: 1, Unit.WEEK: 7, Unit.MONTH: 32, Unit.YEAR: 366}
        length = timedelta(hours=1) if self is Unit.HOUR else timedelta(days=days[self])
        return self.floor(start + length) if length <= _LAST - start else _LAST

    def covering(self, interval: Interval) -> Interval:
        """Return the smallest interval of whole units that holds ``interval``: a reconcile repairs whole slices."""
        start = self.floor(instant(interval.start_ms))
        last = self.floor(instant(interval.end_ms - 1))
        return Interval(milliseconds(start), milliseconds(self.after(last)))


def instant(time_ms: int) -> datetime:
    """Return ms since the Unix epoch as an aware UTC datetime, without a float in between."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def milliseconds(time: datetime) -> int:
    """Return an aware datetime as ms since the Unix epoch, rounded down."""
    return (time - _EPOCH) // _MILLISECOND


EARLIEST_MS, LATEST_MS = milliseconds(datetime.min.replace(tzinfo=UTC)), milliseconds(_LAST)  # that have a date


def time_text(time_ms: int) -> str:
    """Return the form that Spark SQL and people read: ``2013-01-01 00:00:00``, UTC, with ms only if there are any."""
    time = instant(time_ms).replace(tzinfo=None)
    return time.isoformat(sep=" ", timespec="milliseconds" if time_ms % 1000 else "seconds")


def duration_text(duration_ms: int) -> str:
    """Return a duration as people read it, rounded down: ``31 min``."""
    for unit, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("min", 60_000)):
        if duration_ms >= 2 * unit_ms:
            return f"{duration_ms // unit_ms} {unit}"
    return f"{duration_ms // 1_000} s"


def has_interval(text: str) -> bool:
    """Tell whether `{start}` or `{end}` stands in ``text``."""
    return _PLACEHOLDER.search(text) is not None


def fill_interval(text: str, start: str, end: str) -> str:
    """Return ``text`` with `{start}` and `{end}` filled in; other braces are left alone."""
    return _PLACEHOLDER.sub(lambda match: start if match[1] == "start" else end, text)
