"""The columns of a table in PostgreSQL: which types it gets, whether a table that is there fits, and how it evolves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.collections.schema.types import Column, Decimal, Primitive, Type, columns_text, widens
from tidemark.errors import SchemaMismatch
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.sinks.progress import SinkColumn

_TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "string": "text",
    "binary": "bytea",
}
# Types that hold every value, too, where somebody else made the table.
_WIDER = {
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "real": ("double precision",),
    "text": ("character varying",),
}
CHANGE_TYPES = {TIME: "bigint", DIFF: "bigint"}


def postgres_type(type_: Type) -> str:
    """Return the type as PostgreSQL itself spells it."""
    if isinstance(type_, Primitive):
        return _TYPES[type_.name]
    if isinstance(type_, Decimal):
        return f"numeric({type_.precision},{type_.scale})"
    return "jsonb"


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


def check_fit(wanted: Sequence[SinkColumn], actual: Mapping[str, str], *, with_times: bool, title: str) -> None:
    """Check that a table with the columns ``actual`` takes rows of ``wanted``.

    Raises ``SchemaMismatch`` with both schemas.
    """
    types = {column.name: postgres_type(column.type) for column in wanted} | (CHANGE_TYPES if with_times else {})
    missing = [name for name in types if name not in actual]
    foreign = [name for name in actual if name not in types]
    other = [name for name in types if name in actual and not _holds(actual[name], types[name])]
    if not (missing or foreign or other):
        return
    listed = {"lacks": missing, "has besides": foreign, "has with another type": other}
    told = ", ".join(f"{what} {', '.join(map(repr, names))}" for what, names in listed.items() if names)
    raise SchemaMismatch(
        f"{title} {told}; it has ({_listed(actual)}), the sink needs ({_listed(types)}) for "
        f"{columns_text(tuple(Column(column.name, column.type) for column in wanted))}",
        hint="change the table, or leave it to the sink to make one: name a table that is not there",
    )


def _holds(actual: str, wanted: str) -> bool:
    return (
        actual == wanted or actual in _WIDER.get(wanted, ()) or (wanted.startswith("numeric") and actual == "numeric")
    )


def _listed(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())
