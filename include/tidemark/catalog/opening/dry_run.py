"""The report of a dry run: the changes that an open would make, for the people who decide about the open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Final

from tidemark.catalog.items.item import Change
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, Step, run_steps
from tidemark.catalog.opening.side_contents import SideContents, carried
from tidemark.errors import CorruptState

SHOWN: Final = 20  # differing items in a report


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """The result of a dry run. ``differing`` is a bounded sample of the changes in the destination."""

    direction: Direction
    truth_before: str
    truth: str
    tombstone: bool | None
    counts: dict[str, int]  # items of the truth by kind, afterwards
    digest: str  # of all items that are carried over: equal exactly when the items are equal
    inserted: int = 0
    retracted: int = 0
    inconsistent: int = 0  # items of the destination that contradict each other or cannot be read: all are replaced
    differing: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "direction": self.direction.value}


def inconsistent_text(count: int) -> str:
    """Return a note about inconsistent rows in the destination; empty for 0."""
    return f"{count:,} rows there say nothing consistent; all of them are replaced" if count else ""


def report_of(ends: BackEnds, opening: Opening, steps: Sequence[Step]) -> MigrationReport:
    """Run ``steps`` on the savepoints of ``opening`` and report the changes.

    Raises ``CorruptState`` if the copy differs from its source, or the source cannot be read.
    """
    before = opening.tombstone
    truth_before = "persist" if before or opening.stash_handle is None else "stash"
    copies = opening.direction is not Direction.EMERGENCY and (opening.truth.name != truth_before)
    destination = SideContents.of(opening.truth) if copies else None
    source = opening.source.snapshot() if copies else None
    after = run_steps(ends, opening, steps)
    contents = after.truth.snapshot()
    if source is not None and carried(contents) != carried(source):
        raise CorruptState("the copy differs from its source", hint="this is a bug: please report it")
    changes = [] if destination is None else destination.changes_to(SideContents(contents))
    return MigrationReport(
        direction=opening.direction,
        truth_before=truth_before,
        truth=after.truth.name,
        tombstone=after.tombstone,
        counts=contents.counts(),
        digest=carried(contents).digest(),
        inserted=after.replaced.inserted if after.replaced else 0,
        retracted=after.replaced.retracted if after.replaced else 0,
        inconsistent=0 if destination is None else destination.count_inconsistent(changes),
        differing=sample(changes),
    )


def sample(changes: Sequence[Change]) -> list[dict[str, str]]:
    """Return the first of some net changes, for people and programs to look at."""
    return [
        {"change": "insert" if diff > 0 else "retract", "kind": kind, "key": key, "value": value}
        for (kind, key, value), diff in islice(changes, SHOWN)
    ]
