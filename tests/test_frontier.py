from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.frontier import EMPTY, Empty, Frontier, frontier_json, parse_frontier

frontiers = st.one_of(st.integers(min_value=0), st.just(EMPTY))


@given(frontiers)
def test_text_and_back_is_the_same_frontier(frontier: Frontier) -> None:
    assert parse_frontier(str(frontier)) == frontier


@given(st.integers(min_value=0))
def test_empty_lies_beyond_every_time(time: int) -> None:
    assert time < EMPTY
    assert time < EMPTY
    assert not time >= EMPTY
    assert min(time, EMPTY) == time
    assert max(time, EMPTY) == EMPTY


def test_there_is_one_empty() -> None:
    assert Empty() == EMPTY
    assert EMPTY <= EMPTY  # noqa: PLR0124 -- a frontier is not before itself
    assert not EMPTY < EMPTY  # noqa: PLR0124
    assert pickle.loads(pickle.dumps(EMPTY)) is EMPTY  # noqa: S301 -- our own bytes
    assert copy.deepcopy({"upper": EMPTY})["upper"] is EMPTY


def test_json_has_a_number_or_a_word() -> None:
    assert (frontier_json(7), frontier_json(EMPTY)) == (7, "empty")


@pytest.mark.parametrize("text", ["", "-1", "EMPTY", "1.0", "soon"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- int() words it its own way
        parse_frontier(text)
