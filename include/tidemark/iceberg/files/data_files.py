"""Writes small batches in this process, without a JVM: rows as data files, positions as position-delete files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from tidemark.errors import InputsGone
from tidemark.iceberg.files.arrow_values import holds_text, lies_beyond
from tidemark.iceberg.files.manifests import Partition, partition_of
from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.layout import ROW_GROUP_BYTES

FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545  # reserved field ids of position deletes (Iceberg specification)
_SORT_ORDER = 15  # the place of the id in pyiceberg's record of a data file, which has no setter for it
_LAST_BEFORE_SURROGATES = "\ud7ff"  # the next letter cannot be encoded
_GROUP_ROWS = 200_000  # about as many as Spark writes
_METRICS = "write.metadata.metrics.column"
DELETE_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION_ID)}),
    ]
)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of the table's columns, the system columns included, without field ids."""
    return schema_to_pyarrow(table.schema(), include_field_ids=False)


def sort_columns(table: Table, cluster_by: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the columns by which rows are sorted: ``cluster_by``, then the sort order of the table.

    A column that the table does not have is left out: an apply may have died after it renamed the column.
    """
    schema = table.schema()
    own = (schema.find_column_name(field.source_id) for field in table.sort_order().fields)
    known = {field.name for field in schema.fields}
    return tuple(name for name in dict.fromkeys((*cluster_by, *own)) if name in known)


def write_rows(
    table: Table, rows: pa.Table, *, cluster_by: Sequence[str] = (), order_id: int | None = None
) -> tuple[DataFile, ...]:
    """Write ``rows`` as data files of the table, one or more per partition; nothing becomes visible.

    ``rows`` have all columns of the table, the system columns included, in any order; without ``_entry`` they came in
    none. The files have statistics. They are sorted as ``sort_columns`` says, unless the rows are in another of the
    table's sort orders, ``order_id``, which the files then bear.
    """
    if rows.num_rows == 0:
        return ()
    schema = arrow_schema(table)
    if ENTRY in schema.names and ENTRY not in rows.column_names:
        rows = rows.append_column(ENTRY, pa.nulls(rows.num_rows, pa.int64()))
    ordered = rows.select(schema.names).cast(schema)
    order = sort_columns(table, cluster_by)
    if order and order_id is None:
        ordered = ordered.sort_by([(name, "ascending") for name in order])
    metadata = _writing_metadata(table, [name for name in schema.names if _has_no_bounds(ordered.column(name))])
    files = tuple(_dataframe_to_data_files(metadata, ordered, table.io, write_uuid=uuid4()))
    for file in files:
        file.spec_id = table.metadata.default_spec_id  # pyiceberg sets it only on files read from a manifest
    return files if order_id is None else mark_sorted(files, order_id)


def mark_sorted(files: Iterable[DataFile], order_id: int) -> tuple[DataFile, ...]:
    """Return the files with the id of the sort order that their rows are in."""
    marked = tuple(files)
    for file in marked:
        file[_SORT_ORDER] = order_id
    return marked


def _has_no_bounds(column: pa.ChunkedArray) -> bool:
    """Tell whether pyiceberg fails to make bounds: they are values of Python, and cut texts end in the next letter."""
    return lies_beyond(column) or holds_text(column, _LAST_BEFORE_SURROGATES)


def _writing_metadata(table: Table, without_bounds: Sequence[str]) -> TableMetadata:
    """Return metadata that ask for Parquet, whatever format another tool has set, and for no bounds in some columns.

    pyiceberg takes the size of row groups in rows alone.
    """
    nested = [name for name in table.schema().column_names if name.partition(".")[0] in without_bounds]
    asked = {"write.format.default": "parquet", "write.parquet.row-group-limit": str(_GROUP_ROWS)}
    asked |= {f"{_METRICS}.{name}": "counts" for name in nested}
    given = {name: value for name, value in table.metadata.properties.items() if name != ROW_GROUP_BYTES}
    return table.metadata.model_copy(update={"properties": {**given, **asked}})


def write_position_deletes(
    table: Table, positions: pa.Table, data_files: Mapping[str, DataFile]
) -> tuple[DataFile, ...]:
    """Write the positions of rows to delete, one file per partition of the data files.

    ``positions`` have the columns ``file_path`` (string) and ``pos`` (bigint, from 0), as Iceberg's ``_file`` and
    ``_pos``. ``data_files`` are the live data files of the pinned snapshot by path, for their partitions.

    Raises ``InputsGone`` if a path is not among them.
    """
    by_partition: defaultdict[Partition, list[str]] = defaultdict(list)
    for path in positions.column("file_path").unique().to_pylist():
        if path not in data_files:
            raise not_live(table, path)
        by_partition[partition_of(data_files[path])].append(path)
    files = []
    for partition, paths in by_partition.items():
        chosen = positions
        if len(by_partition) > 1:
            chosen = positions.filter(pa.compute.is_in(positions.column("file_path"), pa.array(paths)))
        ordered = chosen.select(DELETE_SCHEMA.names).cast(DELETE_SCHEMA)
        ordered = ordered.sort_by([("file_path", "ascending"), ("pos", "ascending")])
        path = table.location_provider().new_data_location(f"deletes-{uuid4()}.parquet")
        output = table.io.new_output(path)
        with output.create(overwrite=True) as stream:
            pq.write_table(ordered, stream, compression="zstd")
        files.append(position_delete_file(path, paths, size=len(output), count=ordered.num_rows, partition=partition))
    return tuple(files)


def not_live(table: Table, path: str) -> InputsGone:
    """Return the error for a delete from a data file that ``table`` no longer has."""
    return InputsGone(f"{path} is not a live data file of {'.'.join(table.name())} any more")


def position_delete_file(path: str, named: Sequence[str], *, size: int, count: int, partition: Partition) -> DataFile:
    """Describe the position-delete file at ``path``, of ``size`` bytes, which deletes ``count`` rows.

    ``named`` are the data files that it deletes from, all of one ``partition``: with the smallest and largest of these
    paths, readers can skip the file.
    """
    spec_id, values = partition
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=count,
        file_size_in_bytes=size,
        value_counts={FILE_PATH_ID: count, POSITION_ID: count},
        null_value_counts={FILE_PATH_ID: 0, POSITION_ID: 0},
        lower_bounds={FILE_PATH_ID: min(named).encode()},
        upper_bounds={FILE_PATH_ID: max(named).encode()},
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = spec_id
    return file
