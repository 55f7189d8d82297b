"""Rows with their places, without a JVM: a few columns, file by file, to decide which rows to remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.parquet import ParquetFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.manifests import read_delete_files

BATCH_ROWS = 65_536
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Some live rows of one data file, in the order of the file; ``positions`` count from 0, deleted rows included."""

    rows: pa.Table
    positions: NDArray[np.int64]


def scan_file(
    table: Table, file: DataFile, columns: Sequence[str], *, deleted: NDArray[np.int64] | None = None
) -> Iterator[PlacedRows]:
    """Yield the live rows of a data file in pieces of at most ``BATCH_ROWS``, under the table's present schema.

    Columns are found by field id, so columns that were renamed are read from older files, too; a column that the file
    does not have is NULL. ``deleted`` are the positions of deleted rows, sorted.
    """
    columns_read = _Columns.of(table, columns)
    start = 0
    with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns_read.names_in(parquet)):
            rows = columns_read.project(batch)
            positions = np.arange(start, start + batch.num_rows, dtype=np.int64)
            start += batch.num_rows
            if deleted is not None and len(deleted):
                first, end = np.searchsorted(deleted, [positions[0], positions[-1] + 1])
                live = np.ones(batch.num_rows, dtype=np.bool_)
                live[deleted[first:end] - positions[0]] = False
                rows, positions = rows.filter(pa.array(live)), positions[live]
            if len(positions):
                yield PlacedRows(rows, positions)


def take_rows(table: Table, file: DataFile, columns: Sequence[str], positions: NDArray[np.int64]) -> pa.Table:
    """Return the rows at ``positions``, ascending, of a data file, as ``scan_file`` reads them.

    Only row groups with such rows are read.
    """
    columns_read = _Columns.of(table, columns)
    taken = [columns_read.wanted.empty_table()]
    with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
        names = columns_read.names_in(parquet)
        start = 0
        for group in range(parquet.num_row_groups):
            end = start + parquet.metadata.row_group(group).num_rows
            if np.searchsorted(positions, start) < np.searchsorted(positions, end):
                for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=names):
                    first, last = np.searchsorted(positions, [start, start + batch.num_rows])
                    if first < last:
                        taken.append(columns_read.project(batch).take(pa.array(positions[first:last] - start)))
                    start += batch.num_rows
            start = end
    return pa.concat_tables(taken)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a table, which files have under names of their own."""

    wanted: pa.Schema
    ids: Mapping[str, int]
    schema: Schema

    @classmethod
    def of(cls, table: Table, columns: Sequence[str]) -> _Columns:
        ids = {name: table.schema().find_field(name).field_id for name in columns}
        return cls(pa.schema([arrow_schema(table).field(name) for name in columns]), ids, table.schema())

    def names_in(self, parquet: ParquetFile) -> list[str]:
        """Return the columns to read of a file; at least one, to learn how the rows are cut into batches."""
        stored = _names_by_id(parquet.schema_arrow)
        return [stored[id_] for id_ in self.ids.values() if id_ in stored] or parquet.schema_arrow.names[:1]

    def project(self, batch: pa.RecordBatch) -> pa.Table:
        """Return rows of a file under the names and types of the table."""
        stored = _names_by_id(batch.schema)
        arrays = [
            self._named(batch, stored[self.ids[field.name]]).cast(field.type)
            if self.ids[field.name] in stored
            else pa.nulls(batch.num_rows, field.type)
            for field in self.wanted
        ]
        return pa.table(arrays, names=self.wanted.names)

    def _named(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """Return a column whose inner fields have the names of the table: a cast finds them by name.

        A file has other ones if a field was renamed, or has letters that Iceberg escapes in files.
        """
        array = batch.column(name)
        return array.view(self._type(array.type)) if pa.types.is_nested(array.type) else array

    def _type(self, stored: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(stored):
            return pa.struct([field.with_name(self._name(field)).with_type(self._type(field.type)) for field in stored])
        if pa.types.is_map(stored):
            return pa.map_(self._type(stored.key_type), self._type(stored.item_type))
        if pa.types.is_large_list(stored):
            return pa.large_list(self._type(stored.value_type))
        return pa.list_(self._type(stored.value_type)) if pa.types.is_list(stored) else stored

    def _name(self, field: pa.Field) -> str:
        """Return the present name of an inner field; that of no other one if the field was dropped, or has no id."""
        if field.metadata is None or _FIELD_ID not in field.metadata:
            return str(field.name)
        id_ = int(field.metadata[_FIELD_ID])
        return self.schema.find_field(id_).name if self.schema.find_column_name(id_) else f"dropped field {id_}"


def read_deleted_positions(io: FileIO, snapshot: Snapshot) -> dict[str, dict[str, NDArray[np.int64]]]:
    """Return, for each position-delete file, the positions that it deletes by data file: 8 bytes a row."""
    return {path: _read_positions(io, path) for path in read_delete_files(io, snapshot)}


def deleted_by_file(deletes: Mapping[str, Mapping[str, NDArray[np.int64]]]) -> dict[str, NDArray[np.int64]]:
    """Return the deleted positions by data file, sorted, without duplicates."""
    gathered: dict[str, list[NDArray[np.int64]]] = {}
    for by_file in deletes.values():
        for path, positions in by_file.items():
            gathered.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(arrays)) for path, arrays in gathered.items()}


def as_delete_rows(positions: Mapping[str, NDArray[np.int64]]) -> pa.Table:
    """Return positions by data file as rows for ``write_position_deletes``."""
    paths = [pa.repeat(pa.scalar(path), len(found)) for path, found in positions.items()]
    return pa.table(
        {
            "file_path": pa.chunked_array(paths, pa.string()),
            "pos": pa.chunked_array([pa.array(found) for found in positions.values()], pa.int64()),
        }
    )


def _read_positions(io: FileIO, path: str) -> dict[str, NDArray[np.int64]]:
    with io.new_input(path).open() as stream:
        table = pq.read_table(pa.PythonFile(stream, mode="r"), columns=["file_path", "pos"]).combine_chunks()
    if table.num_rows == 0:
        return {}
    paths = table.column("file_path").cast(pa.string()).combine_chunks().dictionary_encode()
    if isinstance(paths, pa.ChunkedArray):
        paths = paths.chunk(0)
    codes = paths.indices.to_numpy(zero_copy_only=False)
    positions = table.column("pos").to_numpy().astype(np.int64)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    pieces = np.split(positions[order], starts[1:])
    return {
        paths.dictionary[int(codes[order[start]])].as_py(): piece for start, piece in zip(starts, pieces, strict=True)
    }


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    return {
        int(field.metadata[_FIELD_ID]): field.name
        for field in schema
        if field.metadata is not None and _FIELD_ID in field.metadata
    }
