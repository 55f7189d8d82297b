from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.iceberg.shard.ledger import FORWARDED, Ledger, Range, with_forwarded

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda pair: Range(pair[0], pair[0] + pair[1]))


@given(st.lists(RANGES, max_size=15), RANGES)
def test_ledger_agrees_with_a_set_of_numbers(ranges: list[Range], probe: Range) -> None:
    ledger, published = Ledger(), set[int]()
    for each in ranges:
        numbers = set(range(*each))
        if numbers & published:
            assert ledger.overlaps(each)
            with pytest.raises(ValueError, match="overlaps"):
                ledger.add(each)
        else:
            ledger, published = ledger.add(each), published | numbers
    wanted = set(range(*probe))
    assert ledger.covers(probe) == (wanted <= published)
    assert bool(ledger.overlaps(probe)) == bool(wanted & published)
    assert {number for each in ledger.holes(probe) for number in range(*each)} == wanted - published
    assert ledger.add_free([probe]) == (ledger if wanted & published else ledger.add(probe))
    assert {number for each in ledger.ranges for number in range(*each)} == published
    assert all(left.end < right.start for left, right in zip(ledger.ranges, ledger.ranges[1:], strict=False))
    assert Ledger.parse(str(ledger)) == ledger


@given(st.lists(RANGES, max_size=8), st.lists(RANGES, max_size=8))
def test_what_was_published_and_what_was_forwarded_is_done(published: list[Range], forwarded: list[Range]) -> None:
    ledgers = {"p": Ledger().add_free(published), "p" + FORWARDED: Ledger().add_free(forwarded), "q": Ledger()}
    numbers = {number for ledger in ledgers.values() for each in ledger.ranges for number in range(*each)}
    done = with_forwarded(ledgers)
    assert {number for each in done["p"].ranges for number in range(*each)} == numbers
    assert set(done) == {"p", "q"}


def test_contiguous_ranges_cost_the_room_of_one() -> None:
    ledger = Ledger()
    for hour in range(1_000):
        ledger = ledger.add(Range(hour * 3_600_000, (hour + 1) * 3_600_000))
    assert str(ledger) == f"0:{1_000 * 3_600_000}"


@pytest.mark.parametrize("bad", [Range(5, 5), Range(6, 5)])
def test_empty_or_reversed_range_is_refused(bad: Range) -> None:
    with pytest.raises(UsageError, match="empty or reversed"):
        Ledger().add(bad)
