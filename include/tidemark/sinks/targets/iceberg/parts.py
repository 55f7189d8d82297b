"""Data files of a first load that many processes write, into a folder of that load alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyarrow.fs import FileSelector
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata

from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.files.manifests import filesystem_of, listed_files, read_manifests
from tidemark.sinks.target import PartedLoad, PartWriter
from tidemark.sinks.targets.batches import gather, project
from tidemark.sinks.targets.iceberg.catalogs import answering

_FOLDER = "tidemark-load-"
_LOAD = re.compile(_FOLDER + r"(\d+)-[0-9a-f-]{36}")

CommitFiles = Callable[[tuple[DataFile, ...]], Table]  # returns the table as the commit left it


@dataclass(frozen=True, slots=True)
class IcebergPartWriter(PartWriter):
    """Writes data files; ``io`` has the logins of the store."""

    title: str
    metadata: TableMetadata
    io: FileIO

    def write(self, number: int, rows: Iterator[pa.Table]) -> tuple[DataFile, ...]:  # noqa: ARG002 - names are unique
        table = Table((), self.metadata, "", self.io, NoopCatalog("none"))
        schema = arrow_schema(table)
        with answering(self.title):
            return tuple(file for piece in gather(rows) for file in write_rows(table, project(piece, schema)))


class IcebergLoad(PartedLoad):
    """Implements ``PartedLoad`` for ``table``, which may be one that the commit makes."""

    def __init__(self, table: Table, *, epoch: int, title: str, commit: CommitFiles) -> None:
        self._table, self._commit, self._epoch = table, commit, epoch
        self._folder = f"{table.location_provider().data_path}/{_FOLDER}{epoch}-{uuid4()}"
        properties = {**table.metadata.properties, TableProperties.WRITE_DATA_PATH: self._folder}
        metadata = table.metadata.model_copy(update={"properties": properties})
        self.writer = IcebergPartWriter(title, metadata, table.io)

    def commit(self, parts: Sequence[tuple[DataFile, ...]]) -> int:
        files = tuple(file for part in parts for file in part)
        table = self._commit(files)
        with suppress(OSError):  # else the next load finds them, or the removal of orphans
            remove_lost_files(table, epoch=self._epoch)
        return sum(file.record_count for file in files)

    def discard(self) -> None:
        filesystem, path = filesystem_of(self._table, self._folder)
        with suppress(OSError):
            filesystem.delete_dir(path)


def remove_lost_files(table: Table, *, epoch: int) -> None:
    """Delete files of loads that no snapshot names, once a load of ``epoch`` has landed: older ones never will.

    Nor will others of the same epoch, which two runs have if there was no table. A later load has a larger epoch.
    """
    filesystem, folder = filesystem_of(table, table.location_provider().data_path)
    listed = listed_files(table, read_manifests(table, table.metadata.snapshots).values())
    named = {path.rpartition("/")[2] for path in listed}  # names hold a UUID; paths come in several forms
    for load in filesystem.get_file_info(FileSelector(folder, allow_not_found=True)):
        match = _LOAD.fullmatch(load.base_name)
        if match is None or int(match[1]) > epoch:
            continue
        for file in filesystem.get_file_info(FileSelector(load.path, recursive=True)):
            if file.is_file and file.base_name not in named:
                filesystem.delete_file(file.path)
