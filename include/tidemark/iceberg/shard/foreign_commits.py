"""Commits on a shard that another engine made: harmless file replacements, and everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot


@dataclass(frozen=True, slots=True)
class ForeignCommits:
    """Commits of another engine on a branch, above or instead of our last own snapshot, that change its rows."""

    snapshot_ids: tuple[int, ...]  # newest first; empty if the branch was moved back without a new snapshot
    rows: int  # how many rows more (or, below 0, fewer) the branch shows than our own last snapshot
    # At most how many rows these commits wrote, which a reset drops. An engine that copies a file to delete from it
    # wrote the copied rows, too, and no summary tells copied rows from new ones.
    added: int
    lies_on_own: bool  # False: main was moved by hand, and our last snapshot is not below it any more

    def __str__(self) -> str:
        what = f"{len(self.snapshot_ids)} foreign commits" if self.snapshot_ids else "a branch moved by hand"
        return f"{what}, {self.rows:+d} rows: {self.added} written, {self.added - self.rows} taken away"


def count_rows(snapshot: Snapshot) -> int:
    """Return the live rows of a snapshot by its summary: records less position deletes."""
    if snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-records"] or 0) - int(snapshot.summary["total-position-deletes"] or 0)


def find_foreign_commits(io: FileIO, metadata: TableMetadata, head: Snapshot, own: Snapshot) -> ForeignCommits | None:
    """Walk from ``head`` down to ``own``; None if only file replacements (which keep all rows) lie between.

    ``rewrite_data_files`` and its like commit replacements; the specification promises that these leave the rows as
    they are. Any other commit is foreign, and so is a head that does not lead down to ``own``. If an expiry removed
    replacements in between, the older metadata files still describe them.
    """
    way, reached = _way_down(_by_id(metadata), head, lambda snapshot: snapshot.snapshot_id == own.snapshot_id)
    if not reached and _is_replacement(head):
        older = _by_id(metadata, *_older(io, metadata))
        way, reached = _way_down(older, head, lambda snapshot: snapshot.snapshot_id == own.snapshot_id)
    if reached and all(_is_replacement(snapshot) for snapshot in way):
        return None
    walked = way
    if not reached:  # own is not an ancestor: the foreign snapshots end above the first one with our mark
        way, _ = _way_down(_by_id(metadata), head, is_marked)
        walked = way[:1]
    rows = count_rows(head) - count_rows(own)
    ids = tuple(snapshot.snapshot_id for snapshot in walked)
    return ForeignCommits(ids, rows, max(0, rows, _count_added(way)), lies_on_own=reached)


def _count_added(way: Iterable[Snapshot]) -> int:
    """Return the number of rows that the snapshots wrote; a replacement counts 0."""
    summaries = (snapshot.summary for snapshot in way if not _is_replacement(snapshot))
    return sum(int(summary["added-records"] or 0) for summary in summaries if summary is not None)


def _way_down(
    snapshots: Mapping[int, Snapshot], head: Snapshot, is_end: Callable[[Snapshot], bool]
) -> tuple[list[Snapshot], bool]:
    """Return the snapshots from ``head`` down to the end (exclusive), newest first, and whether there was an end."""
    way: list[Snapshot] = []
    snapshot = snapshots.get(head.snapshot_id)  # an older version of the head may still know its parent
    while snapshot is not None and not is_end(snapshot):
        way.append(snapshot)
        snapshot = snapshots.get(snapshot.parent_snapshot_id or -1)
    return way, snapshot is not None


def is_marked(snapshot: Snapshot) -> bool:
    """Tell whether a snapshot is one of ours."""
    return snapshot.summary is not None and snapshot.summary["tidemark.kind"] is not None


def _is_replacement(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE


def _by_id(*versions: TableMetadata) -> dict[int, Snapshot]:
    """Return the snapshots of all ``versions`` (newest first); older versions still know parents that were expired."""
    by_id: dict[int, Snapshot] = {}
    for metadata in versions:
        for snapshot in metadata.snapshots:
            known = by_id.get(snapshot.snapshot_id)
            if known is None or known.parent_snapshot_id is None:
                by_id[snapshot.snapshot_id] = snapshot
    return by_id


def _older(io: FileIO, metadata: TableMetadata) -> Iterator[TableMetadata]:
    """Yield the older versions of the metadata that still exist, newest first."""
    for entry in reversed(metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(io.new_input(entry.metadata_file))
        except FileNotFoundError:
            return
