from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.append.interval import holes_in, shared_parts
from tidemark.iceberg.shard.ledger import Ledger, Range

LEDGER = Ledger((Range(10, 20), Range(30, 40)))


@pytest.mark.parametrize(
    ("wanted", "holes"),
    [
        (Range(0, 50), ((0, 10), (20, 30), (40, 50))),
        (Range(10, 20), ()),
        (Range(15, 35), ((20, 30),)),
        (Range(20, 30), ((20, 30),)),
        (Range(0, 5), ((0, 5),)),
    ],
)
def test_holes_are_what_the_ledger_lacks(wanted: Range, holes: tuple[tuple[int, int], ...]) -> None:
    assert holes_in(LEDGER, wanted) == holes


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=8),
    st.integers(0, 40),
    st.integers(1, 30),
)
def test_holes_and_shared_parts_make_up_the_whole(added: list[tuple[int, int]], start: int, length: int) -> None:
    ledger = Ledger()
    for place, size in added:
        new = Range(place, place + size)
        ledger = ledger if ledger.overlaps(new) else ledger.add(new)
    wanted = Range(start, start + length)
    holes, shared = holes_in(ledger, wanted), shared_parts(ledger, wanted)
    numbers = [number for part in sorted([*holes, *shared]) for number in range(*part)]
    assert numbers == list(range(*wanted))
    assert not any(ledger.overlaps(hole) for hole in holes)
    assert all(ledger.covers(part) for part in shared)
