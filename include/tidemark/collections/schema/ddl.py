"""Columns as DDL text: a small parser, because a declaration is read in milliseconds and without a JVM.

sqlglot takes longer to import than a declaration takes to read, and differs from Spark: sqlglot accepts a column
without a type, a comma at the end and `DEFAULT`, and refuses a quote within a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemark.collections.schema.convert import PRIMITIVES
from tidemark.collections.schema.types import Array, Column, Columns, Decimal, Map, Primitive, Struct, Type

_ALIASES = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "timestamp_ltz": "timestamp",
}  # fmt: skip
_MAX_PRECISION = 38


def parse_columns(text: str) -> Columns:
    """Parse Spark's DDL ``name type, name type``; `NOT NULL` and `COMMENT '…'` are ignored.

    Raises ``ValueError`` if the text cannot be parsed, or names a column twice; the message says where.
    """
    columns = _Parser(text).columns(end="")
    lower_names = set[str]()
    for column in columns:
        if column.name.lower() in lower_names:
            raise ValueError(f"column {column.name!r} stands twice (names are compared without case)")
        lower_names.add(column.name.lower())
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
        """Read columns up to the token ``end``, which stays unread."""
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
        if (primitive := _ALIASES.get(name, name)) in PRIMITIVES:
            return Primitive(primitive)
        if name in {"decimal", "dec", "numeric"}:
            return self._decimal(column)
        if name in {"varchar", "char"}:  # Parquet readers do not enforce the length, so the length is dropped
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
