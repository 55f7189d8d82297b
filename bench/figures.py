"""Figures: what was measured how often, and ratios with both of their sides."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """The runs of one measurement; ``limit`` is what was promised, as an upper or lower bound on the median."""

    name: str
    unit: str
    runs: tuple[float, ...]
    at_most: float | None = None
    at_least: float | None = None
    sides: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def holds(self) -> bool | None:
        if self.at_most is not None:
            return self.median <= self.at_most
        return None if self.at_least is None else self.median >= self.at_least

    @classmethod
    def ratio(cls, name: str, **options: Any) -> Figure:
        """Return ``numerator / denominator`` run by run; both are (name, runs) and were measured alternately."""
        (top, above), (bottom, below) = options.pop("numerator"), options.pop("denominator")
        runs = tuple(one / other for one, other in zip(above, below, strict=True))
        return cls(name, "x", runs, sides={top: tuple(above), bottom: tuple(below)}, **options)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figure:
        sides = {name: tuple(runs) for name, runs in found["sides"].items()}
        bounds = {name: found[name] for name in ("at_most", "at_least")}
        return cls(found["name"], found["unit"], tuple(found["runs"]), sides=sides, **bounds)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "runs": [round(run, 4) for run in self.runs],
            "min": round(min(self.runs), 4),
            "median": round(self.median, 4),
            "max": round(max(self.runs), 4),
            "at_most": self.at_most,
            "at_least": self.at_least,
            "holds": self.holds,
            "sides": {name: [round(run, 4) for run in runs] for name, runs in self.sides.items()},
        }


def write_json(figures: Sequence[Figure], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([each.to_json() for each in figures], indent=2) + "\n", encoding="utf-8")


def write_or_print(figures: Sequence[Figure], path: Path | None) -> None:
    """Write the figures as JSON, or print them as a table if there is no file for them."""
    if path:
        write_json(figures, path)
    else:
        print_table(figures)


def read_json(path: Path) -> list[Figure]:
    return [Figure.from_json(each) for each in json.loads(path.read_text(encoding="utf-8"))]


def print_table(figures: Sequence[Figure]) -> None:
    width = max(len(each.name) for each in figures)
    print(f"{'figure':<{width}}  {'min':>9} {'median':>9} {'max':>9} unit  promised")
    for each in figures:
        bound = "" if each.holds is None else f"{'<=' if each.at_most is not None else '>='} "
        bound += "" if each.holds is None else f"{each.at_most if each.at_most is not None else each.at_least} "
        bound += {None: "", True: "kept", False: "MISSED"}[each.holds]
        low, high = min(each.runs), max(each.runs)
        print(f"{each.name:<{width}}  {low:>9.3f} {each.median:>9.3f} {high:>9.3f} {each.unit:<4}  {bound}")
