"""Ledgers stay small, and a range is looked up among what is published and what is staged."""

from __future__ import annotations

import pytest

from tidemark.collections.staged.batches import BatchName, Standing, find_standing
from tidemark.errors import RangeOverlap
from tidemark.iceberg.shard.ledger import Ledger, Range

HOUR_MS = 3_600_000


def test_ledger_of_100_000_hours_is_less_than_a_kilobyte() -> None:
    ledger = Ledger()
    for hour in range(100_000):
        ledger = ledger.add(Range(hour * HOUR_MS, (hour + 1) * HOUR_MS))
    assert len(str(ledger)) < 1024
    assert ledger.covers(Range(0, 100_000 * HOUR_MS))


def test_ledger_of_hours_that_come_backwards_by_day_stays_small() -> None:
    ledger = Ledger()
    for day in reversed(range(100)):
        for hour in range(24):
            start = (day * 24 + hour) * HOUR_MS
            ledger = ledger.add(Range(start, start + HOUR_MS))
            assert len(str(ledger)) < 1024
    assert ledger.ranges == (Range(0, 2_400 * HOUR_MS),)


@pytest.mark.parametrize(
    ("wanted", "standing"),
    [
        ((0, 5), Standing.PUBLISHED),
        ((1, 3), Standing.PUBLISHED),
        ((5, 8), Standing.STAGED),
        ((6, 7), Standing.STAGED),
        ((3, 8), Standing.STAGED),  # part published, part staged: nothing of it is missing
        ((8, 10), Standing.FREE),
        ((-3, 0), Standing.FREE),
        ((20, 30), Standing.STAGED),
    ],
)
def test_standing(wanted: tuple[int, int], standing: Standing) -> None:
    published, staged = Ledger((Range(0, 5),)), [Range(20, 25), Range(5, 8), Range(25, 30)]
    assert find_standing(BatchName("p", Range(*wanted)), published=published, staged=staged) is standing


@pytest.mark.parametrize(("wanted", "named"), [((4, 9), "[0, 5), [5, 8)"), ((-1, 2), "[0, 5)"), ((19, 21), "[20, 25)")])
def test_overlap_names_the_ranges(wanted: tuple[int, int], named: str) -> None:
    published, staged = Ledger((Range(0, 5),)), [Range(20, 25), Range(5, 8)]
    with pytest.raises(RangeOverlap) as caught:
        find_standing(BatchName("p", Range(*wanted)), published=published, staged=staged)
    assert f"overlaps {named}, accepted before" in str(caught.value)
