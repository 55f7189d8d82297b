"""Chunks: the pieces that the rows of a partition lie in, each open, frozen or persisted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.errors import NotPossible, StaleState


class ChunkBusy(StaleState):
    """A chunk has an action under way, and takes part in one at a time."""


class ChunkPersisted(NotPossible):
    """A persisted chunk does not change any more."""


class Stage(StrEnum):
    """How far a chunk has come."""

    OPEN = "open"  # takes more rows
    FROZEN = "frozen"
    PERSISTED = "persisted"


class Action(StrEnum):
    """What is done with chunks; at most one at a time with each."""

    COMPACT = "compact"  # merge small files
    PERSIST = "persist"
    UNLOAD = "unload"  # drop the staged copy of what is persisted
    DROP = "drop"  # drop what is not persisted: only where persistence is off


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An action under way."""

    id: str
    action: Action
    started_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows of one partition: small staged files, or persisted ones.

    Chunks of a partition are in the order of ``order``, then ``id``.
    """

    id: int
    stage: Stage = Stage.OPEN
    order: int = 0
    rows: int
    size_bytes: int = 0
    start_ms: int  # the smallest event time
    last_write_ms: int  # when the last rows arrived
    last_read_ms: int = 0
    is_compacted: bool = False  # of frozen chunks: the files were merged already
    is_cached: bool = False  # of persisted chunks: a staged copy is there still
    operation: Operation | None = None

    @property
    def is_persisted(self) -> bool:
        return self.stage is Stage.PERSISTED

    @property
    def is_staged(self) -> bool:
        """Whether the chunk counts toward the limits."""
        return not self.is_persisted or self.is_cached

    def add(self, rows: int, *, size_bytes: int, start_ms: int, arrived_ms: int, open_rows: int) -> Chunk:
        """Return the open chunk with more rows; it freezes at ``open_rows``. A frozen chunk takes no rows."""
        if self.stage is not Stage.OPEN:
            raise ValueError(f"chunk {self.id} is {self.stage}, and takes no rows")
        more = replace(
            self,
            rows=self.rows + rows,
            size_bytes=self.size_bytes + size_bytes,
            start_ms=min(self.start_ms, start_ms),
            last_write_ms=max(self.last_write_ms, arrived_ms),
        )
        return more.freeze() if more.rows >= open_rows else more

    def freeze(self) -> Chunk:
        """Return the chunk frozen; a frozen one stays as it is."""
        if self.is_persisted:
            raise ChunkPersisted(f"chunk {self.id} is persisted: only an open one can be frozen", hint=_READ_AGAIN)
        return self if self.stage is Stage.FROZEN else replace(self, stage=Stage.FROZEN)

    def begin(self, operation: Operation) -> Chunk:
        """Return the chunk with an action under way; rows that arrive from now on go to another chunk."""
        if self.operation is not None:
            raise ChunkBusy(
                f"chunk {self.id} has the {self.operation.action} {self.operation.id} under way, so there is no "
                f"{operation.action} of it",
                hint=_READ_AGAIN,
            )
        if self.is_persisted and operation.action is not Action.UNLOAD:
            raise ChunkPersisted(
                f"chunk {self.id} is persisted: there is no {operation.action} of it", hint=_READ_AGAIN
            )
        return replace(self if self.is_persisted else self.freeze(), operation=operation)

    def end(self, operation_id: str) -> Chunk:
        """Return the chunk after an action, which succeeded or failed."""
        if self.operation is None or self.operation.id != operation_id:
            raise ChunkBusy(f"chunk {self.id} has no {operation_id} under way", hint=_READ_AGAIN)
        return replace(self, operation=None)


_READ_AGAIN = "another run was faster: the next pass decides anew"
