"""Expiry removes unneeded snapshots from the metadata, and deletes the files that only these snapshots had.

Neither Spark's nor pyiceberg's expiry will do: both go by age and count, and ignore ``since`` and holds; pyiceberg's
``older_than`` even removes every snapshot that is not the head of a ref (reference: iceberg_staging §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tidemark.fail_points import fail_point
from tidemark.frontier import parse_frontier
from tidemark.iceberg.commit.branch_commit import (
    AssertSnapshotsAndRefs,
    attempts_beside,
    commit_beside,
    delete_files,
    remove_snapshots,
)
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.manifests import listed_files, read_manifests
from tidemark.iceberg.shard.head import OWN_UPDATES, UPDATES, ShardHead
from tidemark.iceberg.shard.time_travel import ancestry, only_reached_by

FAIL_POINTS = ("expire.before-commit", "expire.after-commit", "expire.between-deletions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What one expiry did."""

    snapshots: int = 0
    files: int = 0


def expire(writer: Writer, *, older_than_ms: int, branch: str | None = None) -> Expiry:
    """Remove the snapshots that no time in ``[since, upper)`` needs, and delete the files of these snapshots alone.

    ``branch`` names one whose history alone is removed; None: everything.

    Kept are: the snapshot of every ref, staging branches, all snapshots from main down to the one with the contents at
    since (a gap would hide that snapshot), and snapshots superseded after ``older_than_ms`` (ms since the Unix epoch),
    because somebody may still be reading them.

    Raises:
        Fenced: If a larger token owns the shard.
        ConflictsUnsettled: If other commits kept winning.
    """
    shard = writer.shard
    for attempt in attempts_beside(shard, "the expiry of snapshots"):
        with attempt:
            head = shard.load()
            if not head.state.is_sealed:  # a sealed shard has no writers left to fence
                writer.check_token(head)
            expired = find_expired(head, older_than_ms=older_than_ms)
            if branch is not None:
                own = {snapshot.snapshot_id for snapshot in only_reached_by(head.table.metadata, [branch])}
                expired = [snapshot for snapshot in expired if snapshot.snapshot_id in own]
            if not expired:
                return Expiry()
            fail_point("expire.before-commit")
            unmoved = AssertSnapshotsAndRefs.of(head.table.metadata)
            commit_beside(shard, head, [unmoved], [remove_snapshots(expired)])
    fail_point("expire.after-commit")
    return Expiry(snapshots=len(expired), files=_delete_unreachable(head, expired))


def find_expired(head: ShardHead, *, older_than_ms: int) -> list[Snapshot]:
    """Return the snapshots that nobody needs, as ``expire`` says."""
    metadata = head.table.metadata
    needed = {ref.snapshot_id for ref in metadata.refs.values()}
    needed |= {snapshot.snapshot_id for snapshot in only_reached_by(metadata, head.staged_branches)}
    for start in (head.main, head.contents):
        for snapshot in ancestry(metadata, start.snapshot_id):
            needed.add(snapshot.snapshot_id)
            lower = snapshot.summary["tidemark.lower"] if snapshot.summary else None
            if lower is not None and parse_frontier(lower) <= head.state.since:
                break
    if head.updates is not None:
        # Keep all snapshots down to our last own one of the change log: with a gap, the head would look foreign.
        own_id = metadata.refs[OWN_UPDATES].snapshot_id
        for snapshot in ancestry(metadata, metadata.refs[UPDATES].snapshot_id):
            needed.add(snapshot.snapshot_id)
            if snapshot.snapshot_id == own_id:
                break
    superseded_ms = _superseded_ms(metadata)
    return [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in needed and superseded_ms[snapshot.snapshot_id] < older_than_ms
    ]


def _superseded_ms(metadata: TableMetadata) -> dict[int, int]:
    """Return when a snapshot got its first successor, after which it gets no new reader; else its own time."""
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    successors: dict[int, int] = {}
    for snapshot in metadata.snapshots:
        parent = snapshot.parent_snapshot_id
        if parent in times:
            successors[parent] = min(snapshot.timestamp_ms, successors.get(parent, snapshot.timestamp_ms))
    return times | successors


def _delete_unreachable(head: ShardHead, expired: list[Snapshot]) -> int:
    """Delete the files that only ``expired`` refer to; after a crash in here, orphan removal finds the rest."""
    table = head.table
    ids = {snapshot.snapshot_id for snapshot in expired}
    kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in ids]
    kept_manifests = read_manifests(table, kept)
    dropped = read_manifests(table, expired)
    manifests = [manifest for path, manifest in dropped.items() if path not in kept_manifests]
    candidates = listed_files(table, manifests)
    files = candidates - listed_files(table, kept_manifests.values(), live_only=True) if candidates else set()
    digests = {file.statistics_path for file in table.metadata.statistics if file.snapshot_id in ids}
    digests -= {file.statistics_path for file in table.metadata.statistics if file.snapshot_id not in ids}
    deleted = delete_files(table, sorted(files | digests))
    fail_point("expire.between-deletions")
    lists = {snapshot.manifest_list for snapshot in expired} - {snapshot.manifest_list for snapshot in kept}
    return deleted + delete_files(table, [*(manifest.manifest_path for manifest in manifests), *sorted(lists)])
