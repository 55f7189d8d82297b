"""The columns of a table in PostgreSQL: which types they get, and whether a table that is there fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.collections.schema.types import Column, Decimal, Primitive, Type, columns_text
from tidemark.errors import SchemaMismatch
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.sinks.columns import MISFIT_HINT, list_misfits
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
_NAME_BYTES = 63  # PostgreSQL cuts longer names, and then does not know them again
_COLUMNS = 1_600
_SYSTEM_NAMES = frozenset({"ctid", "cmax", "cmin", "tableoid", "xmax", "xmin"})


def postgres_type(type_: Type) -> str:
    """Return the type as PostgreSQL itself spells it."""
    if isinstance(type_, Primitive):
        return _TYPES[type_.name]
    if isinstance(type_, Decimal):
        return f"numeric({type_.precision},{type_.scale})"
    return "jsonb"


def check_names(columns: Sequence[SinkColumn], *, with_times: bool, title: str) -> None:
    """Raise ``SchemaMismatch`` if no table of PostgreSQL has columns of such names, or so many."""
    names = [column.name for column in columns]
    refused = [name for name in names if len(name.encode()) > _NAME_BYTES or name in _SYSTEM_NAMES]
    if refused:
        raise SchemaMismatch(
            f"{title} cannot have the column {refused[0]!r}: PostgreSQL keeps {_NAME_BYTES} bytes of a name, and has "
            f"{', '.join(sorted(_SYSTEM_NAMES))} for itself",
            hint="rename the column in the collection",
        )
    if (count := len(names) + (len(CHANGE_TYPES) if with_times else 0)) > _COLUMNS:
        raise SchemaMismatch(
            f"{title} cannot have {count} columns: PostgreSQL has {_COLUMNS} at most",
            hint="carry the collection into files or an Iceberg table",
        )


def holds(actual: str, wanted: Type) -> bool:
    """Say whether a column of the type ``actual`` takes every value of ``wanted``."""
    return _holds(actual, postgres_type(wanted))


def check_fit(wanted: Sequence[SinkColumn], actual: Mapping[str, str], *, with_times: bool, title: str) -> None:
    """Check that a table with the columns ``actual`` takes rows of ``wanted``.

    Raises ``SchemaMismatch`` with both schemas.
    """
    types = {column.name: postgres_type(column.type) for column in wanted} | (CHANGE_TYPES if with_times else {})
    if told := list_misfits(types, actual, holds=_holds):
        raise SchemaMismatch(
            f"{title} {told}; it has ({_listed(actual)}), the sink needs ({_listed(types)}) for "
            f"{columns_text(tuple(Column(column.name, column.type) for column in wanted))}",
            hint=MISFIT_HINT,
        )


def _holds(actual: str, wanted: str) -> bool:
    return (
        actual == wanted or actual in _WIDER.get(wanted, ()) or (wanted.startswith("numeric") and actual == "numeric")
    )


def _listed(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())
