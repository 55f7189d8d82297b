"""Text and JSON values as typed columns; a row that holds a value of another type is set aside, with the reason."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_TRUE, _FALSE = {"true", "t", "yes", "y", "1"}, {"false", "f", "no", "n", "0"}  # as Spark casts text
_SHOWN = 60


class RejectedRow(NamedTuple):
    """A row that cannot be stored: which one (from 1, without the header), why, and its text."""

    number: int
    reason: str
    content: str


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """The rows that fit, and those that do not, in the order of the file."""

    rows: pa.Table
    rejected: tuple[RejectedRow, ...] = ()


def parse_rows(
    values: Mapping[str, pa.Array | Sequence[Any]],
    kinds: pa.Schema,
    *,
    numbers: Sequence[int],
    text_of: Callable[[int], str],
) -> ParsedRows:
    """Return the rows whose values all fit ``kinds``.

    Args:
        values: By column: text as an Arrow array of strings, or values as JSON has them. A column that is missing is
            NULL.
        kinds: The wanted columns.
        numbers: The number of each row.
        text_of: Returns the text of the row at a place, for the quarantine.
    """
    count = len(numbers)
    arrays: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for field in kinds:
        if field.name not in values:
            arrays.append(pa.nulls(count, field.type))
            continue
        array, bad = _parse_column(values[field.name], field.type)
        arrays.append(array)
        for place, value in bad.items():
            reasons.setdefault(place, f"column {field.name!r}: {_shown(value)} is no {type_text(field.type)}")
    rows = pa.table(arrays, schema=pa.schema([field.with_nullable(nullable=True) for field in kinds]))
    if not reasons:
        return ParsedRows(rows)
    fits = pa.array([place not in reasons for place in range(count)])
    rejected = tuple(RejectedRow(numbers[place], reasons[place], text_of(place)) for place in sorted(reasons))
    return ParsedRows(rows.filter(fits), rejected)


def type_text(kind: pa.DataType) -> str:
    """Return the type's name in the words of a declaration."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    names = {"int32": "int", "int64": "bigint", "bool": "boolean", "date32[day]": "date", "large_string": "string"}
    return names.get(str(kind), str(kind))


def _parse_column(values: pa.Array | Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, object]]:
    """Return the typed column, and the values that do not fit by place; there the column is NULL."""
    whole = _parse_whole(values, kind)
    if whole is not None:
        return whole, {}
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else values
    parsed: list[object] = []
    bad: dict[int, object] = {}
    for place, value in enumerate(listed):
        try:
            parsed.append(_parse_value(value, kind))
        except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
            parsed.append(None)
            bad[place] = value
    return pa.array(parsed, kind), bad


def _parse_whole(values: pa.Array | Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the whole column in one call; None if a value does not fit, or needs a look of its own."""
    try:
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return None
        if pa.types.is_timestamp(kind) and kind.tz:
            whole = pc.assume_timezone(pc.cast(values, pa.timestamp(kind.unit)), "UTC").cast(kind)
        else:
            whole = pc.cast(values, kind)
        return whole if _has_years_of_four_digits(whole) else None
    except pa.ArrowException:
        return None


def _has_years_of_four_digits(values: pa.Array) -> bool:
    """Tell whether Python, and so everything that shows these days and times, can hold them."""
    if not pa.types.is_date(values.type) and not pa.types.is_timestamp(values.type):
        return True
    bounds = pc.min_max(pc.year(values))
    return bounds["min"].as_py() is None or (bounds["min"].as_py() >= MINYEAR and bounds["max"].as_py() <= MAXYEAR)


def _parse_value(value: object, kind: pa.DataType) -> object:
    """Return one value as the column holds it.

    Raises:
        ValueError: If it is none of that type (or TypeError, OverflowError, or one of Arrow's, as the type has it).
    """
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _parse_nested(value, kind)
    if isinstance(value, str) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return _parse_text(value.strip(), kind)
    if isinstance(value, bool) is not pa.types.is_boolean(kind) or isinstance(value, dict | list):
        raise ValueError(value)
    if pa.types.is_temporal(kind):
        raise ValueError(value)  # a number does not say of which unit it is
    if pa.types.is_decimal(kind) and isinstance(value, float | int):
        return _parse_text(str(value), kind)
    parsed = pa.scalar(value, kind).as_py()
    if isinstance(value, float) and (int(value) != value if pa.types.is_integer(kind) else math.isinf(parsed)):
        raise ValueError(value)  # Arrow cuts fractions, and takes what is too large for infinite
    return parsed


def _parse_nested(value: object, kind: pa.DataType) -> object:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return {field.name: _parse_value(value.get(field.name), field.type) for field in fields}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(_parse_value(key, kind.key_type), _parse_value(each, kind.item_type)) for key, each in value.items()]
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and isinstance(value, list):
        return [_parse_value(each, kind.value_type) for each in value]
    raise ValueError(value)


def _parse_text(text: str, kind: pa.DataType) -> object:
    if pa.types.is_boolean(kind):
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if pa.types.is_timestamp(kind):
        time = datetime.fromisoformat(text)
        if kind.tz:
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        if time.tzinfo:
            raise ValueError(text)
        return time
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text), kind).as_py()
    return pa.scalar(text, pa.string()).cast(kind).as_py()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def csv_text(fields: Iterable[str | None]) -> str:
    """Return the fields of one CSV row as text, quoted where needed."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(["" if field is None else field for field in fields])
    return buffer.getvalue()
