"""What the applied declaration says about rows on their way in: whether they may come, when, and what they must be.

Every way in asks ``rules_of``, at the first step of every attempt: files, intervals, rows and data frames of programs,
and the writers of long-lived processes. An ingest, which has just read the declaration, asks ``Rules.declared``. So a
declaration that is altered holds from the next batch on, whoever writes. What a caller asks for comes on top: a caller
may be stricter than the declaration, never laxer.

Source: the decision table of `reference/write_buffer_lifecycle.md`, section 2.5.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.collections.declarations.append_only import Expectations, StatusHistory
from tidemark.collections.declarations.collection import Declaration, Kind, OnReadOnly
from tidemark.collections.deployment import BatchLog, Deployment, Found, Mode
from tidemark.collections.mode import COLLECTIONS
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS
from tidemark.errors import Dropped, OnlyThroughBuffer, ReadOnly, UsageError

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard


@dataclass(frozen=True, slots=True)
class NoBuffer:
    """Rows that are appended are stored directly."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Rows that are appended go into ``buffer`` as rows of ``table``; whoever reads the buffer ingests them."""

    buffer: str
    table: str

    def open(self, collection: str, deployment: Deployment) -> AbstractContextManager[BatchLog]:
        """Open the buffer for rows of ``collection``. Raises as ``Buffers.open``."""
        return deployment.buffers.open(self.buffer, collection=collection, table=self.table)


@dataclass(frozen=True, slots=True)
class Reading:
    """All rows come out of ``buffer``."""

    buffer: str
    takes_batches: bool = True  # rows that were appended into the buffer


Role = NoBuffer | Writing | Reading


def role_of(declaration: Declaration) -> Role:
    """Return what the declaration makes of rows that are appended."""
    if declaration.writes_to is not None:
        return Writing(declaration.writes_to, declaration.buffer_table)
    source = declaration.source
    takes_batches = declaration.kind is not Kind.LATEST
    return Reading(source.buffer, takes_batches) if isinstance(source, BufferSource) else NoBuffer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for rows that come into one collection; without a declaration only what the caller asks for."""

    collection: str = ""
    role: Role = NoBuffer()
    on_read_only: OnReadOnly = OnReadOnly.STAGE
    expect: tuple[Expectations, ...] = ()  # each of them holds
    status: StatusHistory | None = None

    @classmethod
    def declared(cls, declaration: Declaration) -> Rules:
        return cls(
            collection=declaration.name,
            role=role_of(declaration),
            on_read_only=declaration.on_read_only,
            expect=() if declaration.expect is None else (declaration.expect,),
            status=declaration.status,
        )

    @classmethod
    def asked(
        cls,
        *,
        stage_when_read_only: bool = True,
        expect: Expectations | None = None,
        status: StatusHistory | None = None,
    ) -> Rules:
        """Return what a caller asks for."""
        return cls(
            on_read_only=OnReadOnly.STAGE if stage_when_read_only else OnReadOnly.REJECT,
            expect=() if expect is None else (expect,),
            status=status,
        )

    def tightened(self, own: Rules) -> Rules:
        """Return these rules with what the caller asks for on top."""
        return Rules(
            collection=self.collection,
            role=self.role,
            on_read_only=max(self.on_read_only, own.on_read_only, key=lambda each: each is OnReadOnly.REJECT),
            expect=(*self.expect, *(each for each in own.expect if each not in self.expect)),
            status=self.status or own.status,
        )

    def refuse_direct_write(self) -> None:
        """Refuse rows that do not come from the collection's own buffer.

        Raises ``OnlyThroughBuffer`` if all rows come out of a buffer.
        """
        if isinstance(self.role, Reading):
            name = self.role.buffer
            other_way = f"; or declare `writes_to: {name}`, and appends go there" if self.role.takes_batches else ""
            raise OnlyThroughBuffer(
                f"the rows of {self.collection!r} come out of the buffer {name!r} alone",
                hint=f"write them there: tidemark buffer write {name} FILE{other_way}",
            )

    def refuse_statuses(self) -> None:
        """Refuse to leave out superseded statuses where no row is stored to compare with.

        Raises ``UsageError`` if the rows go into a buffer.
        """
        if isinstance(self.role, Writing):
            raise UsageError(
                f"{self.collection!r} writes to a buffer, and statuses are compared with stored rows",
                hint="leave out `status`: whoever ingests the buffer gets every row",
            )

    def refuse_when_read_only(self, mode: Mode, *, generation: int) -> None:
        """Refuse rows that would have to be staged.

        Raises ``ReadOnly`` if the deployment ``generation`` is read-only and the collection rejects rows meanwhile.
        """
        if mode is Mode.READ_ONLY and self.on_read_only is OnReadOnly.REJECT:
            raise ReadOnly(
                f"deployment {generation} is read-only, and {self.collection!r} rejects batches meanwhile",
                hint="append again when the mode is read-write; see `tidemark mode`",
            )


NOTHING_ASKED = Rules()


def rules_of(shard: Shard, deployment: Deployment) -> Rules:
    """Return the rules of a collection as it is declared now; one that nobody declared, a quarantine, takes all rows.

    The system's collections are declared in the program.

    Raises:
        Paused: If somebody paused the collection.
        Dropped: If the collection is dropped, and its table is to be renamed still.
        Others as ``Objects.find``.
    """
    if shard.namespace != COLLECTIONS:
        found = Found(declaration=SYSTEM_DECLARATIONS.get(shard.name))
    else:
        found = deployment.objects.find(shard.name)
    if found.standing is not None:
        found.standing.refuse_rows(shard.name)
    if found.declaration is not None:
        return Rules.declared(found.declaration)
    # A drop that is under way, or died: the table has its name still.
    if found.dropped_tables and str(shard.load_table().metadata.table_uuid) in found.dropped_tables:
        raise Dropped.meanwhile(shard.name)
    return Rules(collection=shard.name)
