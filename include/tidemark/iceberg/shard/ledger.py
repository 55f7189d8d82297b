"""The ledger of one producer: which half-open ranges of its numbers are published."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from tidemark.errors import UsageError

# Behind a producer's name: the ledger of batches that went from here into a write buffer, and have no rows here.
FORWARDED = ".forwarded"
# The producer of a sequencer of a write buffer: log, identity of the log, number.
SEQUENCER = re.compile(r"(.+)\.([0-9a-f]{8})\.(\d+)")


class Range(NamedTuple):
    """Half-open ``[start, end)``: sequence numbers, or a data interval in ms."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sorted ranges that neither overlap nor touch; contiguous ranges are merged into one."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Ledger:
        """Parse ``"a:b,c:d"`` as ``str`` wrote it; the empty text is the empty ledger."""
        return cls(tuple(Range(*map(int, part.split(":"))) for part in text.split(",") if part))

    def __str__(self) -> str:
        return ",".join(f"{done.start}:{done.end}" for done in self.ranges)

    def covers(self, wanted: Range) -> bool:
        """Tell whether every number of ``wanted`` is published."""
        place = bisect_left(self.ranges, wanted.start + 1, key=lambda done: done.start) - 1
        return place >= 0 and self.ranges[place].start <= wanted.start and wanted.end <= self.ranges[place].end

    def overlaps(self, wanted: Range) -> list[Range]:
        """Return the published ranges that share a number with ``wanted``; touching is not sharing."""
        first = bisect_left(self.ranges, wanted.start + 1, key=lambda done: done.end)
        return list(takewhile(lambda done: done.start < wanted.end, self.ranges[first:]))

    def holes(self, wanted: Range) -> tuple[Range, ...]:
        """Return the parts of ``wanted`` that are not published, in order."""
        holes = []
        start = wanted.start
        for present in self.overlaps(wanted):
            if present.start > start:
                holes.append(Range(start, present.start))
            start = present.end
        if start < wanted.end:
            holes.append(Range(start, wanted.end))
        return tuple(holes)

    def add(self, new: Range) -> Ledger:
        """Return the ledger with ``new`` published too, merged with the ranges it touches.

        Raises:
            UsageError: If ``new`` is empty or reversed.
            ValueError: If it overlaps a published range: the caller must have asked ``overlaps`` before.
        """
        if new.start >= new.end:
            raise UsageError(
                f"range {new} is empty or reversed", hint="a range is half-open: START:END with START < END"
            )
        if found := self.overlaps(new):
            raise ValueError(f"range {new} overlaps {', '.join(map(str, found))}")
        first = bisect_left(self.ranges, new.start, key=lambda done: done.end)
        last = first
        start, end = new
        while last < len(self.ranges) and self.ranges[last].start <= end:
            start, end = min(start, self.ranges[last].start), max(end, self.ranges[last].end)
            last += 1
        return Ledger((*self.ranges[:first], Range(start, end), *self.ranges[last:]))

    def add_free(self, ranges: Iterable[Range]) -> Ledger:
        """Return the ledger with ``ranges``, one after the other, without those that overlap what is there by then."""
        ledger = self
        for new in ranges:
            ledger = ledger if ledger.overlaps(new) else ledger.add(new)
        return ledger

    def union(self, other: Ledger) -> Ledger:
        """Return the ledger with all numbers of ``other`` published too; the ranges of both may overlap."""
        ledger = self
        for new in other.ranges:
            for hole in ledger.holes(new):
                ledger = ledger.add(hole)
        return ledger


def with_forwarded(ledgers: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """Return what was done with the batches of each producer: published here, or forwarded."""
    done: dict[str, Ledger] = {}
    for producer, ledger in ledgers.items():
        name = producer.removesuffix(FORWARDED)
        done[name] = done.get(name, Ledger()).union(ledger)
    return done
