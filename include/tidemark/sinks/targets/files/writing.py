"""Writes rows into Parquet files, group by group, in bounded memory; nobody sees the files before a manifest does."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.sinks.targets.files.folder import sync_folder
from tidemark.sinks.targets.files.manifest import FileEntry, Group
from tidemark.sinks.targets.files.partitions import Layout

BATCH_ROWS = 65_536
_FILE_ROWS = 1_000_000  # a larger group gets several files
_BUFFERED_BYTES = 256 * 1024 * 1024


class FileWriter:
    """Collects rows by group, and writes a group when it is large, or when all groups together are."""

    def __init__(self, folder: Path, commit_id: str, schema: pa.Schema, layout: Layout) -> None:
        self._folder, self._commit_id, self._schema, self._layout = folder, commit_id, schema, layout
        self._pending: defaultdict[Group, list[pa.Table]] = defaultdict(list)
        self._rows: defaultdict[Group, int] = defaultdict(int)
        self._bytes: defaultdict[Group, int] = defaultdict(int)
        self._written: list[FileEntry] = []
        self._folders: set[Path] = set()

    def add(self, rows: pa.Table) -> None:
        """Take rows over, which have the columns of the schema in any order."""
        if rows.num_rows == 0:
            return
        for group, piece in self._layout.split(rows.select(self._schema.names).cast(self._schema)):
            self._pending[group].append(piece)
            self._rows[group] += piece.num_rows
            self._bytes[group] += piece.nbytes
            if self._rows[group] >= _FILE_ROWS:
                self._write(group)
        while sum(self._bytes.values()) > _BUFFERED_BYTES:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self, *, empty: bool = False) -> tuple[FileEntry, ...]:
        """Write what is left, and return all files; with ``empty``, one without rows if there are none."""
        for group in sorted(self._pending):
            self._write(group)
        if empty and not self._written:
            self._pending[Group("", 0)].append(self._schema.empty_table())
            self._write(Group("", 0))
        for folder in self._folders:
            sync_folder(folder)
        return tuple(self._written)

    def discard(self) -> None:
        """Remove all files: they will never be named."""
        for file in self._written:
            (self._folder / file.path).unlink(missing_ok=True)

    def _write(self, group: Group) -> None:
        rows = pa.concat_tables(self._pending.pop(group))
        for counted in (self._rows, self._bytes):
            counted.pop(group, None)
        name = f"part-{self._commit_id}-{len(self._written)}.parquet"
        relative = f"{group.directory}/{name}".lstrip("/")
        path = self._folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                pq.write_table(rows, file, compression="zstd", write_statistics=True)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # or a full disk stays full
            raise
        self._folders |= {folder for folder in path.parents if folder.is_relative_to(self._folder)}
        self._written.append(FileEntry(relative, rows.num_rows, path.stat().st_size, group.bucket))


def read_rows(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a data file in pieces."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            yield pa.Table.from_batches([batch])
