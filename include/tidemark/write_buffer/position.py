"""Where a stream stands in its log, and when the log no longer fits it."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists


@dataclass(slots=True)
class Position:
    """The next number to deliver; ``None``: the earliest there is. A stream moves it, a reader keeps it.

    ``sought`` tells a number that was asked for, and so may lie beyond the end, from one that the log itself led to.
    """

    number: int | None = None
    sought: bool = False

    def seek(self, number: int) -> None:
        """Stand before ``number``; 0 means the earliest there is, as nothing before it can have been missed."""
        self.number, self.sought = (number, True) if number > 0 else (None, False)

    def reset(self) -> None:
        """Stand before the earliest there is."""
        self.number, self.sought = None, False

    def advance(self, number: int) -> None:
        """Stand before ``number``, because everything below it was delivered or is a hole."""
        self.number, self.sought = number, False

    def check(self, sequencer_id: int, *, earliest: int, watermark: int, buffer: str) -> None:
        """Compare with what the log holds now: ``[earliest, watermark)``.

        Raises:
            NoLongerExists: If entries that were to come next are gone.
            AfterWatermark: If the log ends before a number that it once led to.
        """
        if self.number is None:
            return
        if self.number < earliest:
            raise NoLongerExists(sequencer_id, self.number, earliest, buffer=buffer)
        if self.number > watermark and not self.sought:
            raise AfterWatermark(sequencer_id, self.number, watermark, buffer=buffer)


def check_range_start(sequencer_id: int, start: int, *, earliest: int, watermark: int, buffer: str) -> None:
    """Check that ``[start, watermark)`` can be read whole, for whoever stored ``start`` as its progress.

    Raises:
        NoLongerExists: If retention took a part of it; 0 lost nothing only where the log begins with 0.
        AfterWatermark: If the log never had ``start``: it was made anew, or cut.
    """
    Position(start).check(sequencer_id, earliest=earliest, watermark=watermark, buffer=buffer)
