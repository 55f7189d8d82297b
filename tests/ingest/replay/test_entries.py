"""Which numbers were read, kept as runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemark.ingest.replay.entries import NumberRuns


@given(numbers=st.sets(st.integers(0, 40)), cuts=st.lists(st.integers(0, 41), max_size=4))
def test_runs_hold_exactly_the_numbers_that_were_added(numbers: set[int], cuts: list[int]) -> None:
    runs = NumberRuns()
    for start, end in pairwise(sorted([0, *cuts, 41])):
        runs.add(np.array(sorted(n for n in numbers if start <= n < end), np.int64))
    asked = np.arange(-1, 43, dtype=np.int64)
    assert runs.find(asked).tolist() == [n in numbers for n in asked.tolist()]
