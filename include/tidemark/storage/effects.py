"""What a worker wants done after a step: its state machine does nothing itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.frontier import Frontier
from tidemark.storage.commands import DropDataflow, Ingestion, Internal, ObjectId, RunSinkDataflow, Start


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Append the command to the log, from which all workers get it."""

    command: Internal


@dataclass(frozen=True, slots=True)
class AskResumePoints:
    """Let the companion read where the ingestion goes on; its answer is ``CreateIngestionDataflow`` or ``Failed``.

    The companion answers the questions about one object one after the other, in the order in which they were asked.
    ``restarts`` counts the starts in a row that came to nothing before this one: let it wait the longer, the more.
    """

    id: ObjectId
    description: Ingestion
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Let the companion answer with this very command, in its turn after what was asked before about the object.

    ``restarts`` as in ``AskResumePoints``.
    """

    command: RunSinkDataflow | DropDataflow
    restarts: int = 0

    @property
    def id(self) -> ObjectId:
        return self.command.ids[0] if isinstance(self.command, DropDataflow) else self.command.id


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a companion that could not read resume points."""

    id: ObjectId
    reason: str


@dataclass(frozen=True, slots=True)
class StartDataflow:
    """Run this dataflow, with the exports that are not finished."""

    start: Start


@dataclass(frozen=True, slots=True)
class StopDataflow:
    """Stop the dataflow, if it runs; a ``StartDataflow`` may follow."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class Configure:
    """These values hold for the dataflows that are started from now on."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PermitWrites:
    """Dataflows may publish from now on."""


@dataclass(frozen=True, slots=True)
class ReportFrontier:
    """A worker, or all of them, came so far with a collection or a sink."""

    id: ObjectId
    upper: Frontier


@dataclass(frozen=True, slots=True)
class ReportDropped:
    """A worker, or all of them, decided the drop; the dataflow may still run for a moment."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Tell the controller how an object is; ``status`` is one of ``system.rules.Status``."""

    id: ObjectId
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log something that may happen in a race, and is no error."""

    message: str


Effect = (
    Broadcast
    | AskResumePoints
    | PassThrough
    | StartDataflow
    | StopDataflow
    | Configure
    | PermitWrites
    | ReportStatus
    | Warn
)
Report = ReportFrontier | ReportDropped | ReportStatus
