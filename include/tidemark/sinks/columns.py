"""The columns of target tables: whether a table that is there fits, and how it follows those of the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidemark.collections.schema.types import Column, Type, columns_text, fits, widens
from tidemark.errors import SchemaMismatch
from tidemark.sinks.progress import SinkColumn

MISFIT_HINT: Final = "change the table, or leave it to the sink to make one: name a table that is not there"
_UNDO: Final = (
    "undo the change there; or drop the sink, and declare it again with `existing: replace`, which loads all rows anew"
)
_IN_THE_WAY: Final = "rename or drop the old column there"

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
    before: Sequence[SinkColumn],
    after: Sequence[SinkColumn],
    actual: Mapping[str, T],
    *,
    holds: Callable[[T, Type], bool],
    title: str,
) -> Evolution:
    """Return the changes that turn a table with the columns ``before`` into one for rows of ``after``.

    ``actual`` are the types of the columns that the table has; ``holds`` tells whether one takes every value of a type.
    Only columns that the collection dropped may be gone from the table.

    Raises ``SchemaMismatch`` if somebody else dropped, renamed or changed a column there, or if a column that the
    collection dropped stands in the way of another one of its name.
    """
    known = {column.id: column for column in before}
    ids = {column.id for column in after}
    kept = tuple(column for column in before if column.id not in ids and column.name in actual)
    changed = [(known[column.id], column) for column in after if column.id in known]
    present = [(actual[old.name], old, new) for old, new in changed if old.name in actual]
    misfits = {
        "lacks": [old.name for old, _ in changed if old.name not in actual],
        "has with another type": [
            old.name
            for there, old, new in present
            if not holds(there, old.type) or not (fits(old.type, new.type) or holds(there, new.type))
        ],
    }
    if told := _told(misfits):
        listed = ", ".join(f"{name} {type_}" for name, type_ in actual.items())
        given = columns_text(tuple(Column(column.name, column.type) for column in before))
        raise SchemaMismatch(f"{title} {told}: it has ({listed}), the sink left it with ({given})", hint=_UNDO)
    for column in after:
        old = known.get(column.id)
        if (old is None or old.name != column.name) and any(column.name == other.name for other in kept):
            raise SchemaMismatch(
                f"{title} still has a column {column.name!r}, which the collection dropped before another one got "
                "that name",
                hint=_IN_THE_WAY,
            )
    return Evolution(
        renamed=tuple((old.name, new.name) for old, new in changed if old.name != new.name),
        added=tuple(column for column in after if column.id not in known),
        widened=tuple(new for there, old, new in present if widens(old.type, new.type) and not holds(there, new.type)),
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
    return _told(listed)


def _told(misfits: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{what} {', '.join(map(repr, names))}" for what, names in misfits.items() if names)
