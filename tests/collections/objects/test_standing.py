"""How an object that does not run says so, and how long one that failed waits."""

from __future__ import annotations

import pytest

from tidemark.collections.objects.standing import Dropped, ObjectKind, ObjectState, Standing, back_off_ms
from tidemark.errors import Paused

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
PAUSED = Standing(state=ObjectState.PAUSED, since_ms=1_000, who="ada", reason="a new source")
SUSPENDED = Standing(
    state=ObjectState.SUSPENDED, since_ms=0, reason="no answer", error="Unreachable", attempts=1, retry_at_ms=MINUTE_MS
)


@pytest.mark.parametrize(
    ("attempts", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (10**6, 60)]
)
def test_the_pause_after_a_failure_doubles_up_to_an_hour(attempts: int, minutes: int) -> None:
    assert back_off_ms(attempts) == minutes * MINUTE_MS


@pytest.mark.parametrize(
    ("standing", "now_ms", "rests"),
    [
        (PAUSED, 10**15, True),
        (SUSPENDED, MINUTE_MS - 1, True),
        (SUSPENDED, MINUTE_MS, False),
        (SUSPENDED, MINUTE_MS - HOUR_MS, True),
        (SUSPENDED, MINUTE_MS - HOUR_MS - 1, False),  # no failure rests so long: the clock was ahead
    ],
)
def test_a_pause_has_no_end_and_a_suspension_has(standing: Standing, now_ms: int, *, rests: bool) -> None:
    assert standing.rests_at(now_ms) is rests


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        (PAUSED, "paused since 1970-01-01 00:00:01 by ada: a new source"),
        (Standing(state=ObjectState.PAUSED, since_ms=0), "paused since 1970-01-01 00:00:00"),
        (SUSPENDED, "suspended since 1970-01-01 00:00:00, tried again at 1970-01-01 00:01:00: Unreachable: no answer"),
    ],
)
def test_it_says_since_when_by_whom_and_why(standing: Standing, text: str) -> None:
    assert str(standing) == text


def test_rows_are_refused_by_a_pause_alone() -> None:
    SUSPENDED.refuse_rows("planes")
    with pytest.raises(Paused, match=r"'planes' is paused since .* by ada: a new source") as caught:
        PAUSED.refuse_rows("planes")
    assert "tidemark resume planes" in caught.value.hint


def test_two_drops_of_one_name_leave_two_tables() -> None:
    first, second = (
        Dropped(number=n, kind=ObjectKind.COLLECTION, name="a", object_id=n, table_uuid="u", dropped_at_ms=0, who="ada")
        for n in (1, 2)
    )
    assert (first.table, second.table) == ("a_1", "a_2")
    assert str(first) == "collection 'a', dropped 1970-01-01 00:00:00 by ada"
