"""Checks that the columns that a declaration names exist, with types that fit their uses."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from itertools import pairwise
from typing import Any

from tidemark.collections.schema.types import Columns, Decimal, Primitive, Type, is_reserved
from tidemark.spark.quoting import quoted

_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})
_BITS = {"int": 31, "bigint": 63}

DeclaredValue = bool | int | float | str


class Need(Enum):
    """What a use requires of the type of a column; the values are words of messages."""

    PRESENT = None
    KEY = "a key"
    COMPARED = "compared"
    TIME = "a time"


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A ``field`` of a declaration that names a column, and the ``values`` to compare the column with."""

    field: str
    column: str
    need: Need = Need.PRESENT
    values: tuple[DeclaredValue, ...] = ()
    is_range: bool = False  # whether the values are a smallest and a largest value


def check_columns(uses: Sequence[ColumnUse], columns: Columns) -> None:
    """Check that all used columns are among ``columns``, with types that fit the uses.

    Raises ``ValueError`` if one is not; the message has the field, the column, and the columns that exist.
    """
    types = {column.name: column.type for column in columns}
    for name in types:
        if is_reserved(name):
            raise ValueError(f"the column name {name!r} is Tidemark's own or Iceberg's: rename it, as with `sql`")
    for use in uses:
        if use.column not in types:
            listed = ", ".join(quoted(name) for name in types)
            raise ValueError(f"`{use.field}` names {use.column!r}, which is not among the columns {listed}")
    for use in uses:
        _check_type(use, types[use.column])
    for use in uses:
        _check_values(use, types[use.column])


def _check_type(use: ColumnUse, column_type: Type) -> None:
    if use.need in {Need.KEY, Need.COMPARED} and not isinstance(column_type, Primitive | Decimal):
        raise ValueError(f"`{use.field}` names {use.column!r}, whose type {column_type} cannot be {use.need.value}")
    if use.need is Need.TIME and str(column_type) not in _TIME_TYPES:
        raise ValueError(f"`{use.field}` names {use.column!r}, whose type {column_type} is no date or timestamp")


def _check_values(use: ColumnUse, column_type: Type) -> None:
    field, typed = f"{use.field}.{use.column}", []
    for value in use.values:
        try:
            typed.append(typed_value(value, column_type))
        except ValueError as error:
            raise ValueError(f"`{field}`: {value!r} cannot be a value of a column of type {column_type}") from error
    if use.is_range and any(largest < smallest for smallest, largest in pairwise(typed)):
        smallest, largest = use.values
        raise ValueError(f"`{field}` is empty: `min` {smallest!r} is above `max` {largest!r}")


def typed_value(value: DeclaredValue, column_type: Type) -> Any:  # noqa: PLR0911 - one for each type
    """Return ``value`` as a value of a column of type ``column_type``; times without an offset are UTC.

    Raises ``ValueError`` if the column cannot have this value.
    """
    name = column_type.name if isinstance(column_type, Primitive) else ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "string" and isinstance(value, str):
        return value
    if name == "boolean" and isinstance(value, bool):
        return value
    if name in _BITS and number and isinstance(value, int) and -(2 ** _BITS[name]) <= value < 2 ** _BITS[name]:
        return value
    if name in {"float", "double"} and number:
        return float(value)
    if isinstance(column_type, Decimal) and (number or isinstance(value, str)):
        try:
            return decimal.Decimal(str(value))
        except decimal.InvalidOperation:
            pass
    if name == "date" and isinstance(value, str):
        return date.fromisoformat(value)
    if name in {"timestamp", "timestamp_ntz"} and isinstance(value, str):
        time = datetime.fromisoformat(value)
        in_utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        return in_utc if name == "timestamp" else in_utc.replace(tzinfo=None)
    raise ValueError(f"{value!r} is no {column_type}")
