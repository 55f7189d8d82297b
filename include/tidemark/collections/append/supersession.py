"""Which statuses are news: the table by which a status takes the place of the one before it. Pure.

Source: reference, collections_catalog_storage §4.6; but what comes twice in one message is compared too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

DROPPED, PAUSED = "dropped", "paused"

Key = tuple["Hashable", ...]
Time = int | None  # in any unit; NULL is before every time


class Seen(NamedTuple):
    """The last status of a key."""

    status: str | None
    time: Time


class StatusRow(NamedTuple):
    """One status as it comes."""

    key: Key
    status: str | None
    time: Time


def is_superseded(old: str | None, by: str | None) -> bool:
    """Tell whether a status is news after another one; case does not matter, and NULL is a status like any other.

    After ``dropped`` only another ``dropped`` is; ``paused`` after ``paused`` is not; everything else is.
    """
    old, new = (None if each is None else each.lower() for each in (old, by))
    if old == DROPPED:
        return new == DROPPED
    return not (old == PAUSED and new == PAUSED)


def choose_news(rows: Iterable[StatusRow], seen: Mapping[Key, Seen]) -> list[int]:
    """Return the places, ascending, of the rows that are news after what was ``seen`` and after each other.

    They are looked at in the order of their times, those of one time in the order in which they came.
    """
    latest = dict(seen)
    kept: list[int] = []
    for place, row in sorted(enumerate(rows), key=lambda each: _rank(each[1].time)):
        last = latest.get(row.key)
        if last is None or is_superseded(last.status, row.status):
            kept.append(place)
            note(latest, row)
    return sorted(kept)


def note(latest: dict[Key, Seen], row: StatusRow) -> None:
    """Take ``row`` as the last status of its key, unless a later one is known; of equal times the second one counts."""
    last = latest.get(row.key)
    if last is None or _rank(row.time) >= _rank(last.time):
        latest[row.key] = Seen(row.status, row.time)


def _rank(time: Time) -> tuple[bool, int]:
    return time is not None, time or 0
