"""Removes rows of an append-only shard for good: whole files, and other rows by position deletes, in one commit.

The commit has the kind ``retain`` and moves the upper, so the contents at times that were readable before do not
change. The ledgers stay: a range without its rows is still published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyiceberg.table.snapshots import Operation

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


def remove_rows(writer: Writer, head: ShardHead, removal: Removal, *, now_ms: int) -> Published:
    """Publish a removal that was computed from ``head``; rows appended since stay. The new upper is above ``now_ms``.

    Raises:
        InputsGone: If a file to change was rewritten, or other rows were deleted meanwhile: compute the removal again.
        Fenced: If a larger token owns the shard.
        Sealed: If the shard is sealed.
        ConflictsUnsettled: If other commits kept winning.
    """
    shard, io = writer.shard, head.table.io
    live = read_data_files(io, head.contents)
    deletes = tuple(
        file
        for positions in _in_pieces(removal)
        for file in write_position_deletes(head.table, as_delete_rows(positions), live)
    )
    removed = removal.dropped | removal.replaced_deletes
    change = SnapshotChange(operation=Operation.DELETE, deletes=deletes, removed=removed)
    fail_point("retain.after-write")
    publication = Publication(shard)
    try:
        for fresh in publication.heads():
            writer.check_token(fresh)
            _check_inputs(head, fresh, removal)
            state = publication.next_state(fresh.state, CommitKind.RETAIN, upper=fresh.state.next_upper(now_ms))
            publication.commit(fresh, Proposal(state=state, main=change))
    except InputsGone:
        delete_files(head.table, [file.file_path for file in deletes])
        raise
    fail_point("retain.after-publish")
    return publication.published


def _check_inputs(head: ShardHead, fresh: ShardHead, removal: Removal) -> None:
    if fresh.contents.snapshot_id == head.contents.snapshot_id:
        return
    io = fresh.table.io
    deletes = frozenset(read_delete_files(io, fresh.contents))
    if deletes != removal.deletes.keys():
        raise InputsGone("rows were deleted by another process meanwhile")
    if missing := (removal.dropped | removal.positions.keys()) - read_data_files(io, fresh.contents).keys():
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
