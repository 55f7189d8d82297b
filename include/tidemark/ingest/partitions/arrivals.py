"""What arrived, by partition: pure counts, which Spark's tasks hand on as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """The rows of one partition among what was read of one sequencer."""

    first: int  # numbers of their entries lie in [first, end)
    end: int
    rows: int
    start_ms: int  # event times lie in [start_ms, end_ms)
    end_ms: int

    def add(self, other: Arrival) -> Arrival:
        return Arrival(
            first=min(self.first, other.first),
            end=max(self.end, other.end),
            rows=self.rows + other.rows,
            start_ms=min(self.start_ms, other.start_ms),
            end_ms=max(self.end_ms, other.end_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What arrived of one sequencer, by partition, and how many rows came too late to be kept."""

    partitions: Mapping[str, Arrival] = field(default_factory=dict)
    refused: int = 0  # late rows among the bad ones
    first_refused: str = ""  # one of them: its number and event time

    def add(self, other: Arrivals) -> Arrivals:
        both = dict(self.partitions)
        for name, arrival in other.partitions.items():
            both[name] = both[name].add(arrival) if name in both else arrival
        return Arrivals(
            partitions=both,
            refused=self.refused + other.refused,
            first_refused=self.first_refused or other.first_refused,
        )

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Arrivals:
        """Return what ``asdict`` and JSON made of an object."""
        partitions = {name: Arrival(*arrival) for name, arrival in fields["partitions"].items()}
        return cls(**{**fields, "partitions": partitions})


NO_ARRIVALS = Arrivals()
