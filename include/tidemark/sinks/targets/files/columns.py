"""The columns of the files: all files of one manifest have the same ones, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.types import Column
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.sinks.progress import SinkColumn

CHANGE_FIELDS = (pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64()))


def evolve_columns(present: Sequence[SinkColumn], wanted: Sequence[SinkColumn]) -> tuple[SinkColumn, ...]:
    """Return the columns of files that take rows of ``wanted``.

    Columns are known by their ids: they are renamed and widened, and new ones come last. A column that the collection
    dropped stays, until another one of its name comes.
    """
    by_id = {column.id: column for column in wanted}
    names = {column.name for column in wanted}
    stay = [by_id.get(column.id, column) for column in present if column.id in by_id or column.name not in names]
    known = {column.id for column in present}
    return (*stay, *(column for column in wanted if column.id not in known))


def file_schema(columns: Sequence[SinkColumn], *, with_times: bool) -> pa.Schema:
    """Return the schema of the files."""
    iceberg = to_iceberg(tuple(Column(column.name, column.type) for column in columns))
    schema = schema_to_pyarrow(iceberg, include_field_ids=False)
    return pa.schema([*schema, *(CHANGE_FIELDS if with_times else ())])


def names_before(present: Sequence[SinkColumn], columns: Sequence[SinkColumn]) -> dict[str, str]:
    """Return the names that ``columns`` had in the files of the ``present`` columns, and of those of changes."""
    by_id = {column.id: column.name for column in present}
    return {column.name: by_id[column.id] for column in columns if column.id in by_id} | {TIME: TIME, DIFF: DIFF}
