"""A batch: files that are written and not yet visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files of one writer that one publish makes visible.

    ``added`` files become visible on ``main`` (and on ``updates`` of a differential shard), ``retracted`` files hold
    ``_diff = -1`` and go to ``updates`` only, ``deletes`` are position deletes of the retracted rows,
    for ``main`` only.
    """

    added: tuple[DataFile, ...] = ()
    retracted: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    pinned_snapshot_id: int | None = None  # the snapshot of main whose rows the deletes name
    deleted_from: frozenset[str] = frozenset()  # data files that the deletes name
    schema_id: int | None = None  # the schema the files were made for; None: whichever is current
    branches: tuple[tuple[str, int], ...] = ()  # staging branches and their snapshots, removed by the same commit
    producer: str | None = None
    range: Range | None = None
    is_open: bool = False  # whether the added files go onto the tag ``tidemark-open`` in the place of main

    @property
    def inserted_rows(self) -> int:
        return sum(file.record_count for file in self.added)

    @property
    def retracted_rows(self) -> int:
        return sum(file.record_count for file in self.retracted)


def main_change(batches: Sequence[Batch]) -> SnapshotChange:
    """Return the change of ``main`` that publishes ``batches``."""
    deletes = tuple(file for batch in batches for file in batch.deletes)
    return SnapshotChange(
        operation=Operation.OVERWRITE if deletes else Operation.APPEND,
        added=tuple(file for batch in batches if not batch.is_open for file in batch.added),
        deletes=deletes,
    )


def open_change(batches: Sequence[Batch]) -> SnapshotChange | None:
    """Return the change of the tag ``tidemark-open`` that publishes ``batches``; None if there is none."""
    files = tuple(file for batch in batches if batch.is_open for file in batch.added)
    return SnapshotChange(operation=Operation.APPEND, added=files) if files else None


def updates_change(batches: Sequence[Batch], layout: ShardKind) -> SnapshotChange | None:
    """Return the change of the change log that publishes ``batches``; None if there is none."""
    files = tuple(file for batch in batches for file in (*batch.added, *batch.retracted))
    if layout is not ShardKind.DIFFERENTIAL or not files:
        return None
    return SnapshotChange(operation=Operation.APPEND, added=files)
