"""Removes rows of an append-only shard, or replaces them: whole files, and other rows by position deletes.

One commit, of the kind ``retain`` or ``correct``, moves the upper, so the contents at times that were readable before
do not change. The ledgers stay: a range without its rows is still published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.publisher import Proposal, Publication, Published
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_position_deletes
from tidemark.iceberg.files.manifests import read_data_files, read_delete_files
from tidemark.iceberg.files.row_positions import as_delete_rows
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind

FAIL_POINTS = ("retain.after-write", "retain.after-publish")
Describe = Callable[[ShardHead], Mapping[str, str]]  # the table properties that a commit on top of a head sets
POSITIONS_AT_ONCE = 1_000_000  # as Arrow strings with their paths: some 200 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Rows to remove, by their places in the contents of one head."""

    dropped: frozenset[str] = frozenset()  # data files that lose all rows
    positions: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # by data file, from 0
    rows: int = 0  # live ones, of both
    # Rows deleted before, by delete file and data file. Delete files that name a dropped file are rewritten without
    # that file, so that records less deletes stays the number of rows.
    deletes: Mapping[str, Mapping[str, NDArray[np.int64]]] = field(default_factory=dict)

    @property
    def replaced_deletes(self) -> frozenset[str]:
        return frozenset(path for path, named in self.deletes.items() if self.dropped & named.keys())

    def change(self, table: Table, snapshot: Snapshot, operation: Operation) -> SnapshotChange:
        """Write the position deletes, and return the change of ``snapshot``."""
        live = read_data_files(table.io, snapshot)
        deletes = tuple(
            file
            for positions in _in_pieces(self)
            for file in write_position_deletes(table, as_delete_rows(positions), live)
        )
        return SnapshotChange(operation=operation, deletes=deletes, removed=self.dropped | self.replaced_deletes)


def remove_rows(writer: Writer, head: ShardHead, removal: Removal, *, now_ms: int) -> Published:
    """Publish a removal that was computed from ``head``; rows appended since stay. The new upper is above ``now_ms``.

    Raises:
        InputsGone: If a file to change was rewritten, or other rows were deleted meanwhile: compute the removal again.
        Fenced: If a larger token owns the shard.
        Sealed: If the shard is sealed.
        ConflictsUnsettled: If other commits kept winning.
    """
    change = removal.change(head.table, head.contents, Operation.DELETE)
    fail_point("retain.after-write")
    published = _publish(writer, head, [(removal, change)], kind=CommitKind.RETAIN, now_ms=now_ms)
    fail_point("retain.after-publish")
    return published


@dataclass(frozen=True, slots=True)
class Replacement:
    """A removal, and the files that take the place of its rows."""

    removal: Removal
    added: tuple[DataFile, ...] = ()

    def change(self, table: Table, snapshot: Snapshot | None) -> SnapshotChange:
        if snapshot is None:
            return SnapshotChange(operation=Operation.APPEND, added=self.added)
        return replace(self.removal.change(table, snapshot, Operation.OVERWRITE), added=self.added)


def replace_rows(
    writer: Writer, head: ShardHead, main: Replacement, opened: Replacement, *, describe: Describe, now_ms: int
) -> Published:
    """Publish replacements of rows on main, and on the tag ``tidemark-open``; everything else as ``remove_rows``.

    ``describe`` may raise to refuse a head; ``InputsGone`` says that the removal is to be computed again.
    """
    changes = [
        (main.removal, main.change(head.table, head.contents)),
        (opened.removal, opened.change(head.table, head.open)),
    ]
    return _publish(writer, head, changes, kind=CommitKind.CORRECT, describe=describe, now_ms=now_ms)


def _publish(
    writer: Writer,
    head: ShardHead,
    changes: Sequence[tuple[Removal, SnapshotChange]],
    *,
    kind: CommitKind,
    describe: Describe = lambda _head: {},
    now_ms: int,
) -> Published:
    """Publish the changes of main, and of the tag ``tidemark-open`` if there is one more."""
    (_, main), *others = changes
    opened = next((change for _, change in others if change.changes_files), None)
    publication = Publication(writer.shard)
    try:
        for fresh in publication.heads():
            writer.check_token(fresh)
            looked_at = ((head.contents, fresh.contents), (head.open, fresh.open))
            for (removal, _), (before, now) in zip(changes, looked_at, strict=False):
                _check_inputs(head.table, before, now, removal)
            state = publication.next_state(fresh.state, kind, upper=fresh.state.next_upper(now_ms))
            proposal = Proposal(state=state, main=main, open=opened, set_properties=describe(fresh))
            publication.commit(fresh, proposal)
    except InputsGone:
        delete_files(head.table, [file.file_path for _, change in changes for file in change.deletes])
        raise
    return publication.published


def _check_inputs(table: Table, before: Snapshot | None, now: Snapshot | None, removal: Removal) -> None:
    if before is None or now is None or before.snapshot_id == now.snapshot_id:
        return
    deletes = frozenset(read_delete_files(table.io, now))
    if deletes != removal.deletes.keys():
        raise InputsGone("rows were deleted by another process meanwhile")
    if missing := (removal.dropped | removal.positions.keys()) - read_data_files(table.io, now).keys():
        raise InputsGone(f"{len(missing)} files were rewritten meanwhile, for example {min(missing)}")


def _in_pieces(removal: Removal) -> Iterator[dict[str, NDArray[np.int64]]]:
    """Yield the positions to delete, some files at a time: new ones, and those of replaced delete files."""
    gathered = {path: [positions] for path, positions in removal.positions.items()}
    for delete_file in removal.replaced_deletes:
        for path, positions in removal.deletes[delete_file].items():
            if path not in removal.dropped:
                gathered.setdefault(path, []).append(positions)
    piece: dict[str, NDArray[np.int64]] = {}
    for path in sorted(gathered):
        piece[path] = np.concatenate(gathered[path])
        if sum(map(len, piece.values())) >= POSITIONS_AT_ONCE:
            yield piece
            piece = {}
    if piece:
        yield piece
