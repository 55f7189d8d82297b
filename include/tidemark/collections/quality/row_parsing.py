"""Parses text and JSON values into typed columns; rejects rows with values of another type, with the reason."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_TRUE, _FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}  # as Spark casts text
_LONGEST_VALUE = 60  # characters of a value in a reason


class RejectedRow(NamedTuple):
    """A row that cannot be stored: its number (from 1, without the header), the reason, and the text."""

    number: int
    reason: str
    content: str


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """The rows that fit, and the rows that do not, in the order of the file."""

    rows: pa.Table
    rejected: tuple[RejectedRow, ...] = ()


def parse_rows(
    values: Mapping[str, pa.Array | Sequence[Any]],
    schema: pa.Schema,
    *,
    numbers: Sequence[int],
    text_of: Callable[[int], str],
    rejected: Iterable[RejectedRow] = (),
) -> ParsedRows:
    """Return the rows whose values all fit ``schema``, and the other rows with a reason.

    ``values`` are Arrow arrays of strings or JSON values, by column; a missing column is NULL. As in Spark, bytes
    are the text itself in an array of strings, and Base64 in JSON. ``numbers`` are the numbers of the rows; ``text_of``
    returns the text of the row at a place, for the quarantine. ``rejected`` are rows of the file without values.
    """
    count = len(numbers)
    arrays: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for field in schema:
        if field.name not in values:
            arrays.append(pa.nulls(count, field.type))
            continue
        array, bad = _parse_column(values[field.name], field.type)
        arrays.append(array)
        for place, value in bad.items():
            reasons.setdefault(place, f"column {field.name!r}: {_abridged(value)} is no {type_text(field.type)}")
    rows = pa.table(arrays, schema=pa.schema([field.with_nullable(nullable=True) for field in schema]))
    if reasons:
        rows = rows.filter(pa.array([place not in reasons for place in range(count)]))
    unfit = (RejectedRow(numbers[place], reason, text_of(place)) for place, reason in reasons.items())
    return ParsedRows(rows, tuple(sorted([*rejected, *unfit])))


def is_bytes(type_: pa.DataType) -> bool:
    """Say whether the values are bytes, which JSON has no form for."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def type_text(type_: pa.DataType) -> str:
    """Return the name of the type in a declaration."""
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    names = {
        "int32": "int",
        "int64": "bigint",
        "bool": "boolean",
        "date32[day]": "date",
        "large_string": "string",
        "large_binary": "binary",
    }
    return names.get(str(type_), str(type_))


def _parse_column(values: pa.Array | Sequence[Any], type_: pa.DataType) -> tuple[pa.Array, dict[int, object]]:
    """Return the typed column, NULL where a value does not fit, and these values by place."""
    whole = _parse_whole(values, type_)
    if whole is not None:
        return whole, {}
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else values
    parsed: list[object] = []
    bad: dict[int, object] = {}
    for place, value in enumerate(listed):
        try:
            parsed.append(_parse_value(value, type_))
        except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
            parsed.append(None)
            bad[place] = value
    return pa.array(parsed, type_), bad


def _parse_whole(values: pa.Array | Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """Parse the whole column in one call; return None if the values have to be parsed one by one."""
    try:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return None
        if pa.types.is_timestamp(type_) and type_.tz:
            whole = pc.assume_timezone(pc.cast(values, pa.timestamp(type_.unit)), "UTC").cast(type_)
        else:
            whole = pc.cast(values, type_)
        return whole if _has_years_of_four_digits(whole) else None
    except pa.ArrowException:
        return None


def _has_years_of_four_digits(values: pa.Array) -> bool:
    """Say whether Python, and so every program that shows the values, can hold these dates and times."""
    if not pa.types.is_date(values.type) and not pa.types.is_timestamp(values.type):
        return True
    bounds = pc.min_max(pc.year(values))
    return bounds["min"].as_py() is None or (bounds["min"].as_py() >= MINYEAR and bounds["max"].as_py() <= MAXYEAR)


def _parse_value(value: object, type_: pa.DataType) -> object:
    """Return one value in the form of the column.

    Raises:
        ValueError: If the value is not of that type; some types raise TypeError, OverflowError or errors of Arrow.
    """
    if value is None:
        return None
    if pa.types.is_nested(type_):
        return _parse_nested(value, type_)
    if isinstance(value, str) and is_bytes(type_):
        return base64.b64decode(value, validate=True)
    if isinstance(value, str) and not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        return _parse_text(value.strip(), type_)
    if isinstance(value, bool) is not pa.types.is_boolean(type_) or isinstance(value, dict | list):
        raise ValueError(value)
    if pa.types.is_temporal(type_):
        raise ValueError(value)  # a number does not tell its unit
    if pa.types.is_decimal(type_) and isinstance(value, float | int):
        return _parse_text(str(value), type_)
    parsed = pa.scalar(value, type_).as_py()
    if isinstance(value, float) and (int(value) != value if pa.types.is_integer(type_) else math.isinf(parsed)):
        raise ValueError(value)  # Arrow cuts fractions, and turns values that are too large into infinity
    return parsed


def _parse_nested(value: object, type_: pa.DataType) -> object:
    if pa.types.is_struct(type_) and isinstance(value, dict):
        fields = [type_.field(number) for number in range(type_.num_fields)]
        return {field.name: _parse_value(value.get(field.name), field.type) for field in fields}
    if pa.types.is_map(type_) and isinstance(value, dict):
        return [(_parse_value(key, type_.key_type), _parse_value(item, type_.item_type)) for key, item in value.items()]
    if (pa.types.is_list(type_) or pa.types.is_large_list(type_)) and isinstance(value, list):
        return [_parse_value(item, type_.value_type) for item in value]
    raise ValueError(value)


def _parse_text(text: str, type_: pa.DataType) -> object:
    if pa.types.is_boolean(type_):
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if pa.types.is_timestamp(type_):
        time = datetime.fromisoformat(text)
        if type_.tz:
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        if time.tzinfo:
            raise ValueError(text)
        return time
    if pa.types.is_date(type_):
        return date.fromisoformat(text)
    if pa.types.is_decimal(type_):
        return pa.scalar(Decimal(text), type_).as_py()
    return pa.scalar(text, pa.string()).cast(type_).as_py()


def _abridged(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def csv_text(fields: Iterable[str | None]) -> str:
    """Return the fields of one CSV row as text, quoted where needed."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(["" if field is None else field for field in fields])
    return buffer.getvalue()
