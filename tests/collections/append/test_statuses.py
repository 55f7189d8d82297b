"""The table of statuses: exhaustively, in one message, and in whatever order they come."""

from __future__ import annotations

import pytest

from tidemark.collections.append.statuses import StatusRow, choose_news, is_superseded

ANY = ("running", "stalled", None)
TABLE = {  # old: (dropped, paused, other) is news
    "dropped": (True, False, False),
    "paused": (True, False, True),
    **dict.fromkeys(ANY, (True, True, True)),
}


@pytest.mark.parametrize("old", [None, *TABLE])
@pytest.mark.parametrize("new", ["dropped", "paused", "running", "stalled", None, "DROPPED", "Paused"])
@pytest.mark.parametrize("known", [True, False])
def test_every_pair_of_statuses(old: str | None, new: str | None, known: bool) -> None:  # noqa: FBT001
    seen = {(1,): StatusRow((1,), old, 0)} if known else {}
    column = {"dropped": 0, "paused": 1}.get((new or "").lower(), 2)
    expected = TABLE[old][column] if known else True
    if known:
        assert is_superseded(old, new) is expected
    assert choose_news([StatusRow((1,), new, 1)], seen) == ([0] if expected else [])


def message(*statuses: str, key: int | None = 1) -> list[StatusRow]:
    return [StatusRow((key,), status, time) for time, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (["paused", "paused", "running", "paused", "paused"], [0, 2, 3]),
        (["dropped", "running", "paused", "dropped"], [0, 3]),
        (["running", "running"], [0, 1]),
        (["paused", "dropped", "paused"], [0, 1]),
    ],
)
def test_what_comes_twice_in_one_message_is_compared_too(statuses: list[str], kept: list[int]) -> None:
    assert choose_news(message(*statuses), {}) == kept


def test_keys_are_independent_and_null_is_one_of_them() -> None:
    rows = [*message("paused", "paused"), *message("paused", "paused", key=None), *message("paused", key=2)]
    assert choose_news(rows, {(2,): StatusRow((2,), "paused", 0)}) == [0, 2]


def test_rows_are_taken_by_time_and_at_one_time_as_they_come() -> None:
    rows = [StatusRow((1,), "running", 5), StatusRow((1,), "paused", 1), StatusRow((1,), "paused", 1)]
    assert choose_news(rows, {}) == [0, 1]
    rows = [StatusRow((1,), "paused", 5), StatusRow((1,), "paused", None)]
    assert choose_news(rows, {}) == [1], "a status without a time is before all others"


def test_late_status_is_compared_with_the_latest_and_does_not_become_it() -> None:
    seen = {(1,): StatusRow((1,), "paused", 10)}
    rows = [StatusRow((1,), "running", 3), StatusRow((1,), "paused", 11)]
    assert choose_news(rows, seen) == [0], "paused at 10 is still the last one"
    assert seen == {(1,): StatusRow((1,), "paused", 10)}


def test_a_status_with_the_facts_of_the_last_one_is_no_news() -> None:
    def row(status: str, time: int, reason: str | None = None) -> StatusRow:
        return StatusRow((1,), status, time, (status, reason))

    seen = {(1,): row("running", 0)}
    rows = [
        row("running", 1),
        row("stalled", 2, "a"),
        row("stalled", 3, "a"),
        row("stalled", 4, "b"),
        row("running", 5),
    ]
    assert choose_news(rows, seen) == [1, 3, 4]
    assert choose_news([row("paused", 1, "a"), row("paused", 2, "b")], seen) == [0], "the table holds all the same"
