"""The rows of an entry: each with its table, the bad ones with the reason and their own bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.write_buffer.formats.entry import BadReason


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, its values as JSON has them (whole numbers of any size), and the bytes that it came from."""

    table: str
    values: dict[str, Any]
    raw: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A part of an entry that is no row; ``raw`` are its bytes, and ``detail`` is one sentence for a person."""

    raw: bytes
    reason: BadReason
    detail: str


@dataclass(frozen=True, slots=True)
class Rows:
    """All of one entry: the good rows, in order, are kept whatever is wrong with the others."""

    good: tuple[Row, ...] = ()
    bad: tuple[BadRow, ...] = ()
