from __future__ import annotations

from datetime import UTC, datetime

from tests.support.clock import SteppedClock
from tidemark.clock import SystemClock


def test_the_system_clock_counts_ms_since_the_epoch() -> None:
    year = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).year
    assert 2026 <= year < 2100


def test_a_stepped_clock_moves_only_when_told_to() -> None:
    clock = SteppedClock(5)
    assert (clock.now_ms(), clock.now_ms()) == (5, 5)
    clock.step(10)
    assert clock.now_ms() == 15
    clock.step(-12)
    assert clock.now_ms() == 3
