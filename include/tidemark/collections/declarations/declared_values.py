"""Values that stand in a declaration, as values of the column that they are compared with."""

from __future__ import annotations

import decimal
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from tidemark.collections.schema.types import Decimal, Primitive

if TYPE_CHECKING:
    from tidemark.collections.schema.types import Type

_BITS = {"int": 31, "bigint": 63}

DeclaredValue = bool | int | float | str


def typed_value(value: DeclaredValue, kind: Type) -> Any:  # noqa: PLR0911 - one for each kind
    """Return ``value`` as one of a column of type ``kind``; times without an offset are UTC.

    Raises:
        ValueError: If it is none.
    """
    name = kind.name if isinstance(kind, Primitive) else ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "string" and isinstance(value, str):
        return value
    if name == "boolean" and isinstance(value, bool):
        return value
    if name in _BITS and number and isinstance(value, int) and -(2 ** _BITS[name]) <= value < 2 ** _BITS[name]:
        return value
    if name in {"float", "double"} and number:
        return float(value)
    if isinstance(kind, Decimal) and (number or isinstance(value, str)):
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
    raise ValueError(f"{value!r} is no {kind}")
