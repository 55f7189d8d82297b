"""JSON rows, version 1: one JSON object a line, UTF-8; the member ``_table`` names the table of a row.

Source: the lines are those of https://jsonlines.org.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tidemark.write_buffer.formats.entry import TABLE_HEADER, BadReason, BadRow, Entry, EntryFormat, Row, Rows

TABLE_MEMBER = "_table"
_SURROGATE = re.compile(rb"\\u[dD]")


def encode_json_rows(rows: Iterable[Mapping[str, Any]], *, table: str | None = None) -> Entry:
    """Return ``rows`` as one entry; ``table`` is the table of rows without a member ``_table``.

    Raises ``ValueError`` if JSON has no such value; NaN and infinities are not JSON.
    """
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for row in rows)
    headers = () if table is None else ((TABLE_HEADER, table.encode()),)
    return Entry("\n".join(lines).encode(), EntryFormat.JSON_ROWS, headers)


def decode_json_rows(payload: bytes, *, default_table: str | None) -> Rows:
    """Return the rows of ``payload``; empty lines are skipped.

    A single row over several lines, as foreign producers write, is one row.
    """
    good: list[Row] = []
    bad: list[BadRow] = []
    for line in payload.split(b"\n"):
        if line.strip():
            row = _decode_row(line, default_table)
            good.append(row) if isinstance(row, Row) else bad.append(row)
    if bad and b"\n" in payload and isinstance(row := _decode_row(payload, default_table), Row):
        return Rows((row,))
    return Rows(tuple(good), tuple(bad))


def parse_json(text: bytes) -> Any:
    """Return the value of one JSON document, as strictly as rows are read.

    Raises ``ValueError`` if the text is no JSON, or its value cannot be stored.
    """
    try:
        value = json.loads(
            text.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            object_pairs_hook=_unique_members,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair: it cannot be stored
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return value


def _decode_row(text: bytes, default_table: str | None) -> Row | BadRow:
    try:
        values = parse_json(text)
    except ValueError as error:
        return BadRow(text, BadReason.ROW_UNREADABLE, f"not a JSON object: {error}")
    if not isinstance(values, dict):
        return BadRow(text, BadReason.ROW_UNREADABLE, f"not a JSON object but {type(values).__name__}")
    table = values.pop(TABLE_MEMBER, default_table)
    if not isinstance(table, str) or not table:
        return BadRow(text, BadReason.TABLE_MISSING, f"the row names no table: give it a member {TABLE_MEMBER!r}")
    return Row(table, values, text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")  # Python accepts NaN and Infinity, other readers do not


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands there twice")  # readers differ in which of the two they take
    return members
