"""What a worker wants done after a step: its state machine does nothing itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.frontier import Frontier
from tidemark.storage.commands import Ingestion, Internal, ObjectId, Start


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Append the command to the log, from which all workers get it."""

    command: Internal


@dataclass(frozen=True, slots=True)
class AskResumePoints:
    """Let the companion read where the ingestion goes on; its answer is ``CreateIngestionDataflow`` or ``Failed``.

    The companion answers one question after the other, in the order in which they were asked.
    """

    id: ObjectId
    description: Ingestion


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Let the companion answer with this very command, in its turn after what was asked before."""

    command: Internal


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
    """Tell the controller how far this worker is with a collection or a sink."""

    id: ObjectId
    upper: Frontier


@dataclass(frozen=True, slots=True)
class ReportDropped:
    """Tell the controller that the drop is decided here; the dataflow may still run for a moment."""

    id: ObjectId


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Tell the controller how an object is; ``status`` is one of ``system.rules.Status``."""

    id: ObjectId
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReportStatistics:
    """Tell the controller the measures of each object, summed over all workers."""

    measures: Mapping[ObjectId, Mapping[str, float]]


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
    | ReportFrontier
    | ReportDropped
    | ReportStatus
    | ReportStatistics
    | Warn
)
Report = ReportFrontier | ReportDropped | ReportStatus | ReportStatistics
