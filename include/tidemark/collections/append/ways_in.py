"""The role of a buffer beside a collection (none, writing or reading), which decides about direct writes.

Source: the decision table of `reference/write_buffer_lifecycle.md`, section 2.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import NotPossible, OnlyThroughBuffer


@dataclass(frozen=True, slots=True)
class NoBuffer:
    """Writes are stored directly."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes go into ``buffer`` first, which numbers them."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Reading:
    """All rows come out of ``buffer``."""

    buffer: str


Role = NoBuffer | Writing | Reading


class DirectWrite(Enum):
    """What happens to rows that a caller writes to a collection directly."""

    STORE = auto()
    FORWARD = auto()  # to the buffer only
    FORWARD_AND_STORE = auto()  # stored under the number from the buffer; if the buffer fails, nothing is stored


def role_of(declaration: Declaration) -> Role:
    """Return the role that the declaration gives its buffer."""
    source = declaration.source
    return Reading(source.buffer) if isinstance(source, BufferSource) else NoBuffer()


def decide_direct_write(role: Role, *, immutable: bool = False, collection: str = "") -> DirectWrite:
    """Say what happens to a direct write; ``immutable``: the collection itself must not change.

    Raises:
        OnlyThroughBuffer: If all rows come out of a buffer.
        NotPossible: If rows can neither be stored nor forwarded.
    """
    if isinstance(role, Reading):
        raise OnlyThroughBuffer(
            f"the rows of {collection!r} come out of the buffer {role.buffer!r} alone",
            hint=f"write them there: tidemark buffer write {role.buffer} FILE",
        )
    if isinstance(role, Writing):
        return DirectWrite.FORWARD if immutable else DirectWrite.FORWARD_AND_STORE
    if immutable:
        raise NotPossible(
            f"{collection!r} is immutable and has no buffer: rows can neither be stored nor forwarded",
            hint="write where the collection may change",
        )
    return DirectWrite.STORE
