"""What a controller that connects wants, against what runs: the least that has to change. Pure.

Source: reference, collections_catalog_storage §8.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.errors import IncompatibleChange
from tidemark.storage.commands import (
    AllowCompaction,
    Description,
    External,
    Ingestion,
    ObjectId,
    Run,
    RunIngestion,
    Sink,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What a worker does at the end marker."""

    unchanged: tuple[Run, ...]  # they run as they are wanted: only their frontiers are reported from now on
    commands: tuple[External, ...]  # to be handled as usual, in this order
    stale: tuple[ObjectId, ...]  # what runs, and nobody wants: dropped without a report
    expected: frozenset[ObjectId]  # the ids that the controller knows
    unmatched: tuple[ObjectId, ...]  # drops of what neither is wanted nor runs


def reconcile(commands: Sequence[External], running: Mapping[ObjectId, Description]) -> Reconciliation:
    """Compare the commands of a controller, up to the end marker, with the descriptions of what runs.

    Raises ``IncompatibleChange`` if the running object cannot become what the controller wants.
    """
    for command in commands:
        if isinstance(command, Run):
            check_alteration(command.id, running.get(command.id), command.description)
    kept: list[External] = []
    unchanged: list[Run] = []
    defined: set[ObjectId] = set()  # by a later command
    dropped: set[ObjectId] = set()  # by a later command, and not defined since
    matched: set[ObjectId] = set()
    expected: set[ObjectId] = set()
    for command in reversed(commands):
        if isinstance(command, AllowCompaction) and command.is_drop:
            dropped.add(command.id)
        elif isinstance(command, Run):
            matched |= dropped.intersection(command.collections)
            if command.id in defined or command.id in dropped:
                continue
            defined.add(command.id)
            wanted = without_exports(command, dropped)
            expected.update(wanted.collections)
            if running.get(command.id) == wanted.description:
                unchanged.append(wanted)
            else:
                kept.append(wanted)
        else:
            kept.append(command)
    kept.reverse()
    unchanged.reverse()
    known = {id_ for id_, description in running.items() for id_ in (id_, *_exports(description))}
    return Reconciliation(
        unchanged=tuple(unchanged),
        commands=tuple(each for each in kept if not isinstance(each, AllowCompaction) or each.id in expected),
        stale=tuple(id_ for id_ in running if id_ not in expected),
        expected=frozenset(expected),
        unmatched=tuple(sorted(dropped - matched - known)),
    )


def check_alteration(id_: ObjectId, present: Description | None, wanted: Description) -> None:
    """Refuse to make another kind of object, or a sink of another collection, of what runs (``IncompatibleChange``)."""
    if present is None or (type(present) is type(wanted) and _carried(present) == _carried(wanted)):
        return
    raise IncompatibleChange(
        f"{id_!r} runs as {_title(present)} and cannot become {_title(wanted)}",
        hint="the catalog gives every object an id of its own: drop the object, and declare it anew",
    )


def without_exports(run: Run, dropped: set[ObjectId]) -> Run:
    """Return the command without the collections that were dropped."""
    if not isinstance(run, RunIngestion) or dropped.isdisjoint(run.description.exports):
        return run
    exports = tuple(id_ for id_ in run.description.exports if id_ not in dropped)
    return replace(run, description=replace(run.description, exports=exports))


def _exports(description: Description) -> tuple[ObjectId, ...]:
    return description.exports if isinstance(description, Ingestion) else ()


def _carried(description: Description) -> str:
    return description.collection if isinstance(description, Sink) else ""


def _title(description: Description) -> str:
    return f"a sink of {description.collection!r}" if isinstance(description, Sink) else "an ingestion"
