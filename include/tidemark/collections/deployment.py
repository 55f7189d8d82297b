"""The contracts between collections and the deployment that uses them; the catalog implements the contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemark.collections.objects.standing import Dropped, ObjectKind, Standing, back_off_ms
from tidemark.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.declarations.sink import SinkDeclaration
    from tidemark.iceberg.shard.ledger import Ledger, Range
    from tidemark.report import ErrorReport


class Mode(StrEnum):
    """What a deployment may do: publish, or only stage."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMode:
    """The mode of the leading generation, and who set it when and why; ``since_ms`` is 0 if nobody ever set it."""

    mode: Mode = Mode.READ_WRITE
    generation: int
    since_ms: int = 0
    who: str = ""
    why: str = ""
    led: frozenset[int] = field(default=frozenset(), compare=False)  # generations that the mode was ever switched for


class Modes(Protocol):
    """The register of the mode, one for all processes of an installation."""

    def read(self) -> StoredMode:
        """Return the mode, without pyiceberg, in milliseconds; read-write if nobody ever switched the mode.

        The returned mode held at some instant during the call.

        Raises:
            Unreachable: If the stores do not answer.
            Fenced: If a newer deployment leads, or the leader has changed since this process began.
            StaleState: If nobody leads for now.
        """

    def switch(self, wanted: Mode, *, who: str, why: str) -> StoredMode:
        """Make ``wanted`` the mode of this deployment, which then leads; return the mode of the leading deployment.

        Writes nothing if ``wanted`` is the mode already. A deployment newer than the leading one is read-only without
        a switch: for such a deployment only a switch to read-write changes anything.

        Raises as ``read``.
        """


@dataclass(frozen=True, slots=True)
class AppliedSink:
    """An applied sink; ``id`` tells it from an earlier one of the same name."""

    id: int
    declaration: SinkDeclaration

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def collection(self) -> str:
        return self.declaration.collection


@dataclass(frozen=True, slots=True)
class Applied:
    """The applied declarations by name, sorted, as of one instant; a change starts from these."""

    declarations: dict[str, Declaration] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # as stored: equal exactly when nothing was changed
    sinks: dict[str, AppliedSink] = field(default_factory=dict)

    @property
    def paced(self) -> list[str]:
        """The names of the collections and sinks that declare ``every``."""
        collections = [name for name, each in self.declarations.items() if each.every_ms is not None]
        return collections + [name for name, each in self.sinks.items() if each.declaration.every_ms is not None]

    @property
    def renamed(self) -> Mapping[str, str]:
        """The new names by the old ones, of collections whose declarations still say what they were called."""
        return {each.renamed_from: name for name, each in self.declarations.items() if each.renamed_from is not None}


class StatusKind(StrEnum):
    """What an object of the catalog is, as its statuses say: an ingestion is a collection that reads a write buffer."""

    COLLECTION = "collection"
    INGESTION = "ingestion"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class CatalogObject:
    """An object as the catalog lists it; ``id`` tells the object from an earlier one of the same name."""

    kind: StatusKind
    id: int


class Registry(Protocol):
    """The store of applied declarations. Changes are serialised: a change based on old contents fails.

    Every method may raise ``Unreachable``, ``Fenced``, or ``StaleState`` if nobody leads for now.
    """

    def read(self) -> Applied:
        """Return the applied declarations; none if nothing was ever applied."""

    def get(self, name: str) -> Declaration:
        """Return one declaration.

        Raises ``UnknownCollection`` if no collection has that name; with near matches.
        """

    def find(self, name: str) -> Declaration | None:
        """Return one declaration, None if no collection has that name; reads no other declaration."""

    def objects(self) -> dict[str, CatalogObject]:
        """Return all collections, ingestions and sinks by name, sorted."""

    def replace(self, changed: Iterable[Declaration], *, seen: Applied, sinks: Iterable[SinkDeclaration] = ()) -> None:
        """Apply ``changed`` and ``sinks``, all or nothing, if ``seen`` is still what is applied; audited with it.

        What is ``renamed_from`` an applied collection takes its place.

        Raises:
            CatalogOutOfSync: If somebody else applied something since; nothing was written.
            ReadOnly: If the deployment became read-only since; nothing was written.
            Fenced: If a newer deployment leads, or the leader has changed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An object as it was looked at before its drop; ``tables`` are the uuids of its tables by name."""

    kind: ObjectKind
    name: str
    object_id: int
    tables: Mapping[str, str] = field(default_factory=dict)


class Found(NamedTuple):
    """What the catalog has under one name, as of one instant; None and nothing for what there is not."""

    declaration: Declaration | None = None
    standing: Standing | None = None
    dropped_tables: frozenset[str] = frozenset()  # the uuids of tables that had the name, and perhaps have it still
    kind: ObjectKind | None = None
    object_id: int | None = None  # of this kind


