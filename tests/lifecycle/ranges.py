"""Ranges of numbers as the reference writes them: ``(min, max)``, both included, min None where all is persisted."""

from __future__ import annotations

from tidemark.lifecycle.checkpoints import NumberRange, PartitionCheckpoint

Bounds = tuple[int | None, int]


def span(minimum: int | None, maximum: int) -> NumberRange:
    return NumberRange(maximum + 1 if minimum is None else minimum, maximum + 1)


def spans(ranges: dict[int, Bounds]) -> dict[int, NumberRange]:
    return {id_: span(*bounds) for id_, bounds in ranges.items()}


def written(numbers: dict[int, NumberRange]) -> dict[int, Bounds]:
    return {id_: (None if each.is_empty else each.start, each.end - 1) for id_, each in numbers.items()}


def checkpoint(
    ranges: dict[int, Bounds], *, partition: str = "2013-01-01T00", until_ms: int = 100
) -> PartitionCheckpoint:
    return PartitionCheckpoint(partition=partition, numbers=spans(ranges), until_ms=until_ms)
