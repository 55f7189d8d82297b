"""Which rows went is found by the sum of their hashes, or is said not to be known; never are other rows named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.digest.digest import Digest
from tidemark.collections.reconcile.following import settling
from tidemark.collections.reconcile.following.settling import choose, settle

BUCKETS = 16


def random_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    return tuple(chance.integers(-(2**63), 2**63 - 1, count, dtype=np.int64) for _ in range(2))


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 200), gone=st.integers(0, 40), copies=st.integers(1, 3))
def test_the_rows_that_went_are_found(seed: int, rows: int, gone: int, copies: int) -> None:
    positions, hashes = (np.tile(each, copies) for each in random_rows(rows, seed))
    chosen = np.random.default_rng(seed).permutation(len(hashes))[:gone]
    lost = Digest.of_hashes(positions[chosen], hashes[chosen], BUCKETS)
    found, unsettled = settle(lost, positions, hashes)
    assert len(set(found.tolist())) == len(found)
    settled = ~np.isin(positions[chosen] & (BUCKETS - 1), unsettled)
    assert sorted(hashes[found].tolist()) == sorted(hashes[chosen][settled].tolist())
    counts = lost.counts.tolist()
    easy = [bucket for bucket in unsettled if counts[bucket] <= 2]
    assert not easy, "one or two of some hundred rows are always found"


def test_rows_that_are_not_there_are_not_found() -> None:
    positions, hashes = random_rows(100, 1)
    for count in (1, 2, 3, 99, 100):
        others = Digest.of_hashes(*random_rows(count, 2), 1)
        found, unsettled = settle(others, positions, hashes)
        assert (len(found), unsettled) == (0, [0])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 46, 47, 48, 49, 50])
def test_few_that_go_and_few_that_stay_are_found_among_fifty(count: int) -> None:
    hashes = random_rows(50, 3)[1].view(np.uint64)
    target = int(hashes[:count].sum(dtype=np.uint64))
    found = choose(hashes, count, target)
    assert found is not None
    assert sorted(found.tolist()) == list(range(count))


def test_a_row_is_not_taken_twice() -> None:
    hashes = np.array([5, 7, 7, 11], dtype=np.uint64)
    assert choose(hashes, 2, 10) is None, "5 + 5"
    assert sorted(np.array(choose(hashes, 2, 14)).tolist()) == [1, 2]
    assert choose(hashes, 5, 30) is None
    assert choose(hashes, -1, 0) is None


def test_too_many_choices_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = random_rows(2000, 4)[1].view(np.uint64)
    assert choose(hashes, 4, int(hashes[:4].sum(dtype=np.uint64))) is None
    positions, hashes = random_rows(60, 5)
    lost = Digest.of_hashes(positions[::4], hashes[::4], 4)
    assert not settle(lost, positions, hashes)[1]
    monkeypatch.setattr(settling, "_MOST_WORK", 1)
    assert len(settle(lost, positions, hashes)[1]) >= 3, "all but those with one choice"
