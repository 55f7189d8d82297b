"""Frontiers: one time in ms since the Unix epoch, or EMPTY, which lies beyond every time."""

from __future__ import annotations

from functools import total_ordering
from typing import Final


@total_ordering
class Empty:
    """The empty frontier: as an upper, sealed for ever; as a since, history may be dropped. Larger than any time."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Empty)

    def __lt__(self, other: int | Empty) -> bool:
        return False

    def __hash__(self) -> int:
        return hash(Empty)

    def __repr__(self) -> str:
        return "EMPTY"

    def __str__(self) -> str:
        return "empty"

    def __reduce__(self) -> str:
        return "EMPTY"  # pickling keeps the one instance, so `is EMPTY` works in other processes too


EMPTY: Final = Empty()

Frontier = int | Empty


def parse_frontier(text: str) -> Frontier:
    """Parse what ``str`` wrote: a whole number of ms from 0 on, or ``empty``. Raises ``ValueError`` for other texts."""
    if text == "empty":
        return EMPTY
    time = int(text)
    if time < 0:
        raise ValueError(f"a frontier cannot be negative, got {text!r}")
    return time


def frontier_json(frontier: Frontier) -> int | str:
    """Return the JSON form: the number of ms, or ``"empty"``."""
    return "empty" if isinstance(frontier, Empty) else frontier
