"""Merges many small staged files into a few, so that a flush does not leave its readers a file per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from tidemark.errors import DamagedBatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_rows

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

SMALL_BYTES = 4 * 1024 * 1024  # larger files are as good as they are
TOTAL_BYTES = 64 * 1024 * 1024  # read into this process at once
MIN_FILES = 8


def merge_small_files(table: Table, batches: Sequence[Batch]) -> tuple[list[Batch], tuple[DataFile, ...]]:
    """Return the batches with their small files put into new ones, and the new ones, of which nothing is visible yet.

    The rows stay as they are, whose batch they are too; ranges and branches stay with their batches. The files that
    are replaced belong to snapshots of the branches, and go when these expire.

    Raises:
        DamagedBatch: If the new files do not hold as many rows as the old ones.
    """
    small = _choose(batches)
    if len(small) < MIN_FILES:
        return list(batches), ()
    # By field ids, whatever schema each file was written with.
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file) for file in small])
    merged = write_rows(table, rows)
    written, staged = sum(file.record_count for file in merged), sum(file.record_count for file in small)
    if written != staged:
        raise DamagedBatch(f"{len(small)} staged files hold {written} rows, not the {staged} they were staged with")
    replaced = {file.file_path for file in small}
    rest = [
        replace(batch, added=tuple(file for file in batch.added if file.file_path not in replaced)) for batch in batches
    ]
    return [*rest, Batch(added=merged, schema_id=table.metadata.current_schema_id)], merged


def _choose(batches: Sequence[Batch]) -> list[DataFile]:
    """Return the small files in the order of their batches, as many as fit into memory."""
    chosen: list[DataFile] = []
    total = 0
    for batch in batches:
        for file in batch.added:
            if file.file_size_in_bytes <= SMALL_BYTES and total + file.file_size_in_bytes <= TOTAL_BYTES:
                chosen.append(file)
                total += file.file_size_in_bytes
    return chosen
