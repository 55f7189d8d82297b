"""Intervals in ms, and the whole units of time that they touch."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.interval import Interval, Unit, duration_text, instant, milliseconds, time_text


def ms(text: str) -> int:
    return milliseconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("unit", "start", "end", "covered"),
    [
        (Unit.HOUR, "2013-01-01T10:30", "2013-01-01T10:31", ("2013-01-01T10:00", "2013-01-01T11:00")),
        (Unit.DAY, "2013-01-01T10:00", "2013-01-01T11:00", ("2013-01-01", "2013-01-02")),
        (Unit.DAY, "2013-01-01", "2013-01-02", ("2013-01-01", "2013-01-02")),
        (Unit.DAY, "2013-01-01T23:00", "2013-01-02T00:00:00.001", ("2013-01-01", "2013-01-03")),
        (Unit.WEEK, "2013-01-02", "2013-01-03", ("2012-12-31", "2013-01-07")),
        (Unit.MONTH, "2013-01-31", "2013-02-01", ("2013-01-01", "2013-02-01")),
        (Unit.MONTH, "2013-12-31", "2014-01-02", ("2013-12-01", "2014-02-01")),
        (Unit.YEAR, "2012-02-29", "2012-03-01", ("2012-01-01", "2013-01-01")),
    ],
)
def test_slices_are_whole_units(unit: Unit, start: str, end: str, covered: tuple[str, str]) -> None:
    assert unit.covering(Interval(ms(start), ms(end))) == Interval(ms(covered[0]), ms(covered[1]))


@given(st.sampled_from(Unit), st.integers(-(10**13), 10**13), st.integers(1, 10**11))
def test_a_slice_holds_its_interval_and_is_its_own_slice(unit: Unit, start: int, length: int) -> None:
    interval = Interval(start, start + length)
    covering = unit.covering(interval)
    assert covering.start_ms <= interval.start_ms < interval.end_ms <= covering.end_ms
    assert unit.covering(covering) == covering


@given(st.integers(-(10**13), 10**14))
def test_times_are_exact_to_the_millisecond(time_ms: int) -> None:
    assert milliseconds(instant(time_ms)) == time_ms
    assert milliseconds(datetime.fromisoformat(time_text(time_ms)).replace(tzinfo=UTC)) == time_ms


def test_an_empty_or_reversed_interval_is_refused() -> None:
    for end in (5, 4):
        with pytest.raises(UsageError, match="empty or reversed"):
            Interval(5, end)


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(999, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (9**9, "4 d")]
)
def test_a_duration_reads_well(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text
