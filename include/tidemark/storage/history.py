"""What a controller has told its workers, as short as it can be told again; what of the log still counts. Pure.

Source: reference, collections_catalog_storage §8.8. To replay only the last value of a setting is right while settings
do not change what dataflows write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidemark.frontier import Frontier
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


def reduce(commands: Sequence[External]) -> list[External]:
    """Return the fewest commands that mean the same to a worker that connects.

    In this order: the settings, the last ``RunIngestion`` and ``RunSink`` of each object that was not dropped since,
    the last compaction of the collections of these ingestions, the end marker, the permission to write. The compaction
    of a sink is in its ``as_of``. The drop of one collection of an ingestion stays beside the ingestion.
    """
    settings: dict[str, str] = {}
    runs: dict[ObjectId, Run] = {}
    compactions: dict[ObjectId, Frontier] = {}
    for command in commands:
        match command:
            case UpdateConfiguration():
                settings |= command.values
            case RunIngestion() | RunSink():
                runs[command.id] = command
                for id_ in command.collections:  # resumed: what was dropped before does not concern it
                    if id_ in compactions and AllowCompaction(id_, compactions[id_]).is_drop:
                        del compactions[id_]
            case AllowCompaction(id_, since):
                if command.is_drop and id_ in runs:
                    for each in runs.pop(id_).collections:
                        compactions.pop(each, None)
                else:
                    compactions[id_] = since
    ingestions = [run for run in runs.values() if isinstance(run, RunIngestion)]
    sinks = [_compacted(run, compactions) for run in runs.values() if isinstance(run, RunSink)]
    kept = {id_ for run in ingestions for id_ in run.collections}
    return [
        *([UpdateConfiguration(settings)] if settings else []),
        *ingestions,
        *sinks,
        *(AllowCompaction(id_, since) for id_, since in compactions.items() if id_ in kept),
        *([InitializationComplete()] if InitializationComplete() in commands else []),
        *([AllowWrites()] if AllowWrites() in commands else []),
    ]


def _compacted(sink: RunSink, compactions: dict[ObjectId, Frontier]) -> RunSink:
    since = compactions.get(sink.id, sink.as_of)
    return sink if since <= sink.as_of else replace(sink, as_of=since)


def retain(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that still count for a worker that reads the log from its beginning.

    These are the last start of each dataflow that was neither dropped nor suspended since, and the last update of each
    setting. Of a suspended dataflow nothing counts: a new life of worker 0 asks for its points again.
    """
    starts: dict[ObjectId, Row] = {}
    settings: dict[str, Row] = {}
    for row in rows:
        match row.command:
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
    return [kept[index] for index in sorted(kept)]
