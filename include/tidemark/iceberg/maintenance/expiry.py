"""Expiry: snapshots that nobody needs any more leave the metadata, and files that only they had are deleted.

Neither Spark's ``expire_snapshots`` nor pyiceberg's: both go by age and count, and know nothing of ``since`` and holds;
pyiceberg's ``older_than`` even takes everything that is not the head of a ref (reference: iceberg_staging §2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import (
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    ValidatableTableRequirement,
)

from tidemark.fail_points import fail_point
from tidemark.frontier import parse_frontier
from tidemark.iceberg.commit.branch_commit import commit_beside, delete_files
from tidemark.iceberg.commit.checks import check_token
from tidemark.iceberg.files.snapshot_files import SnapshotFiles, listed_files, live_files
from tidemark.iceberg.shard.head import OWN_UPDATES, UPDATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.commit.branch_commit import Change
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
            snapshot_ids=frozenset(each.snapshot_id for each in metadata.snapshots),
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
    doomed: list[Snapshot] = []
    before: ShardHead | None = None

    def decide(head: ShardHead, _attempt: int) -> Change | None:
        nonlocal doomed, before
        if not head.state.is_sealed:  # a sealed shard has no writers left to fence
            check_token(head.state, writer.token, shard=shard.name)
        before, doomed = head, find_expired(head, older_than_ms=older_than_ms)
        if not doomed:
            return None
        ids = {each.snapshot_id for each in doomed}
        statistics = [
            RemoveStatisticsUpdate(**{"snapshot-id": each.snapshot_id})
            for each in head.table.metadata.statistics
            if each.snapshot_id in ids
        ]
        fail_point("expire.before-commit")
        requirements = (
            AssertTableUUID(uuid=head.table.metadata.table_uuid),
            AssertSnapshotsAndRefs.of(head.table.metadata),
        )
        return requirements, (*statistics, RemoveSnapshotsUpdate(**{"snapshot-ids": sorted(ids)}))

    commit_beside(shard, decide, what="the expiry of snapshots")
    if before is None or not doomed:
        return Expiry()
    fail_point("expire.after-commit")
    return Expiry(snapshots=len(doomed), files=_delete_unreachable(before, doomed))


def find_expired(head: ShardHead, *, older_than_ms: int) -> list[Snapshot]:
    """Return the snapshots that nobody needs, as ``expire`` says."""
    metadata = head.table.metadata
    needed = {ref.snapshot_id for ref in metadata.refs.values()}
    for branch in head.staged_branches:
        needed |= {each.snapshot_id for each in ancestry(metadata, metadata.refs[branch].snapshot_id)}
    for start in (head.main, head.contents):
        for each in ancestry(metadata, start.snapshot_id):
            needed.add(each.snapshot_id)
            lower = each.summary["tidemark.lower"] if each.summary else None
            if lower is not None and parse_frontier(lower) <= head.state.since:
                break
    if head.updates is not None:
        needed |= _replacements(metadata, metadata.refs[UPDATES].snapshot_id, metadata.refs[OWN_UPDATES].snapshot_id)
    superseded = _superseded_ms(metadata)
    return [
        each
        for each in metadata.snapshots
        if each.snapshot_id not in needed and superseded[each.snapshot_id] < older_than_ms
    ]


def _superseded_ms(metadata: TableMetadata) -> dict[int, int]:
    """Return when each snapshot got its first successor, from when on nobody new reads it; else when it was made."""
    times = {each.snapshot_id: each.timestamp_ms for each in metadata.snapshots}
    successors: dict[int, int] = {}
    for each in metadata.snapshots:
        parent = each.parent_snapshot_id
        if parent is not None:
            successors[parent] = min(each.timestamp_ms, successors.get(parent, each.timestamp_ms))
    return times | {id_: time for id_, time in successors.items() if id_ in times}


def ancestry(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they are kept."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None


def _replacements(metadata: TableMetadata, head_id: int, own_id: int) -> set[int]:
    """Return the way from a branch's head down to our last own snapshot: without it, the head would look foreign."""
    way: set[int] = set()
    for each in ancestry(metadata, head_id):
        way.add(each.snapshot_id)
        if each.snapshot_id == own_id:
            break
    return way


def _delete_unreachable(head: ShardHead, doomed: list[Snapshot]) -> int:
    """Delete what only ``doomed`` refer to; after a crash in here, orphan removal finds the rest."""
    table = head.table
    ids = {each.snapshot_id for each in doomed}
    kept = SnapshotFiles.of(table, [each for each in table.metadata.snapshots if each.snapshot_id not in ids])
    gone = SnapshotFiles.of(table, doomed)
    gone_manifests = [each for path, each in gone.manifests.items() if path not in kept.manifests]
    candidates = listed_files(table, gone_manifests)
    files = candidates - live_files(table, kept.manifests.values()) if candidates else set()
    digests = {each.statistics_path for each in table.metadata.statistics if each.snapshot_id in ids}
    digests -= {each.statistics_path for each in table.metadata.statistics if each.snapshot_id not in ids}
    deleted = delete_files(table, sorted(files | digests))
    fail_point("expire.between-deletions")
    manifests = [each.manifest_path for each in gone_manifests]
    return deleted + delete_files(table, [*manifests, *sorted(gone.manifest_lists - kept.manifest_lists)])
