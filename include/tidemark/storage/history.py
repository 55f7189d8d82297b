"""What a controller has told its workers, as short as it can be told again; what of the log still counts. Pure.

Source: reference, collections_catalog_storage §8.8. To replay only the last value of a setting is right while settings
do not change what dataflows write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    DropDataflow,
    External,
    InitializationComplete,
    ObjectId,
    Run,
    RunIngestion,
    RunSink,
    Start,
    SuspendAndRestart,
    UpdateConfiguration,
)
from tidemark.storage.order import Row


@dataclass(slots=True)
class CommandHistory:
    """The commands of a controller; reduced whenever they are twice as many as after the last reduction."""

    commands: list[External] = field(default_factory=list)
    _reduced: int = 0  # how many the last reduction left

    def push(self, command: External) -> None:
        self.commands.append(command)
        if len(self.commands) > 2 * self._reduced:
            self.reduce()

    def reduce(self) -> None:
        self.commands = reduce(self.commands)
        self._reduced = len(self.commands)


@dataclass(slots=True)
class _Counting:
    """The positions of the commands that still count, after some commands of one controller."""

    settings: dict[str, int] = field(default_factory=dict)  # the last update, by setting
    runs: dict[ObjectId, tuple[int, Run]] = field(default_factory=dict)  # the last one of what was not dropped since
    compactions: dict[ObjectId, tuple[int, AllowCompaction]] = field(default_factory=dict)  # the last ones
    marks: dict[type[External], int] = field(default_factory=dict)  # the end marker, and the permission to write

    @classmethod
    def of(cls, commands: Iterable[External]) -> _Counting:
        found = cls()
        for position, command in enumerate(commands):
            match command:
                case UpdateConfiguration(values):
                    found.settings |= dict.fromkeys(values, position)
                case RunIngestion() | RunSink():
                    found._run(position, command)
                case AllowCompaction():
                    found._compact(position, command)
                case InitializationComplete() | AllowWrites():
                    found.marks[type(command)] = position
        found._leave_strays()
        return found

    def _run(self, position: int, run: Run) -> None:
        for id_ in run.collections:  # resumed: what was dropped before does not concern it
            if id_ in self.compactions and self.compactions[id_][1].is_drop:
                del self.compactions[id_]
        self.runs[run.id] = position, run

    def _compact(self, position: int, command: AllowCompaction) -> None:
        if command.is_drop and command.id in self.runs:
            for id_ in self.runs.pop(command.id)[1].collections:
                self.compactions.pop(id_, None)
        else:
            self.compactions[command.id] = position, command

    def _leave_strays(self) -> None:
        """Leave out the compactions of what no run writes; the run that is kept may come after the compaction."""
        known = {id_ for _, run in self.runs.values() for id_ in run.collections}
        self.compactions = {id_: each for id_, each in self.compactions.items() if id_ in known}

    def positions(self) -> set[int]:
        pairs = (*self.runs.values(), *self.compactions.values())
        return {*self.settings.values(), *self.marks.values(), *(position for position, _ in pairs)}


def reduce(commands: Sequence[External]) -> list[External]:
    """Return the fewest commands that mean the same to a worker that connects.

    In this order: the settings, the last ``RunIngestion`` and ``RunSink`` of each object that was not dropped since,
    the last compaction of the collections of these ingestions, the end marker, the permission to write. The compaction
    of a sink is in its ``as_of``. The drop of one collection of an ingestion stays beside the ingestion.
    """
    counting = _Counting.of(commands)
    settings: dict[str, str] = {}
    for command in commands:
        if isinstance(command, UpdateConfiguration):
            settings |= command.values
    runs = [run for _, run in counting.runs.values()]
    compactions = {id_: command for id_, (_, command) in counting.compactions.items()}
    sinks = {run.id: run for run in runs if isinstance(run, RunSink)}
    return [
        *([UpdateConfiguration(settings)] if settings else []),
        *(run for run in runs if isinstance(run, RunIngestion)),
        *(_compacted(run, compactions.get(run.id)) for run in sinks.values()),
        *(command for id_, command in compactions.items() if id_ not in sinks),
        *(mark() for mark in (InitializationComplete, AllowWrites) if mark in counting.marks),
    ]


def _compacted(sink: RunSink, compaction: AllowCompaction | None) -> RunSink:
    if compaction is None or compaction.since <= sink.as_of:
        return sink
    return replace(sink, as_of=compaction.since)


def find_lives(rows: Iterable[Row]) -> dict[int, dict[int, External]]:
    """Return the external commands that may count, by the life of the controller, the older one first, and by index.

    These are the last life that came to its end marker, which workers obey, and the last one of all, which may come to
    it yet. All others changed nothing, or nothing that lasts.
    """
    lives: defaultdict[int, dict[int, External]] = defaultdict(dict)
    for row in rows:
        if row.external is not None:
            lives[row.sender.life][row.index] = row.external
    complete = [life for life, said in lives.items() if InitializationComplete() in said.values()]
    return {life: lives[life] for life in sorted({*complete[-1:], *list(lives)[-1:]})}


def retain(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that still count for a worker that reads the log from its beginning.

    Of the internal commands these are the last start of each dataflow that was neither dropped nor suspended since, and
    the last update of each setting. Of a suspended dataflow nothing counts: a new life of worker 0 asks for its points
    again. Of the external commands of ``find_lives`` those that ``reduce`` would build on.
    """
    starts: dict[ObjectId, Row] = {}
    settings: dict[str, Row] = {}
    for row in rows:
        match row.command:
            case _ if row.external is not None:
                pass
            case UpdateConfiguration(values):
                settings |= dict.fromkeys(values, row)
            case DropDataflow(ids):
                for id_ in ids:
                    starts.pop(id_, None)
            case SuspendAndRestart(id_, _, started_at):
                if id_ in starts and starts[id_].index == started_at:
                    del starts[id_]
            case command if isinstance(command, Start):
                starts[command.id] = row
    kept = {row.index: row for row in (*starts.values(), *settings.values())}
    for said in find_lives(rows).values():
        counting = _Counting.of(said.values()).positions()
        indexes = {index for position, index in enumerate(said) if position in counting}
        kept |= {row.index: row for row in rows if row.index in indexes}
    return [kept[index] for index in sorted(kept)]
