"""Fencing tokens: who may write, totally ordered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """``(generation, epoch)``: a larger token fences every smaller one out.

    ``generation`` counts deployments, ``epoch`` counts take-overs within the shard (mode switch, retry, promotion).
    """

    generation: int
    epoch: int

    def raised(self, generation: int) -> Token:
        """Return the next token: the epoch goes on counting, whatever the generation."""
        return Token(max(generation, self.generation), self.epoch + 1)

    def __str__(self) -> str:
        return f"{self.generation}.{self.epoch}"
