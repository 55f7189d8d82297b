"""A clock that a test moves."""

from __future__ import annotations


class SteppedClock:
    """Moves only by ``step``."""

    def __init__(self, start_ms: int = 1_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def step(self, by_ms: int) -> None:
        """Move by ``by_ms``, which may be negative: clocks do go back."""
        self._now_ms += by_ms
