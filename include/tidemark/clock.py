"""The only module that reads a clock; all other code gets the time as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time: the system's, or a test's."""

    def now_ms(self) -> int:
        """Return ms since the Unix epoch, UTC."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteppedClock:
    """A clock that moves only by ``step``; for tests and simulations."""

    def __init__(self, start_ms: int = 1_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def step(self, by_ms: int) -> None:
        """Move by ``by_ms``, which may be negative: clocks do go back."""
        self._now_ms += by_ms
