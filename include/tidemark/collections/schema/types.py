"""Column types in Spark's words, without Spark: parsing, widening, and what changed between two schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSTEM_COLUMNS = frozenset({"_time", "_diff", "_producer", "_batch"})
# Where a row lies, and what happened to it: Spark cannot read an Iceberg table that has columns of these names.
_METADATA_COLUMNS = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
        "_change_type", "_change_ordinal", "_commit_snapshot_id",
    }
)  # fmt: skip

_PRIMITIVES = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
}
_STORED_AS = {"tinyint": "int", "smallint": "int"}  # Iceberg has no smaller integers
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")
_MAX_PRECISION = 38


def is_reserved(name: str) -> bool:
    """Tell whether no column of a user may have this name, in whatever case."""
    return name.lower() in _SYSTEM_COLUMNS | _METADATA_COLUMNS


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts, under Spark's name for it."""

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


def quoted(name: str) -> str:
    """Return ``name`` as Spark SQL takes it: in backquotes if it is not a plain identifier."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"


def columns_text(columns: Columns) -> str:
    """Return the text that ``parse_columns`` reads."""
    return ", ".join(str(column) for column in columns)


def stored_type(kind: Type) -> Type:
    """Return the type that a stored collection has for a source's ``kind``: small integers become int."""
    if isinstance(kind, Primitive):
        return Primitive(_STORED_AS.get(kind.name, kind.name))
    if isinstance(kind, Array):
        return Array(stored_type(kind.element))
    if isinstance(kind, Map):
        return Map(stored_type(kind.key), stored_type(kind.value))
    if isinstance(kind, Struct):
        return Struct(stored_columns(kind.fields))
    return kind


def stored_columns(columns: Columns) -> Columns:
    """Return ``columns`` with the types that a stored collection gives them."""
    return tuple(Column(column.name, stored_type(column.type)) for column in columns)


def widens(narrow: Type, wide: Type) -> bool:
    """Say whether every value of ``narrow`` is, unchanged, one of ``wide``; equal types do not count.

    Inside arrays, maps and structs too; a struct keeps its field names and their order.
    """
    if narrow == wide:
        return False
    if isinstance(narrow, Primitive) and isinstance(wide, Primitive):
        for family in (_INTEGERS, _FLOATS):
            if narrow.name in family and wide.name in family:
                return family.index(narrow.name) < family.index(wide.name)
        return False
    if isinstance(narrow, Decimal) and isinstance(wide, Decimal):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return _parts_widen(narrow, wide)


def _parts_widen(narrow: Type, wide: Type) -> bool:
    if isinstance(narrow, Array) and isinstance(wide, Array):
        return widens(narrow.element, wide.element)
    if isinstance(narrow, Map) and isinstance(wide, Map):
        return fits(narrow.key, wide.key) and fits(narrow.value, wide.value)
    if isinstance(narrow, Struct) and isinstance(wide, Struct):
        same_names = [field.name for field in narrow.fields] == [field.name for field in wide.fields]
        return same_names and all(
            fits(mine.type, theirs.type) for mine, theirs in zip(narrow.fields, wide.fields, strict=True)
        )
    return False


def fits(source: Type, stored: Type) -> bool:
    """Say whether values of ``source`` can be stored as ``stored`` without loss."""
    return source == stored or widens(source, stored)


def parse_columns(text: str) -> Columns:
    """Parse ``name type, name type``, as Spark's DDL has it; `NOT NULL` and `COMMENT '…'` are read over.

    Raises:
        ValueError: If it is no such text, or names a column twice; the message says where.
    """
    parser = _Parser(text)
    columns = parser.columns(end="")
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            raise ValueError(f"column {column.name!r} stands twice (names are compared without case)")
        seen.add(column.name.lower())
    return columns


class _Parser:
    """A recursive descent over the tokens of one text."""

    _TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^']|'')*'|\"[^\"]*\"|[^\W]+|[<>(),:])")

    def __init__(self, text: str) -> None:
        self._tokens = list(self._split(text))
        self._next = 0

    def _split(self, text: str) -> Iterator[str]:
        text, position = text.strip(), 0
        while position < len(text):
            match = self._TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"unexpected {text[position:].strip()[:10]!r} in the schema {text!r}")
            yield match[1]
            position = match.end()

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, wanted: str) -> None:
        token = self._take()
        if token != wanted:
            raise ValueError(f"expected {wanted!r} in the schema, found {token or 'its end'!r}")

    def columns(self, *, end: str) -> Columns:
        """Read columns up to ``end``, which is left in place."""
        found = [self._column()]
        while self._peek() == ",":
            self._take()
            found.append(self._column())
        if self._peek() != end:
            raise ValueError(f"expected a comma in the schema after column {found[-1].name!r}, found {self._peek()!r}")
        return tuple(found)

    def _column(self) -> Column:
        name = self._take()
        if not name or name in "<>(),:":
            raise ValueError(f"expected a column name in the schema, found {name or 'its end'!r}")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if self._peek() == ":":
            self._take()
        column = Column(name, self._type(name))
        if self._peek().lower() == "not":
            self._take()
            if self._take().lower() != "null":
                raise ValueError(f"expected NOT NULL after column {name!r}")
        if self._peek().lower() == "comment":
            self._take()
            self._take()
        return column

    def _type(self, column: str) -> Type:
        name = self._take().lower()
        if name in _PRIMITIVES:
            return Primitive(_PRIMITIVES[name])
        if name in {"decimal", "dec", "numeric"}:
            return self._decimal(column)
        if name in {"varchar", "char"}:  # their length is not enforced by Parquet readers, so it is not kept
            self._expect("(")
            self._number(column)
            self._expect(")")
            return Primitive("string")
        if name in {"array", "map", "struct"}:
            return self._nested(name, column)
        raise ValueError(f"column {column!r} has the type {name!r}, which is none that can be stored")

    def _nested(self, name: str, column: str) -> Type:
        self._expect("<")
        found: Type
        if name == "array":
            found = Array(self._type(column))
        elif name == "map":
            key = self._type(column)
            self._expect(",")
            found = Map(key, self._type(column))
        else:
            found = Struct(self.columns(end=">"))
        self._expect(">")
        return found

    def _decimal(self, column: str) -> Decimal:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = self._number(column)
            if self._peek() == ",":
                self._take()
                scale = self._number(column)
            self._expect(")")
        if not (0 < precision <= _MAX_PRECISION and scale <= precision):
            raise ValueError(f"column {column!r}: decimal({precision},{scale}) is outside what can be stored")
        return Decimal(precision, scale)

    def _number(self, column: str) -> int:
        token = self._take()
        if not token.isdecimal():
            raise ValueError(f"column {column!r}: expected a number in its type, found {token!r}")
        return int(token)
