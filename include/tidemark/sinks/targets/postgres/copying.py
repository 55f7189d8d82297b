"""Record batches as the CSV that COPY reads, made a column at a time; and values that PostgreSQL does not take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from tidemark.errors import Refused
from tidemark.iceberg.files.arrow_values import to_values
from tidemark.report import plain

_NUL = "\x00"
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"  # not after an odd number of backslashes, the last of which is escaped
_FORMAT = csv.WriteOptions(include_header=False, quoting_style="needed")  # texts in quotes, NULLs empty


def copy_statement(table: sql.Composable, columns: Sequence[str]) -> sql.Composed:
    """Return the statement that takes what ``copy_text`` makes."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, names)


def copy_text(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the rows of ``batch`` as CSV.

    Raises ``Refused`` if a text holds the character NUL, which no text of PostgreSQL can hold; with the row.
    """
    columns = [_as_csv(column, name, batch) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    sink = pa.BufferOutputStream()
    # Arrow's CSV writer gives a table of no columns no lines, and a collection has at least one column.
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), sink, _FORMAT)
    return sink.getvalue()


def _as_csv(column: pa.Array, name: str, batch: pa.RecordBatch) -> pa.Array:
    type_ = column.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        letters = column.buffers()[-1]
        if letters is not None and _NUL.encode() in memoryview(letters).tobytes():
            _refuse_nul(pc.match_substring(column, _NUL), name, batch)
        return column
    if pa.types.is_nested(type_):
        texts = [None if value is None else _json(value) for value in to_values(column)]
        as_texts = pa.array(texts, pa.string())
        _refuse_nul(pc.match_substring_regex(as_texts, _NUL_IN_JSON), name, batch)
        return as_texts
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        values: list[bytes | None] = column.to_pylist()
        return pa.array((None if value is None else f"\\x{value.hex()}" for value in values), pa.string())
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # The connection's zone is UTC, and Arrow writes times with a zone twenty times slower.
        return column.cast(pa.int64()).cast(pa.timestamp(type_.unit))
    if pa.types.is_decimal(type_):
        return column.cast(pa.string())
    return column


def _json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False)


def _refuse_nul(has_nul: pa.Array, name: str, batch: pa.RecordBatch) -> None:
    if not pc.any(has_nul).as_py():
        return
    row = batch.slice(pc.index(has_nul, pa.scalar(value=True)).as_py(), 1).to_pylist()[0]
    raise Refused(
        f"column {name!r} has a text with the character NUL, which PostgreSQL cannot hold",
        hint="take the character out in the source of the collection",
        sample=[plain(row)],
    )
