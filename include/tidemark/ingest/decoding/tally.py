"""Counts of entries and rows that were read, decoded or found bad, part by part and added up by sequencer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of the numbers ``[start, end)`` of one sequencer."""

    sequencer_id: int
    start: int
    end: int
    entries: int = 0
    bad_entries: int = 0  # entries with a bad row
    rows: int = 0
    bad_rows: int = 0
    other_tables: int = 0  # rows of tables that the collection does not take
    read_bytes: int = 0  # payloads

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Tally:
        """Read back what ``str`` wrote."""
        return cls(**json.loads(text))

    def add(self, other: Tally) -> Tally:
        """Return the counts of both, of the range that spans both."""
        return Tally(
            sequencer_id=self.sequencer_id,
            start=min(self.start, other.start),
            end=max(self.end, other.end),
            entries=self.entries + other.entries,
            bad_entries=self.bad_entries + other.bad_entries,
            rows=self.rows + other.rows,
            bad_rows=self.bad_rows + other.bad_rows,
            other_tables=self.other_tables + other.other_tables,
            read_bytes=self.read_bytes + other.read_bytes,
        )


def add_up(tallies: Iterable[Tally]) -> dict[int, Tally]:
    """Return one tally for each sequencer."""
    totals: dict[int, Tally] = {}
    for tally in tallies:
        total = totals.get(tally.sequencer_id)
        totals[tally.sequencer_id] = tally if total is None else total.add(tally)
    return totals
