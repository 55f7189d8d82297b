"""Mends a defect of pyiceberg 0.12.0: its projection makes an empty list or map of a NULL one that holds structs.

Everything that pyiceberg writes or reads as Arrow passes through the projection. This module's tests have one that
fails once pyiceberg is right: then the mended methods go.

What is about to be written is compared with what was given, value by value: a writer that loses a NULL in another way
fails before a file exists. So a digest of the given rows is one of the written rows, too; else the digest would say
for ever that the stored rows are right.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType

PROJECT_LIST, PROJECT_MAP = ArrowProjectionVisitor.list, ArrowProjectionVisitor.map
_PROJECT = pyiceberg_arrow._to_requested_schema  # noqa: SLF001 - the one place that all files are written through


def mend() -> None:
    """Let pyiceberg's projection keep NULL lists and maps, and check what it writes, in the whole process."""
    ArrowProjectionVisitor.list, ArrowProjectionVisitor.map = _project_list, _project_map  # type: ignore[assignment,method-assign]
    pyiceberg_arrow._to_requested_schema = _project_checked  # noqa: SLF001


def _project_checked(*arguments: Any, **named: Any) -> pa.RecordBatch:
    projected = _PROJECT(*arguments, **named)
    if named.get("include_field_ids"):  # it goes to a file
        for name, given, written in zip(named["batch"].schema.names, named["batch"], projected, strict=True):
            if not keeps_values(given, written):
                raise ValueError(f"the column {name!r} would be written with other values: nothing was written")
    return projected


def keeps_values(given: pa.Array, written: pa.Array) -> bool:
    """Tell whether two arrays of one type, save the widths of offsets, hold the same values; NaN is NaN, NULL NULL."""
    if given.type == written.type and given.equals(written):
        return True  # nearly always; Arrow takes no NaN for equal
    if not given.is_null().equals(written.is_null()):
        return False
    if pa.types.is_struct(given.type):
        pairs = zip(given.flatten(), written.flatten(), strict=True)
        return all(keeps_values(*pair) for pair in pairs)
    if pa.types.is_map(given.type):
        return keeps_values(_entries(given), _entries(written))
    if pa.types.is_list(given.type) or pa.types.is_large_list(given.type):
        here, there = (pc.list_value_length(each).cast(pa.int64()) for each in (given, written))
        return here.equals(there) and keeps_values(given.flatten(), written.flatten())
    if pa.types.is_floating(given.type) and given.type == written.type:
        given, written = _bits(given), _bits(written)
    return bool(given.cast(written.type).equals(written))


def _entries(maps: pa.MapArray) -> pa.ListArray:
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.ListArray.from_arrays(_whole(maps.offsets), pairs, mask=maps.is_null())


def _bits(floats: pa.Array) -> pa.Array:
    return floats.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[floats.type.bit_width])


def _project_list(
    self: ArrowProjectionVisitor, type_: ListType, lists: pa.Array | None, values: pa.Array | None
) -> pa.Array | None:
    projected = PROJECT_LIST(self, type_, lists, values)
    if projected is None or lists is None or projected.null_count == lists.null_count:
        return projected
    mended = pa.LargeListArray if isinstance(projected, pa.LargeListArray) else pa.ListArray
    return mended.from_arrays(_whole(projected.offsets), projected.values, type=projected.type, mask=lists.is_null())


def _project_map(
    self: ArrowProjectionVisitor, type_: MapType, maps: pa.Array | None, keys: pa.Array | None, items: pa.Array | None
) -> pa.Array | None:
    projected = PROJECT_MAP(self, type_, maps, keys, items)
    if projected is None or maps is None or projected.null_count == maps.null_count:
        return projected
    return pa.MapArray.from_arrays(
        _whole(projected.offsets), projected.keys, projected.items, type=projected.type, mask=maps.is_null()
    )


def _whole(offsets: pa.Array) -> pa.Array:
    """Return offsets that begin at the start of their buffer, as Arrow demands where there is a mask."""
    return pa.concat_arrays([offsets[:0], offsets])
