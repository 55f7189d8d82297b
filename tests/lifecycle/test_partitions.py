"""Partitions by hour, day and month: names and bounds say the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.interval import Unit, time_text
from tidemark.lifecycle.partitions import find_bounds, name_partition

NOON_MS = 1_357_214_400_000  # 2013-01-03 12:00


@pytest.mark.parametrize(
    ("unit", "name", "end"),
    [
        (Unit.HOUR, "2013-01-03T12", "2013-01-03 13:00:00"),
        (Unit.DAY, "2013-01-03", "2013-01-04 00:00:00"),
        (Unit.MONTH, "2013-01", "2013-02-01 00:00:00"),
    ],
)
def test_a_name_has_bounds(unit: Unit, name: str, end: str) -> None:
    assert name_partition(unit, NOON_MS + 59_999) == name
    assert time_text(find_bounds(name).end_ms) == end


@given(
    unit=st.sampled_from([Unit.HOUR, Unit.DAY, Unit.MONTH]), time_ms=st.integers(-62_135_596_800_000, 4_102_444_800_000)
)
def test_each_time_lies_in_its_partition_alone(unit: Unit, time_ms: int) -> None:
    bounds = find_bounds(name_partition(unit, time_ms))
    assert bounds.start_ms <= time_ms < bounds.end_ms, "half-open"
    assert name_partition(unit, bounds.end_ms - 1) == name_partition(unit, bounds.start_ms)
    assert name_partition(unit, bounds.end_ms) != name_partition(unit, bounds.start_ms)


@pytest.mark.parametrize(
    "text", ["", "2013", "2013-13", "2013-W01-4", "2013-01-03 05", "2013-01-03T05:00", "yesterday!"]
)
def test_another_text_names_no_partition(text: str) -> None:
    with pytest.raises(UsageError, match="names no partition"):
        find_bounds(text)


def test_weeks_do_not_cut_partitions() -> None:
    with pytest.raises(UsageError, match="not cut by week"):
        name_partition(Unit.WEEK, NOON_MS)
