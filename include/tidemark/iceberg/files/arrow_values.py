"""Values of Arrow tables: as Python values, also those before year 1 and after 9999, and the same value in all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dictionaries by column, with the values of ``to_values``."""
    return [dict(zip(table.column_names, row, strict=True)) for row in to_tuples(table)]


def to_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows as tuples, for a table whose columns may share a name."""
    return list(zip(*(to_values(column) for column in table.columns), strict=True))


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values as ``to_pylist`` does; a date or timestamp beyond Python's years is its text in ISO form."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]
    return values


def lies_beyond(column: pa.ChunkedArray) -> bool:
    """Return whether a date or timestamp in ``column``, however nested, has no value in Python."""
    leaves = (leaf for chunk in column.chunks for leaf in _leaves(chunk) if pa.types.is_temporal(leaf.type))
    return any(_has_no_value(end) for leaf in leaves for end in pc.min_max(leaf).values())


def holds_text(column: pa.ChunkedArray, text: str) -> bool:
    """Return whether a string in ``column``, however nested, has ``text`` in it."""
    leaves = (leaf for chunk in column.chunks for leaf in _leaves(chunk))
    texts = (leaf for leaf in leaves if pa.types.is_string(leaf.type) or pa.types.is_large_string(leaf.type))
    return any(pc.any(pc.match_substring(leaf, text)).as_py() for leaf in texts)


def _has_no_value(scalar: pa.Scalar) -> bool:
    try:
        scalar.as_py()
    except (OverflowError, ValueError):
        return True
    return False


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_map(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for entries in (array.keys, array.items):
            yield from _leaves(entries[start:end])
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _leaves(array.flatten())
    else:
        yield array


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return {field.name: _value(scalar[number]) for number, field in enumerate(scalar.type)}
    if pa.types.is_map(scalar.type):
        return [(_value(entry[0]), _value(entry[1])) for entry in scalar.values]
    if pa.types.is_list(scalar.type) or pa.types.is_large_list(scalar.type):
        return [_value(element) for element in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        text = str(scalar.cast(pa.string()).as_py())
        return text.replace(" ", "T").removesuffix("Z").removesuffix(".000000") + ("+00:00" if text[-1] == "Z" else "")


def with_constants(rows: pa.Table, values: Iterable[tuple[str, str | int]]) -> pa.Table:
    """Return ``rows`` with one more column for each name, of the same value in all rows."""
    for name, value in values:
        rows = rows.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return rows
