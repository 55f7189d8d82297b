"""Rows of Arrow tables as JSON, a column at a time: from these values an ingest makes the same values again."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.iceberg.files.arrow_values import lies_beyond, to_values

_QUICK_TIMES = {pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")}


def json_columns(rows: pa.Table) -> dict[str, list[Any]]:
    """Return the values of each column as JSON has them.

    Raises ``ValueError``, which names the column, if there is a value that no JSON row can hold.
    """
    columns: dict[str, list[Any]] = {}
    for column in rows.schema:
        try:
            values = _json_values(rows.column(column.name))
        except ValueError as error:
            text = f"column {column.name!r} has a value that no row in a buffer can hold: {error}"
            raise ValueError(text) from error
        columns[column.name] = values
    return columns


def encode_values(values: Sequence[Any], *, ascii_only: bool = False) -> list[str]:
    """Return the JSON text of each value of a column."""
    if isinstance(next((value for value in values if value is not None), None), list | dict):
        return [json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"), allow_nan=False) for value in values]
    # All at once, which is many times faster: no JSON text of a value has a line end.
    text = json.dumps(values, ensure_ascii=ascii_only, separators=("\n", ":"), allow_nan=False)[1:-1]
    return text.split("\n") if text else []


def join_objects(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one JSON object per row, from the JSON texts of the values by column."""
    members = (json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in texts)
    template = f"{{{','.join(f'{member}:%s' for member in members)}}}"
    return [template % row for row in zip(*texts.values(), strict=True)]


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    if _is_plain(column):
        return to_values(column)
    if (texts := _time_texts(column)) is not None:
        return to_values(texts)
    return [None if value is None else _plain(value, column.type) for value in to_values(column)]


def _is_plain(column: pa.ChunkedArray) -> bool:
    """Tell whether JSON has every value of the column as it is."""
    if pa.types.is_floating(column.type):
        return pc.all(pc.is_finite(column)).as_py() is not False
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    return any(is_kind(column.type) for is_kind in kinds)


def _time_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return what ``_time_text`` makes of each value, by Arrow; None for another type, or a year beyond Python's."""
    if column.type not in _QUICK_TIMES or lies_beyond(column):
        return None
    texts = column.cast(pa.string())
    if pa.types.is_date(column.type):
        return texts
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    return pc.replace_substring_regex(texts, r"\.000000(Z?)$", r"\1")


def _plain(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_nested(type_):
        return _plain_parts(value, type_)
    if pa.types.is_temporal(type_):
        return _time_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    is_text = isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if is_text else value


def _plain_parts(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_struct(type_):
        return {part.name: _plain(value[part.name], part.type) for part in type_}
    if pa.types.is_map(type_):
        if pa.types.is_nested(type_.key_type):
            raise ValueError("a key of a map that has parts")
        return {str(_plain(key, type_.key_type)): _plain(item, type_.item_type) for key, item in value}
    return [_plain(item, type_.value_type) for item in value]


def _time_text(value: date | datetime | str) -> str:
    """Return a time as most producers write it, since it may be a part of a key."""
    if isinstance(value, str):
        raise ValueError(f"{value} lies outside the years 1 to 9999")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    return value.isoformat()
