"""The plan of a migration: the report of a dry run in a file, and the digest that an approval is bound to.

The digest covers the direction, the present truth and all its items. It does not depend on the destination, which is
garbage that a killed copy leaves in any state: a run that starts over needs no new approval.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.atomic_files import write_whole
from tidemark.catalog.back_end import open_to_read
from tidemark.catalog.items.item import canonical_json
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.dry_run import MigrationReport
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.side_contents import carried

VERSION = 1


def plan_digest(direction: Direction, *, truth_before: str, contents: str) -> str:
    """Return the SHA-256 of a plan, in hex; ``contents`` is the digest of all items that are carried over."""
    text = canonical_json({"direction": direction.value, "truth_before": truth_before, "contents": contents})
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """The effect of a migration or a rollback if it ran now."""

    report: MigrationReport
    is_led: bool  # whether the truth has a leader that tasks can join

    @property
    def digest(self) -> str:
        report = self.report
        return plan_digest(report.direction, truth_before=report.truth_before, contents=report.digest)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do: the wanted side is the truth already, and led."""
        return self.is_led and self.report.truth_before == self.report.truth

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "plan_digest": self.digest,
            "is_done": self.is_done,
            "is_led": self.is_led,
            **self.report.to_json(),
        }

    def write(self, folder: Path) -> Path:
        """Write the plan below ``folder``, whole or not at all, under a name with its digest; return the path."""
        path = folder / f"{self.report.direction.value}_catalog-{self.digest[:16]}.json"
        write_whole(path, json.dumps(self.to_json(), indent=2) + "\n")
        return path


def present_digest(catalog: Catalog, direction: Direction) -> str:
    """Return the digest of the plan that ``make_plan`` would make now, from the truth alone.

    Raises as ``BackEnd.open``; ``NotWritable`` if the truth was never opened.
    """
    ends, truth = catalog.ends, catalog.truth()
    end = ends.truth(tombstone=truth.tombstone)
    with open_to_read(end, generation=ends.generation, clock=ends.clock) as handle:
        contents = carried(handle.snapshot()).digest()
    return plan_digest(direction, truth_before=end.name, contents=contents)


def make_plan(catalog: Catalog, direction: Direction) -> MigrationPlan:
    """Return the plan of an open in ``direction``; nothing durable changes. Raises as ``dry_run``."""
    is_led = catalog.truth().is_led
    return MigrationPlan(report=catalog.dry_run(direction), is_led=is_led)
