"""Rows of Arrow tables as JSON, a column at a time: from these values an ingest makes the same values again."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.iceberg.files.arrow_values import lies_beyond, to_values

_Made = TypeVar("_Made")
_TEXT = pa.large_string()  # so that no piece has too many bytes
_QUICK_TIMES = {pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")}


def json_columns(rows: pa.Table) -> dict[str, list[Any]]:
    """Return the values of each column as JSON has them.

    Raises ``ValueError``, which names the column, if there is a value that no JSON row can hold.
    """
    return {name: _of_column(name, rows.column(name), _json_values) for name in rows.column_names}


def json_texts(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the JSON text of each value, by column; "null" for NULL. Raises as ``json_columns``."""
    return {name: _of_column(name, rows.column(name), _json_texts) for name in rows.column_names}


def join_objects(texts: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return one JSON object per row, from the JSON texts of the values by column."""
    parts: list[str | pa.ChunkedArray] = []
    for name, column in texts.items():
        parts += [f"{',' if parts else '{'}{json.dumps(name, ensure_ascii=False)}:", column]
    return _join(*parts, "}")


def _of_column(name: str, column: pa.ChunkedArray, make: Callable[[pa.ChunkedArray], _Made]) -> _Made:
    try:
        return make(column)
    except ValueError as error:
        raise ValueError(f"column {name!r} has a value that no row in a buffer can hold: {error}") from error


def _json_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return what Python's encoder makes of each value, by Arrow where both write the same."""
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        texts = column.cast(_TEXT)
    elif _is_text(column.type) and not _has_escapes(column):
        texts = _join('"', column.cast(_TEXT), '"')
    elif (times := _time_texts(column)) is not None:
        texts = _join('"', times, '"')
    else:
        texts = pa.chunked_array([pa.array(_encode_values(_json_values(column)), _TEXT)])
    return texts.fill_null("null")


def _join(*parts: str | pa.ChunkedArray) -> pa.ChunkedArray:
    columns = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar("", _TEXT))


def _has_escapes(texts: pa.ChunkedArray) -> bool:
    """Tell whether JSON writes a character of ``texts`` in another way."""
    return pc.any(pc.match_substring_regex(texts, r'["\\\x00-\x1f]')).as_py() is True


def _encode_values(values: Sequence[Any]) -> list[str]:
    """Return the JSON text of each value of a column."""
    if isinstance(next((value for value in values if value is not None), None), list | dict):
        return [json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for value in values]
    # All at once, which is many times faster: no JSON text of a value has a line end.
    text = json.dumps(values, ensure_ascii=False, separators=("\n", ":"), allow_nan=False)[1:-1]
    return text.split("\n") if text else []


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
    return pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or _is_text(column.type)


def _is_text(type_: pa.DataType) -> bool:
    return type_ in {pa.string(), pa.large_string()}


def _time_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return what ``_time_text`` makes of each value, by Arrow; None for another type, or a year beyond Python's."""
    if column.type not in _QUICK_TIMES or lies_beyond(column):
        return None
    if pa.types.is_date(column.type):
        return column.cast(_TEXT)
    # Without the zone, with which Arrow takes 20 times longer.
    texts = pc.replace_substring(column.cast(pa.timestamp("us")).cast(_TEXT), " ", "T", max_replacements=1)
    texts = pc.replace_substring_regex(texts, r"\.000000$", "")
    return texts if column.type.tz is None else _join(texts, "Z")


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
