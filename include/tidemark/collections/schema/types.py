"""Column types under Spark's names, without Spark: which types are stored, and which fit into which."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.spark.quoting import quoted

_SYSTEM_COLUMNS = frozenset({"_time", "_diff", "_producer", "_batch", "_entry"})
# Spark cannot read an Iceberg table whose columns have the names of Iceberg's metadata columns.
_METADATA_COLUMNS = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
        "_change_type", "_change_ordinal", "_commit_snapshot_id",
    }
)  # fmt: skip

_STORED_AS = {"tinyint": "int", "smallint": "int"}  # Iceberg has no smaller integers
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")


def is_reserved(name: str) -> bool:
    """Say whether a user's column must not have this name, in any case."""
    return name.lower() in _SYSTEM_COLUMNS | _METADATA_COLUMNS


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts, under Spark's name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Values under keys."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields, in order."""

    fields: tuple[Column, ...]

    def __str__(self) -> str:
        inner = ",".join(f"{quoted(field.name)}:{field.type}" for field in self.fields)
        return f"struct<{inner}>"


Type = Primitive | Decimal | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"{quoted(self.name)} {self.type}"


Columns = tuple[Column, ...]


def columns_text(columns: Columns) -> str:
    """Return the text that ``parse_columns`` reads."""
    return ", ".join(str(column) for column in columns)


def stored_type(type_: Type) -> Type:
    """Return the type in which a collection stores ``type_``: small integers become int."""
    if isinstance(type_, Primitive):
        return Primitive(_STORED_AS.get(type_.name, type_.name))
    if isinstance(type_, Array):
        return Array(stored_type(type_.element))
    if isinstance(type_, Map):
        return Map(stored_type(type_.key), stored_type(type_.value))
    if isinstance(type_, Struct):
        return Struct(stored_columns(type_.fields))
    return type_


def stored_columns(columns: Columns) -> Columns:
    """Return ``columns`` with the types in which a collection stores them."""
    return tuple(Column(column.name, stored_type(column.type)) for column in columns)


def widens(narrow: Type, wide: Type) -> bool:
    """Say whether ``wide`` is another type than ``narrow`` and holds every value of ``narrow`` unchanged."""
    return narrow != wide and fits(narrow, wide)


def fits(source: Type, stored: Type) -> bool:  # noqa: PLR0911 - one for each type
    """Say whether values of ``source`` can be stored as ``stored`` without loss.

    The parts of arrays, maps and structs may widen; the field names of a struct and their order must be equal.
    """
    if source == stored:
        return True
    if isinstance(source, Primitive) and isinstance(stored, Primitive):
        families = [family for family in (_INTEGERS, _FLOATS) if source.name in family and stored.name in family]
        return any(family.index(source.name) < family.index(stored.name) for family in families)
    if isinstance(source, Decimal) and isinstance(stored, Decimal):
        return source.scale == stored.scale and source.precision < stored.precision
    if isinstance(source, Array) and isinstance(stored, Array):
        return fits(source.element, stored.element)
    if isinstance(source, Map) and isinstance(stored, Map):
        return fits(source.key, stored.key) and fits(source.value, stored.value)
    if isinstance(source, Struct) and isinstance(stored, Struct):
        same_names = [field.name for field in source.fields] == [field.name for field in stored.fields]
        return same_names and all(
            fits(mine.type, theirs.type) for mine, theirs in zip(source.fields, stored.fields, strict=True)
        )
    return False
