"""What a worker hears of the shares of a round while others lead, or are lost; without processes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.errors import InputsGone
from tidemark.storage.board import Entry
from tidemark.storage.dataflows.round_board import RoundBoard
from tidemark.storage.sharing import round_place

STARTED_AT = 7


def board(*numbers: int, members: tuple[int, ...] = (0, 1)) -> RoundBoard:
    """The board as worker 0 sees it; ``numbers`` are those of the rounds that stood there, one after the other."""
    entries = iter([entry(number) for number in numbers])
    seen = SimpleNamespace(board={})

    def look(_place: str, _default: Any = None) -> Entry | None:
        return next(entries, None) if _place == round_place("a") else None

    seen.board = SimpleNamespace(get=look)
    put = SimpleNamespace(put=lambda *_arguments, **_more: True)
    around: Any = SimpleNamespace(index=0, seen=seen, board=put)
    rounds: Any = SimpleNamespace(may_run=True, members=members, item=SimpleNamespace(name="events"))
    return RoundBoard(around, "a", STARTED_AT, rounds)


def entry(number: int, life: int = STARTED_AT) -> Entry:
    return Entry(place=round_place("a"), life=life, number=number, value={}, written_ms=0)


def test_of_two_that_lead_the_earlier_one_gives_way_at_once() -> None:
    found = board(3, 3, 4)
    found._number = 3
    began_s = time.monotonic()
    with pytest.raises(InputsGone, match="another worker leads a later round"):
        found.collect([1])
    assert time.monotonic() - began_s < 5


def test_a_worker_that_is_lost_is_not_waited_for() -> None:
    found = board(3, 3, members=(0,))
    found._number = 3
    assert found.collect([1]) == {}