class Objects(Protocol):
    """The life of collections, ingestions and sinks, which share one space of names. All changes are audited.

    Every method may raise ``Unreachable``, ``Fenced``, or ``StaleState`` if nobody leads for now. Every change but
    ``recover`` raises ``ReadOnly`` if the deployment is read-only.
    """

    def read(self) -> Mapping[str, Standing]:
        """Return the objects that are paused or suspended, by name."""

    def find(self, name: str) -> Found:
        """Return the object of that name, what is declared of a collection, and what was dropped under its name."""

    def pause(self, names: Sequence[str], *, why: str = "") -> dict[str, Standing]:
        """Pause the objects, all or none; return by name the pauses that were there before, which stay as they are.

        A pause takes the place of a suspension.

        Raises:
            UsageError: If an object was dropped; the message says when and by whom.
            UnknownObject: If there never was such an object; with near matches.
        """

    def resume(self, names: Sequence[str]) -> dict[str, Standing]:
        """Let the objects run from their next run on, all or none; return by name what kept them from running.

        Raises as ``pause``.
        """

    def suspend(
        self, name: str, object_id: int, error: ErrorReport, *, back_off: Callable[[int], int] = back_off_ms
    ) -> Standing | None:
        """Keep an object that failed from running, until ``back_off`` of the failures in a row, in ms, has passed.

        Return None if the object was paused or dropped meanwhile, and perhaps made anew, which stays so.
        """

    def recover(self, name: str, object_id: int) -> bool:
        """End the suspension of an object that has run; return whether there was one. A pause stays."""

    def look(self, names: Sequence[str]) -> list[Leaving]:
        """Return the objects as the catalog has them, without their tables.

        Raises as ``drop``, but for a change in between.
        """

    def drop(self, leaving: Sequence[Leaving]) -> list[Dropped]:
        """Take objects and their standings away, all or none; return them, with one entry for each table.

        Raises:
            UsageError: If an object was dropped before.
            UnknownObject: If there never was such an object; with near matches.
            StillRead: If other objects read one of them.
            CatalogOutOfSync: If an object was dropped and made anew since the look.
        """

    def dropped(self) -> list[Dropped]:
        """Return what was dropped and is not removed yet, oldest first."""

    def forget(self, removed: Dropped) -> None:
        """Take away what was said of a dropped object, of which nothing is left."""

    def gone(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return, of those names that no object has any more, when and by whom it was dropped or renamed."""


class DiscardRecords(Protocol):
    """The store of records of discarded batches: who discarded what, when and why."""

    def add(self, records: Mapping[str, dict[str, Any]], *, who: str) -> None:
        """Store the records by key, all or nothing; a record whose key is stored already stays unchanged.

        Raises as ``Modes.read``.
        """

    def read(self) -> list[dict[str, Any]]:
        """Return all records, oldest first."""


class LossRecords(Protocol):
    """The store of records of entries that a replay, or an ingest, went on without: who decided that, and when."""

    def add(self, collection: str, details: Mapping[str, Any], *, who: str) -> None:
        """Store a record, unless the same one is stored. Raises as ``Modes.read``."""


class BatchLog(Protocol):
    """The batches of one collection in one write buffer. Every method may raise ``Unreachable``."""

    @property
    def title(self) -> str:
        """The buffer as messages name it."""

    def accepted(self, producer: str) -> Ledger:
        """Return the ranges of the batches that count."""

    def find(self, producer: str, numbers: Range) -> int | None:
        """Return how many rows the batch has, or 0 if its numbers came in other batches; None if they are free.

        Raises ``RangeOverlap`` if a part of the numbers was accepted; names both ranges.
        """

    def add(self, pieces: Iterable[pa.Table], name: tuple[str, Range] | None, *, clock: Clock) -> int:
        """Write the rows of ``pieces`` as the batch of a producer and range, once; return how many rows it has by now.

        Whatever becomes of this process, the batch is in the buffer as a whole or does not count. Rows without a name
        are added by every call.

        Raises:
            RangeOverlap: If a part of the range was accepted before; names both ranges.
            Refused: If the buffer cannot take a row; nothing was added.
            UsageError: If the key that the buffer keeps for the table does not fit the rows.
        """


class Buffers(Protocol):
    """The write buffers, as appends use them."""

    def open(self, buffer: str, *, collection: str, table: str) -> AbstractContextManager[BatchLog]:
        """Open a buffer, for rows of ``collection``, which are those of ``table`` there.

        Raises:
            ConfigurationInvalid: If the buffer is not set.
            InputMissing: If there is no such buffer.
            Unreachable: If the buffer does not answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment of an installation, as one process takes part in it.

    All parts follow one leader of the catalog: once another leader has come, every question about the system's own
    state fails as fenced by epoch, and the process starts over.
    """

    settings: Settings
    registry: Registry
    objects: Objects
    modes: Modes
    discards: DiscardRecords
    losses: LossRecords
    buffers: Buffers
    takes_over: frozenset[int] = frozenset()  # older deployments, whose batches are published even if they never led
    asked_for: frozenset[str] = frozenset()  # the objects that a person named: suspended ones are tried at once
    time_limits: tuple[type[BaseException], ...] = ()  # raised in the midst of a run that takes too long

    @property
    def generation(self) -> int:
        return self.settings.generation

    def heir_of(self, generations: Iterable[int]) -> set[int]:
        """Return those of ``generations`` whose staged batches are this deployment's to publish.

        These are its own batches and, while it leads, those of older deployments that led: such a deployment has
        acknowledged its batches as the leader, and cannot publish them any more. Raises as ``Modes.read``.
        """
        found = set(generations)
        older = {generation for generation in found if generation < self.generation}
        own = (found & {self.generation}) | (older & self.takes_over)
        if older - own and (stored := self.modes.read()).generation == self.generation:
            own |= older & stored.led
        return own
