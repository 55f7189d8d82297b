"""Which columns a declaration names, and whether they are there and of a type that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.collections.declarations.declared_values import typed_value
from tidemark.collections.schema.types import Decimal, Primitive, is_reserved, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.collections.declarations.append_only import Expectations
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.declarations.declared_values import DeclaredValue
    from tidemark.collections.schema.types import Columns, Type

_TIME_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


def check_columns(declaration: Declaration, columns: Columns) -> None:
    """Check that every column the declaration names is among ``columns``, with a type that fits its use.

    Raises:
        ValueError: Naming the field, the column and the columns there are.
    """
    types = {column.name: column.type for column in columns}
    for name in types:
        if is_reserved(name):
            raise ValueError(f"the column name {name!r} is Tidemark's own or Iceberg's: rename it, as with `sql`")
    for field, named in _named_columns(declaration):
        if named not in types:
            listed = ", ".join(quoted(name) for name in types)
            raise ValueError(f"`{field}` names {named!r}, which is not among the columns {listed}")
    for field, name in _compared_columns(declaration):
        if not isinstance(types[name], Primitive | Decimal):
            what = "a key" if field.endswith("key") else "compared"
            raise ValueError(f"`{field}` names {name!r}, whose type {types[name]} cannot be {what}")
    for field, name in _time_columns(declaration):
        _check_time_type(field, name, types)
    if declaration.expect:
        _check_values(declaration.expect, types)


def _named_columns(declaration: Declaration) -> Iterable[tuple[str, str]]:
    yield from _compared_columns(declaration)
    yield from _time_columns(declaration)
    if declaration.guards.on_duplicate_key:
        yield "guards.on_duplicate_key", declaration.guards.on_duplicate_key.first_by
    if declaration.expect:
        yield from (("expect.not_null", name) for name in declaration.expect.not_null)
    yield from (("renames", new) for new in declaration.renames.values())


def _compared_columns(declaration: Declaration) -> Iterable[tuple[str, str]]:
    yield from (("key", name) for name in declaration.key)
    if retention := declaration.retention:
        yield from (("retention.key", name) for name in retention.key)
        yield from (("retention.order_by", name) for name in retention.order_by)
    if expect := declaration.expect:
        yield from (("expect.range", name) for name in expect.range)
        yield from (("expect.one_of", name) for name in expect.one_of)
        yield from (("expect.unique", name) for name in expect.unique)
    if status := declaration.status:
        yield from (("status.key", name) for name in status.key)
        yield "status.column", status.column


def _time_columns(declaration: Declaration) -> Iterable[tuple[str, str]]:
    if declaration.scope:
        yield "scope.column", declaration.scope.column
    if declaration.retention and declaration.retention.column:
        yield "retention.column", declaration.retention.column
    if declaration.status:
        yield "status.time", declaration.status.time


def _check_values(expect: Expectations, types: dict[str, Type]) -> None:
    for name, limits in expect.range.items():
        given = [each for each in (limits.min, limits.max) if each is not None]
        first, *rest = (_check_value(f"expect.range.{name}", each, types[name]) for each in given)
        if any(largest < first for largest in rest):
            raise ValueError(f"`expect.range.{name}` is empty: `min` {limits.min!r} is above `max` {limits.max!r}")
    for name, values in expect.one_of.items():
        for each in values:
            _check_value(f"expect.one_of.{name}", each, types[name])


def _check_value(field: str, value: DeclaredValue, kind: Type) -> Any:
    try:
        return typed_value(value, kind)
    except ValueError as error:
        raise ValueError(f"`{field}`: {value!r} cannot be a value of a column of type {kind}") from error


def _check_time_type(field: str, name: str, types: dict[str, Type]) -> None:
    if str(types[name]) not in _TIME_TYPES:
        raise ValueError(f"`{field}` names {name!r}, whose type {types[name]} is no date or timestamp")
