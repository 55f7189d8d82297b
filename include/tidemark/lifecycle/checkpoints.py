"""What is persisted: by numbers of a sequencer, for one partition and for all partitions together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The numbers ``[start, end)`` of one sequencer that may have rows which are not persisted.

    All rows of numbers below ``start`` are persisted; no number from ``end`` on was seen. An empty range, where both
    are equal, says that everything seen is persisted.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"the range of numbers {self} is negative or reversed")

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    def covers(self, other: NumberRange) -> bool:
        """Tell whether this range is as of the same moment as ``other``, or later; two ranges may be neither."""
        return self.start >= other.start and self.end >= other.end


Numbers = Mapping[int, NumberRange]  # by sequencer


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCheckpoint:
    """What is persisted of one partition: of numbers in their range, rows with an event time below ``until_ms``.

    A sequencer that is not in ``numbers`` brought nothing that is persisted.
    """

    partition: str
    numbers: Numbers
    until_ms: int  # exclusive; says nothing about the order of checkpoints, since late rows move it backwards

    def covers(self, other: PartitionCheckpoint) -> bool:
        """Tell whether this is the checkpoint of the same partition at the same moment, or later."""
        if self.partition != other.partition or not other.numbers.keys() <= self.numbers.keys():
            return False  # a sequencer may have come, none goes
        return all(self.numbers[id_].covers(numbers) for id_, numbers in other.numbers.items())

    def to_json(self) -> dict[str, Any]:
        return {"numbers": numbers_json(self.numbers), "until": self.until_ms}

    @classmethod
    def from_json(cls, partition: str, data: Mapping[str, Any]) -> PartitionCheckpoint:
        return cls(partition=partition, numbers=parse_numbers(data["numbers"]), until_ms=data["until"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What one persist commits with its files; both parts are computed from one snapshot of the state.

    From two snapshots, the database could be ahead of a write to the partition that lies between them, and a replay
    would leave that write out. Source: reference/write_buffer_lifecycle.md §8, hazard 1.
    """

    partition: PartitionCheckpoint
    database: Numbers


def combine(partitions: Iterable[Numbers]) -> dict[int, NumberRange]:
    """Return the database checkpoint of partitions that were read in one snapshot: what any of them may still lack."""
    found: dict[int, NumberRange] = {}
    for numbers in partitions:
        for id_, new in numbers.items():
            old = found.get(id_, new)
            start = min((each.start for each in (old, new) if not each.is_empty), default=max(old.end, new.end))
            found[id_] = NumberRange(start, max(old.end, new.end))
    return dict(sorted(found.items()))


def fold(databases: Iterable[Numbers]) -> dict[int, NumberRange]:
    """Return the tightest bound that database checkpoints of any moments give, in any order: each is a lower bound."""
    found: dict[int, NumberRange] = {}
    for numbers in databases:
        for id_, new in numbers.items():
            old = found.get(id_, new)
            found[id_] = NumberRange(max(old.start, new.start), max(old.end, new.end))
    return dict(sorted(found.items()))


def numbers_json(numbers: Numbers) -> dict[str, list[int]]:
    """Return the JSON form: by sequencer, the first number and the end."""
    return {str(id_): [each.start, each.end] for id_, each in sorted(numbers.items())}


def parse_numbers(data: Mapping[str, Any]) -> dict[int, NumberRange]:
    """Return what ``numbers_json`` wrote."""
    return {int(id_): NumberRange(*bounds) for id_, bounds in data.items()}
