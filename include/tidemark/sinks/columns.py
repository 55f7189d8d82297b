"""The columns of target tables: whether a table that is there fits, and how it follows those of the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidemark.collections.schema.types import widens
from tidemark.errors import SchemaMismatch
from tidemark.sinks.progress import SinkColumn

MISFIT_HINT: Final = "change the table, or leave it to the sink to make one: name a table that is not there"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """How a table gets the columns of new rows; names are those of the table at that step."""

    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[SinkColumn, ...] = ()
    widened: tuple[SinkColumn, ...] = ()
    kept: tuple[SinkColumn, ...] = ()  # that the collection has no longer: they get NULL

    @property
    def is_empty(self) -> bool:
        return not (self.renamed or self.added or self.widened)


def evolve(
    before: Sequence[SinkColumn], after: Sequence[SinkColumn], actual: Mapping[str, str], *, title: str
) -> Evolution:
    """Return the changes that turn a table with the columns ``before`` into one for rows of ``after``.

    ``actual`` are the types of the columns that the table has.

    Raises ``SchemaMismatch`` if a column that the collection dropped stands in the way of a new one.
    """
    known = {column.id: column for column in before if column.name in actual}
    wanted = {column.id: column for column in after}
    kept = tuple(column for column in known.values() if column.id not in wanted)
    added = tuple(column for column in after if column.id not in known)
    for column in added:
        if any(column.name == other.name for other in kept):
            raise SchemaMismatch(
                f"{title} still has a column {column.name!r}, which the collection dropped before it got another one "
                "of that name",
                hint="rename or drop the old column there",
            )
    changed = [(known[column.id], column) for column in after if column.id in known]
    return Evolution(
        renamed=tuple((old.name, new.name) for old, new in changed if old.name != new.name),
        added=added,
        widened=tuple(new for old, new in changed if widens(old.type, new.type)),
        kept=kept,
    )


def list_misfits(wanted: Mapping[str, T], actual: Mapping[str, T], *, holds: Callable[[T, T], bool]) -> str:
    """Return why a table with the columns ``actual`` cannot take rows of ``wanted``; empty if the table can.

    Both map names to types; ``holds(actual, wanted)`` tells whether a column takes every value of a type.
    """
    listed = {
        "lacks": [name for name in wanted if name not in actual],
        "has besides": [name for name in actual if name not in wanted],
        "has with another type": [name for name in wanted if name in actual and not holds(actual[name], wanted[name])],
    }
    return ", ".join(f"{what} {', '.join(map(repr, names))}" for what, names in listed.items() if names)
