"""Stored rows with their places, a few columns at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.files.row_positions import PlacedRows, deleted_by_file, read_deleted_positions, scan_file
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.head import ShardHead

FILE, POSITION = "_file_number", "_file_position"


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The live rows of some files."""

    table: Table
    files: tuple[DataFile, ...]  # by path
    # Deleted positions by delete file and data file, and by data file alone.
    deletes: Mapping[str, Mapping[str, NDArray[np.int64]]] = field(default_factory=dict)
    deleted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def in_contents(cls, head: ShardHead) -> StoredRows:
        """Return all rows that a reader sees."""
        return cls.in_snapshot(head.table, head.contents)

    @classmethod
    def in_snapshot(cls, table: Table, snapshot: Snapshot) -> StoredRows:
        """Return all rows of a snapshot."""
        io = table.io
        files = read_data_files(io, snapshot)
        deletes = read_deleted_positions(io, snapshot)
        return cls(table, tuple(files[path] for path in sorted(files)), deletes, deleted_by_file(deletes))

    @classmethod
    def in_files(cls, table: Table, files: Iterable[DataFile]) -> StoredRows:
        """Return all rows of files without deleted rows."""
        return cls(table, tuple(sorted(files, key=lambda file: file.file_path)))

    @property
    def by_path(self) -> dict[str, DataFile]:
        return {file.file_path: file for file in self.files}

    def live(self, file: DataFile) -> int:
        return int(file.record_count) - len(self.deleted.get(file.file_path, ()))

    def scan(self, file: DataFile, columns: Sequence[str]) -> Iterator[PlacedRows]:
        return scan_file(self.table, file, columns, deleted=self.deleted.get(file.file_path))

    def empty(self, columns: Sequence[str]) -> pa.Table:
        """Return no rows, with ``columns``."""
        schema = arrow_schema(self.table)
        return pa.schema([schema.field(name) for name in columns]).empty_table()

    def by_age(self, columns: Sequence[str], order: Sequence[str]) -> tuple[Iterator[pa.Table], list[str]]:
        """Return ``columns`` and those of ``order`` with the rows' places, and a complete order, oldest first.

        The producer, the batch and the place break ties of ``order``.
        """
        complete = [*dict.fromkeys([*order, PRODUCER, BATCH]), FILE, POSITION]
        return self._placed(list(dict.fromkeys([*columns, *order, PRODUCER, BATCH]))), complete

    def _placed(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for number, file in enumerate(self.files):
            for placed in self.scan(file, columns):
                numbers = np.full(len(placed.positions), number, dtype=np.int32)
                rows = placed.rows.append_column(FILE, pa.array(numbers))
                yield rows.append_column(POSITION, pa.array(placed.positions))
