"""Expiry: snapshots that nobody needs any more leave the metadata, and files that only they had are deleted.

Neither Spark's ``expire_snapshots`` nor pyiceberg's: both go by age and count, and know nothing of ``since`` and holds;
pyiceberg's ``older_than`` even takes everything that is not the head of a ref (reference: iceberg_staging §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    ValidatableTableRequirement,
)

from tidemark.fail_points import fail_point
from tidemark.frontier import parse_frontier
from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside, delete_files
from tidemark.iceberg.commit.checks import check_token
from tidemark.iceberg.files.manifests import SnapshotFiles, listed_files, live_files
from tidemark.iceberg.shard.head import OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.time_travel import ancestry

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.head import ShardHead

FAIL_POINTS = ("expire.before-commit", "expire.after-commit", "expire.between-deletions")


class AssertSnapshotsAndRefs(ValidatableTableRequirement):
    """Nobody added a snapshot or moved a ref since it was decided which snapshots nobody needs."""

    type: Literal["assert-snapshots-and-refs"] = "assert-snapshots-and-refs"
    snapshot_ids: frozenset[int]
    refs: dict[str, int]

    @classmethod
    def of(cls, metadata: TableMetadata) -> AssertSnapshotsAndRefs:
        return cls(
            snapshot_ids=frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots),
            refs={name: ref.snapshot_id for name, ref in metadata.refs.items()},
        )

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or self.of(base_metadata) != self:
            raise CommitFailedException("Requirement failed: a snapshot was added or a ref was moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What one expiry did."""

    snapshots: int = 0
    files: int = 0


def expire(writer: Writer, *, older_than_ms: int) -> Expiry:
    """Take snapshots out of the metadata that no time in ``[since, upper)`` needs, and delete the files only they had.

    Kept are: every ref's snapshot, staging branches, the way from main down to the snapshot that holds the contents at
    since (without gaps, or it would not be found), and whatever was superseded after ``older_than_ms``, because
    somebody may still be reading it.

    Args:
        writer: Whose token must still be the largest.
        older_than_ms: Only snapshots superseded before this time go; ms since the Unix epoch.

    Raises:
        Fenced: If a larger token owns the shard.
        ConflictsUnsettled: If other commits kept winning.
    """
    shard = writer.shard
    for attempt in attempts_beside(shard, "the expiry of snapshots"):
        with attempt:
            head = shard.load()
            if not head.state.is_sealed:  # a sealed shard has no writers left to fence
                check_token(head.state, writer.token, shard=shard.name)
            expired = find_expired(head, older_than_ms=older_than_ms)
            if not expired:
                return Expiry()
            ids = {snapshot.snapshot_id for snapshot in expired}
            statistics = [
                RemoveStatisticsUpdate(**{"snapshot-id": file.snapshot_id})
                for file in head.table.metadata.statistics
                if file.snapshot_id in ids
            ]
            fail_point("expire.before-commit")
            removal = RemoveSnapshotsUpdate(**{"snapshot-ids": sorted(ids)})
            commit_beside(shard, head, [AssertSnapshotsAndRefs.of(head.table.metadata)], [*statistics, removal])
    fail_point("expire.after-commit")
    return Expiry(snapshots=len(expired), files=_delete_unreachable(head, expired))


def find_expired(head: ShardHead, *, older_than_ms: int) -> list[Snapshot]:
    """Return the snapshots that nobody needs, as ``expire`` says."""
    metadata = head.table.metadata
    needed = {ref.snapshot_id for ref in metadata.refs.values()}
    for branch in head.staged_branches:
        needed |= {snapshot.snapshot_id for snapshot in ancestry(metadata, metadata.refs[branch].snapshot_id)}
    for start in (head.main, head.contents):
        for snapshot in ancestry(metadata, start.snapshot_id):
            needed.add(snapshot.snapshot_id)
            lower = snapshot.summary["tidemark.lower"] if snapshot.summary else None
            if lower is not None and parse_frontier(lower) <= head.state.since:
                break
    if head.updates is not None:
        # The way down to our last own snapshot of the change log: without it, the head would look foreign.
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
    """Return when each snapshot got its first successor, from when on nobody new reads it; else when it was made."""
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
    kept = SnapshotFiles.of(
        table, [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in ids]
    )
    dropped = SnapshotFiles.of(table, expired)
    manifests = [manifest for path, manifest in dropped.manifests.items() if path not in kept.manifests]
    candidates = listed_files(table, manifests)
    files = candidates - live_files(table, kept.manifests.values()) if candidates else set()
    digests = {file.statistics_path for file in table.metadata.statistics if file.snapshot_id in ids}
    digests -= {file.statistics_path for file in table.metadata.statistics if file.snapshot_id not in ids}
    deleted = delete_files(table, sorted(files | digests))
    fail_point("expire.between-deletions")
    lists = sorted(dropped.manifest_lists - kept.manifest_lists)
    return deleted + delete_files(table, [*(manifest.manifest_path for manifest in manifests), *lists])
