"""The controller: what the catalog wants becomes commands for all workers, and their reports become one. Pure.

Source: reference, collections_catalog_storage §8.5; the controller of storage collections there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.collections.deployment import Applied, CatalogObject, StatusKind
from tidemark.collections.objects.standing import Standing
from tidemark.errors import CorruptState, UsageError
from tidemark.frontier import EMPTY, Frontier
from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    Description,
    External,
    Ingestion,
    InitializationComplete,
    ObjectId,
    Run,
    RunIngestion,
    RunSink,
    Sink,
    UpdateConfiguration,
)
from tidemark.storage.definitions import definition_of, object_id
from tidemark.storage.effects import Report, ReportDropped, ReportFrontier, ReportStatus
from tidemark.storage.history import CommandHistory
from tidemark.storage.order import Row

_BOTH_ANEW = "the worker and the controller do not fit each other: start both anew"
Desired = Mapping[ObjectId, Description]


def find_desired(
    applied: Applied, objects: Mapping[str, CatalogObject], standings: Mapping[str, Standing], *, now_ms: int
) -> dict[ObjectId, Description]:
    """Return the ingestions and sinks that declare ``every``, and are neither paused nor suspended until a later time.

    Scheduled DAGs run the others. Each ingestion writes one collection, its own. What is declared and not in
    ``objects`` was dropped in between.
    """
    ingested = {name: each for name, each in applied.declarations.items() if each.every_ms is not None}
    carried = {name: each.declaration for name, each in applied.sinks.items() if each.declaration.every_ms is not None}
    runs = {name: known for name, known in objects.items() if not _rests(standings.get(name), now_ms)}
    desired: dict[ObjectId, Description] = {}
    for name, known in runs.items():
        if known.kind is StatusKind.INGESTION and name in ingested:
            id_ = object_id(known)
            desired[id_] = Ingestion(definition_of(ingested[name]), (id_,))
        elif known.kind is StatusKind.SINK and name in carried:
            desired[object_id(known)] = Sink(definition_of(carried[name]), carried[name].collection)
    return desired


def _rests(standing: Standing | None, now_ms: int) -> bool:
    return standing is not None and standing.rests_at(now_ms)


@dataclass(slots=True)
class Part:
    """What the workers have told of one collection, or sink."""

    uppers: list[Frontier]  # by worker
    merged: Frontier = 0  # what was passed on: the minimum, which never goes back


@dataclass(slots=True)
class Controller:
    """One life of the controller: what it returns is appended to the log, in that order, and all workers take it.

    ``follow`` comes first, and then ``begin``, whose commands are the first ones in the log. An object that is wanted
    again is not run before its drop is acknowledged: its reports would be taken for the old ones. Call ``follow`` again
    whenever the catalog changes or a drop is acknowledged.
    """

    workers: int
    running: dict[ObjectId, Run] = field(default_factory=dict)
    parts: dict[ObjectId, Part] = field(default_factory=dict)
    dropping: dict[ObjectId, set[int]] = field(default_factory=dict)  # and the workers that acknowledged it
    _dropped_at: dict[ObjectId, int] = field(default_factory=dict)  # the indexes of the drops in the log
    _history: CommandHistory = field(default_factory=lambda: CommandHistory([InitializationComplete()]))

    def begin(self) -> list[External]:
        """Return everything that workers have to know of a controller that they hear for the first time."""
        self._history.reduce()
        return [*self._history.commands]

    def follow(self, desired: Desired) -> list[External]:
        """Return the commands that bring what runs closer to what is wanted."""
        commands: list[External] = []
        for id_ in [id_ for id_ in self.running if id_ not in desired]:
            commands += self._drop(id_)
        for id_, description in desired.items():
            commands += self._run(id_, description)
        return self._tell(commands)

    def _drop(self, id_: ObjectId) -> list[External]:
        return [self._leave(each) for each in reversed(self.running.pop(id_).collections)]

    def _leave(self, id_: ObjectId) -> AllowCompaction:
        del self.parts[id_]
        self.dropping[id_] = set()
        return AllowCompaction(id_, EMPTY)

    def _run(self, id_: ObjectId, description: Description) -> list[External]:
        present = self.running.get(id_)
        if present is not None and present.description == description:
            return []
        run: Run
        if isinstance(description, Sink):
            run = RunSink(id_, description, present.as_of if isinstance(present, RunSink) else 0)
        else:
            run = RunIngestion(id_, description)
        if not self.dropping.keys().isdisjoint(run.collections):
            return []
        left = [] if present is None else [each for each in present.collections if each not in run.collections]
        self.running[id_] = run
        for each in run.collections:  # an alteration keeps what was told of the others
            self.parts.setdefault(each, Part([0] * self.workers))
        return [run, *map(self._leave, left)]

    def compact(self, id_: ObjectId, since: int) -> list[External]:
        """Return the command that says that nobody reads ``id_`` before ``since``; a sink restarts from there.

        Raises ``UsageError`` if the object does not run.
        """
        if id_ not in self.parts:
            raise UsageError(f"no object {id_!r} runs on storage workers", hint="apply its declaration first")
        return self._tell([AllowCompaction(id_, since)])

    def configure(self, values: Mapping[str, str]) -> list[External]:
        """Return the command that sets these values on all workers."""
        return self._tell([UpdateConfiguration(values)])

    def allow_writes(self) -> list[External]:
        """Return the command that lets dataflows publish from now on."""
        return self._tell([AllowWrites()])

    def note(self, row: Row) -> None:
        """Take a command of this life of the controller, as it stands in the log by now."""
        if isinstance(row.command, AllowCompaction) and row.command.is_drop and row.command.id in self.dropping:
            self._dropped_at[row.command.id] = row.index

    def hear(self, worker: int, read_to: int, frontiers: Mapping[ObjectId, Frontier]) -> list[Report]:
        """Merge how a worker is that obeys this life: its next index in the log, and its ``Worker.frontiers`` there.

        A worker has decided each drop that it has read, also if it has begun a new life since. So it does not matter
        how often it says this, or whether an earlier word of it was lost.
        """
        news: list[Report] = []
        for id_, index in list(self._dropped_at.items()):
            if index < read_to and worker not in self.dropping[id_]:
                news += self.receive(worker, ReportDropped(id_))
        for id_, upper in frontiers.items():
            if id_ in self.parts:
                news += self.receive(worker, ReportFrontier(id_, upper))
        return news

    def receive(self, worker: int, report: Report) -> list[Report]:
        """Merge what a worker reports into what all have reported: each frontier and drop is passed on once.

        Raises ``CorruptState`` if the worker reports on what it was never told of, or a drop twice.
        """
        match report:
            case ReportFrontier(id_, upper):
                if id_ in self.dropping:  # told before the worker got the drop
                    return []
                if id_ not in self.parts:
                    raise CorruptState(
                        f"worker {worker} reports on {id_!r}, which it was not told to run", hint=_BOTH_ANEW
                    )
                return self._merge(self.parts[id_], worker, id_, upper)
            case ReportDropped(id_):
                return self._acknowledge(worker, id_)
            case ReportStatus():
                return [report]

    def _merge(self, part: Part, worker: int, id_: ObjectId, upper: Frontier) -> list[Report]:
        part.uppers[worker] = upper
        merged = min(part.uppers)
        if not part.merged < merged:
            return []
        part.merged = merged
        return [ReportFrontier(id_, merged)]

    def _acknowledge(self, worker: int, id_: ObjectId) -> list[Report]:
        acknowledged = self.dropping.get(id_)
        if acknowledged is None or worker in acknowledged:
            how = "was not told to drop it" if acknowledged is None else "said so before"
            raise CorruptState(f"worker {worker} says that {id_!r} is dropped, and {how}", hint=_BOTH_ANEW)
        acknowledged.add(worker)
        if len(acknowledged) < self.workers:
            return []
        del self.dropping[id_]
        self._dropped_at.pop(id_, None)
        return [ReportDropped(id_)]

    def _tell(self, commands: list[External]) -> list[External]:
        for command in commands:
            self._history.push(command)
        return commands
