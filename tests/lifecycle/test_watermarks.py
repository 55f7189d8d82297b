"""How far event time is complete: by the greatest time seen, by the wall clock when idle, never by a time far ahead."""

from __future__ import annotations

import pytest

from tidemark.lifecycle.watermarks import SequencerTimes, find_passed, find_watermark, is_ahead

LATE_MS = 300


def times(max_time_ms: int | None, *, last_ms: int) -> SequencerTimes:
    return SequencerTimes(end=1, max_time_ms=max_time_ms, last_ms=last_ms)


@pytest.mark.parametrize(
    ("case", "seen", "caught_up", "watermark"),
    [
        ("greatest time less the window", times(5_000, last_ms=9_900), True, 4_700),
        ("idle: the wall clock", times(5_000, last_ms=9_700), True, 9_700),
        ("quiet, but entries wait", times(5_000, last_ms=1_000), False, 4_700),
        ("idle, and times ahead of the clock", times(20_000, last_ms=1_000), True, 9_700),
        ("just now, and times ahead of the clock", times(20_000, last_ms=9_900), True, 9_700),
        ("ahead of the clock, and entries wait", times(20_000, last_ms=9_900), False, 9_700),
        ("only times far ahead so far", times(None, last_ms=9_900), True, None),
        ("nothing ever came", None, True, 9_700),
        ("new, and entries wait", None, False, None),
    ],
)
def test_watermark_of_a_sequencer(
    *, case: str, seen: SequencerTimes | None, caught_up: bool, watermark: int | None
) -> None:
    assert find_watermark(seen, now_ms=10_000, late_ms=LATE_MS, is_caught_up=caught_up) == watermark, case


def test_the_slowest_sequencer_decides() -> None:
    seen = {0: times(5_000, last_ms=9_900), 1: times(4_000, last_ms=9_900)}
    assert find_passed(seen, {0: True, 1: True}, now_ms=10_000, late_ms=LATE_MS) == 3_700


def test_a_sequencer_of_which_nothing_is_known_holds_everything() -> None:
    seen = {0: times(5_000, last_ms=9_900)}
    assert find_passed(seen, {0: True, 1: False}, now_ms=10_000, late_ms=LATE_MS) is None
    assert find_passed({}, {}, now_ms=10_000, late_ms=LATE_MS) is None


def test_a_time_is_ahead_beyond_its_arrival_and_the_rule() -> None:
    found = [is_ahead(time_ms, arrived_ms=1_000, max_ahead_ms=60) for time_ms in (1_000, 1_060, 1_061)]
    assert found == [False, False, True]


def test_what_a_sequencer_has_brought_never_goes_back() -> None:
    one, other = times(None, last_ms=9), times(3, last_ms=5)
    assert one.advance(other) == other.advance(one) == times(3, last_ms=9)
