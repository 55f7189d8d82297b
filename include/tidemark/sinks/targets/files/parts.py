"""Data files of a first load that many processes write, each group of rows by one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.sinks.target import Extent, Grouping, PartedLoad, PartWriter
from tidemark.sinks.targets.batches import gather, project
from tidemark.sinks.targets.files.folder import reaching
from tidemark.sinks.targets.files.manifest import FileEntry
from tidemark.sinks.targets.files.partitions import Layout, count_buckets
from tidemark.sinks.targets.files.writing import FileWriter

CommitFiles = Callable[[tuple[FileEntry, ...], int], int]  # takes the files and the number of buckets


@dataclass(frozen=True)
class FileGrouping(Grouping):
    """Rows of one partition and one bucket belong together, or small files would be as many as parts times groups."""

    layout: Layout
    schema: pa.Schema
    count: int

    def number(self, rows: pa.Table) -> NDArray[np.int64]:
        return self.layout.group_hashes(project(rows, self.schema))


@dataclass(frozen=True)
class FilePartWriter(PartWriter):
    """Writes Parquet files below ``folder``, which every process sees under this name."""

    folder: Path
    layout: Layout
    schema: pa.Schema
    grouping: FileGrouping | None

    def write(self, number: int, rows: Iterator[pa.Table]) -> tuple[FileEntry, ...]:  # noqa: ARG002 - names are unique
        writer = FileWriter(self.folder, str(uuid4()), self.schema, self.layout)
        with reaching():
            try:
                for piece in gather(rows):
                    writer.add(project(piece, self.schema))
                return writer.finish()
            except Exception:
                writer.discard()
                raise


class FilesLoad(PartedLoad):
    """Implements ``PartedLoad``; ``layout`` is that of one bucket."""

    def __init__(self, folder: Path, layout: Layout, schema: pa.Schema, extent: Extent, *, commit: CommitFiles) -> None:
        self._commit, self._folder = commit, folder
        self._buckets = count_buckets(extent.rows, extent.partitions) if layout.key else 1
        layout = replace(layout, buckets=self._buckets)
        count = self._buckets * extent.partitions
        self.writer = FilePartWriter(folder, layout, schema, FileGrouping(layout, schema, count) if count > 1 else None)
        self._parts: Sequence[tuple[FileEntry, ...]] = ()

    def commit(self, parts: Sequence[tuple[FileEntry, ...]]) -> int:
        self._parts = parts
        return self._commit(tuple(file for part in parts for file in part), self._buckets)

    def discard(self) -> None:
        """Remove the files that the commit would have named; a later run removes others when they are an hour old."""
        for file in (file for part in self._parts for file in part):
            (self._folder / file.path).unlink(missing_ok=True)
