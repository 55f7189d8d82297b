"""The parts of a migration, one after the other, as a workflow runs them: what each hands on is kept in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.homes import MIGRATE, ROLLBACK
from tidemark.catalog.migration.copy import LARGE_ABOVE, copy
from tidemark.catalog.migration.plan import make_plan
from tidemark.catalog.migration.steps import announce, check_after, fence, flip, look, verify
from tidemark.catalog.opening.resume import Fences

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from tests.support.homes import Home
    from tidemark.catalog.opening.opening import Direction

PARTS = {
    MIGRATE: ("plan", "fence", "look", "copy", "verify", "flip", "announce", "check"),
    ROLLBACK: ("plan", "fence", "look", "copy", "verify", "announce", "check"),
}


def no_spark() -> AbstractContextManager[SparkSession]:
    raise AssertionError("a small catalog is copied without Spark")


@dataclass
class Workflow:
    """A run: its results by part, as XComs are, so that a part can be run again from the middle."""

    home: Home
    direction: Direction
    open_spark: Callable[[], AbstractContextManager[SparkSession]] = no_spark
    large_above: int = LARGE_ABOVE

    @property
    def results(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def run(self, *parts: str) -> Any:
        """Run these parts, all of them if none is named; the last one's result."""
        result = None
        for part in parts or PARTS[self.direction]:
            result = self._run(part)
            self._path.write_text(json.dumps({**self.results, part: result}))
        return result

    def run_from(self, part: str) -> Any:
        """Clear ``part`` and everything after it."""
        parts = PARTS[self.direction]
        return self.run(*parts[parts.index(part) :])

    def run_rest(self) -> Any:
        """Go on after a death: the part that has no result yet is run again."""
        return self.run(*[part for part in PARTS[self.direction] if part not in self.results])

    def _run(self, part: str) -> Any:
        catalog, direction, results = self.home.catalog, self.direction, self.results
        if part == "plan":
            return make_plan(catalog, direction).digest
        approved = results["plan"]
        if part == "fence":
            return fence(catalog, direction, approved=approved).to_json()
        fences = Fences.parse(results["fence"])
        rest: dict[str, Callable[[], Any]] = {
            "look": lambda: look(catalog, direction, fences, approved=approved).copies,
            "copy": lambda: self._copy(fences),
            "verify": lambda: verify(catalog, direction, fences, approved=approved).to_json(),
            "flip": lambda: flip(catalog, fences, verified=Fences.parse(results["verify"])),
            "announce": lambda: announce(catalog, direction, fences, copied=results["look"]),
            "check": lambda: check_after(catalog, direction),
        }
        return rest[part]()

    def _copy(self, fences: Fences) -> list[Any]:
        """The engine, and what was inserted and retracted if there was anything to copy."""
        how = {"open_spark": self.open_spark, "large_above": self.large_above}
        copied = copy(self.home.ends, self.home.settings, self.direction, fences, **how)
        done = copied.replaced
        return [copied.engine, done.inserted, done.retracted] if done else [copied.engine]

    @property
    def _path(self) -> Any:
        return self.home.settings.home / f"{self.direction.value}.json"


def migrate_in_parts(home: Home) -> None:
    Workflow(home, MIGRATE).run_rest()


def roll_back_in_parts(home: Home) -> None:
    Workflow(home, ROLLBACK).run_rest()
