"""Mends a defect of pyiceberg 0.12.0: its projection makes an empty list or map of a NULL one that holds structs.

Everything that pyiceberg writes or reads as Arrow passes through the projection. This module's tests have one that
fails once pyiceberg is right: then the module goes.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.types import ListType, MapType

PROJECT_LIST, PROJECT_MAP = ArrowProjectionVisitor.list, ArrowProjectionVisitor.map


def mend() -> None:
    """Let pyiceberg's projection keep NULL lists and maps, in the whole process."""
    ArrowProjectionVisitor.list, ArrowProjectionVisitor.map = _project_list, _project_map  # type: ignore[assignment,method-assign]


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
