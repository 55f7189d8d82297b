"""The commands of storage workers, and their JSON form. Pure.

External commands come from the controller and change the state of a worker alone. Internal commands come from workers;
they alone start and stop dataflows. Both have one total order.

Source: reference, collections_catalog_storage §8.1. Different here: external commands come through the same log, in one
order with the others; and no command carries statistics, which replace each other and so need no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from tidemark.errors import CorruptState
from tidemark.frontier import EMPTY, Empty, Frontier, frontier_json

ObjectId = str  # `controller.object_id` builds them; an object that is paused and resumed keeps its id


def _parse(value: object) -> Frontier:
    if isinstance(value, Empty) or value == frontier_json(EMPTY):
        return EMPTY
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no frontier")
    return value


_Frontier = Annotated[Frontier, PlainValidator(_parse), PlainSerializer(frontier_json)]


class _Strict:
    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Ingestion(_Strict):
    """What an ingestion reads, and the collections that it writes; ``definition`` is JSON text that dataflows read."""

    definition: str
    exports: tuple[ObjectId, ...]  # sorted


@dataclass(frozen=True, slots=True)
class Sink(_Strict):
    """What a sink carries; ``definition`` is JSON text that dataflows read."""

    definition: str
    collection: str


@dataclass(frozen=True, slots=True)
class ResumePoint(_Strict):
    """Where an ingestion goes on for one collection."""

    upper: _Frontier  # EMPTY: the collection was sealed, and nothing is left to do
    next_numbers: Mapping[str, int] = field(default_factory=dict)  # by sequencer


@dataclass(frozen=True, slots=True)
class RunIngestion(_Strict):
    """Run an ingestion, or go on with an altered description."""

    id: ObjectId
    description: Ingestion

    @property
    def collections(self) -> tuple[ObjectId, ...]:
        """The ids whose frontiers are reported."""
        return tuple(dict.fromkeys((*self.description.exports, self.id)))


@dataclass(frozen=True, slots=True)
class RunSink(_Strict):
    """Run a sink from the contents at ``as_of``, or go on with an altered description."""

    id: ObjectId
    description: Sink
    as_of: _Frontier

    @property
    def collections(self) -> tuple[ObjectId, ...]:
        """The ids whose frontiers are reported."""
        return (self.id,)


@dataclass(frozen=True, slots=True)
class AllowCompaction(_Strict):
    """Nobody reads ``id`` before ``since`` any more; EMPTY: drop the object."""

    id: ObjectId
    since: _Frontier

    @property
    def is_drop(self) -> bool:
        return isinstance(self.since, Empty)


@dataclass(frozen=True, slots=True)
class InitializationComplete(_Strict):
    """The end of what a controller wants when it connects: the worker reconciles now."""


@dataclass(frozen=True, slots=True)
class AllowWrites(_Strict):
    """The deployment leads: dataflows may publish. There is no way back."""


@dataclass(frozen=True, slots=True)
class UpdateConfiguration(_Strict):
    """Set these values; the others stay. External, and internal for the values that dataflows start with."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreateIngestionDataflow(_Strict):
    """Start an ingestion, or start it anew, from these points; every worker uses this description, not its own."""

    id: ObjectId
    description: Ingestion
    as_of: _Frontier
    resume_points: Mapping[ObjectId, ResumePoint]  # by export


@dataclass(frozen=True, slots=True)
class RunSinkDataflow(_Strict):
    """Start a sink, or start it anew."""

    id: ObjectId
    description: Sink
    as_of: _Frontier


@dataclass(frozen=True, slots=True)
class DropDataflow(_Strict):
    """Stop the dataflows for good."""

    ids: tuple[ObjectId, ...]


@dataclass(frozen=True, slots=True)
class SuspendAndRestart(_Strict):
    """Stop a dataflow on all workers, and start it anew from fresh points.

    ``started_at`` is the index of the command that started the dataflow: one that was started anew since is not meant.
    After failures in a row the start waits, longer each time; not if a worker came, or a person asked.
    """

    id: ObjectId
    reason: str
    started_at: int
    is_failure: bool = True


Description = Ingestion | Sink
Run = RunIngestion | RunSink
Start = CreateIngestionDataflow | RunSinkDataflow
External = RunIngestion | RunSink | AllowCompaction | InitializationComplete | AllowWrites | UpdateConfiguration
Internal = CreateIngestionDataflow | RunSinkDataflow | DropDataflow | SuspendAndRestart | UpdateConfiguration
Command = External | Internal

KINDS: Final[dict[str, type[Command]]] = {
    "run-ingestion": RunIngestion,
    "run-sink": RunSink,
    "allow-compaction": AllowCompaction,
    "initialization-complete": InitializationComplete,
    "allow-writes": AllowWrites,
    "update-configuration": UpdateConfiguration,
    "create-ingestion-dataflow": CreateIngestionDataflow,
    "run-sink-dataflow": RunSinkDataflow,
    "drop-dataflow": DropDataflow,
    "suspend-and-restart": SuspendAndRestart,
}
_KIND_OF: Final = {command: kind for kind, command in KINDS.items()}


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])


def kind_of(command: Command) -> str:
    """Return the name of the command's kind."""
    return _KIND_OF[type(command)]


def command_json(command: Command) -> str:
    """Return the fields of the command as JSON text; the kind stands beside it."""
    kind = kind_of(command)
    return _adapter(kind).dump_json(command).decode()


def parse_command(kind: str, text: str) -> Command:
    """Return the command. Raises ``CorruptState`` if this program does not know the kind, or the text does not fit."""
    hint = "a newer Tidemark wrote it: use that one, or stop the workers of the one that is not wanted"
    if kind not in KINDS:
        raise CorruptState(f"storage workers know no command of the kind {kind!r}", hint=hint)
    try:
        command: Command = _adapter(kind).validate_json(text)
    except ValidationError as error:
        reason = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CorruptState(f"a command {kind!r} of storage workers cannot be read: {reason}", hint=hint) from error
    return command
