"""Stages data files that this process wrote: one commit, no JVM; ``branches`` reads and drops what it stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertCurrentSchemaId, AssertRefSnapshotId

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import (
    AssertStagedBranches,
    StagedBatch,
    changed_while_written,
    drop_staged,
    read_intact,
    staged_summary,
    taken,
)

FAIL_POINTS = ("stage-files.before-commit", "stage-files.after-commit")


def stage_files(
    shard: Shard,
    files: Sequence[DataFile],
    *,
    branch: str,
    fingerprint: str,
    schema_id: int,
    replaces: bool = True,
    check: Callable[[ShardHead], None] = lambda _head: None,
) -> StagedBatch:
    """Put written data files onto ``branch``; main and updates stay as they are.

    A branch of that name that is intact and has the same fingerprint is taken as it is, and ``files`` are left to
    orphan removal; any other is dropped and staged again.

    Args:
        shard: The shard that will publish the files.
        files: As ``write_rows`` returned them; may be empty.
        branch: A name made by ``branch_name``.
        fingerprint: Names what is staged; not empty.
        schema_id: The schema that the files were written with.
        replaces: Whether another batch on a branch of that name is dropped, or this batch refused.
        check: Called with the fresh head of an attempt, which the commit then requires; raises to refuse.

    Raises:
        InputsGone: If the schema changed since the files were written, or the branch is another's.
        ConflictsUnsettled: If other commits kept winning.
    """
    head = shard.load()
    if branch in head.staged_branches:
        if present := read_intact(head.table, branch, fingerprint, of_present_schema=False):
            return present
        if not replaces:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} is another's")
        drop_staged(shard, [branch], seen=head)
    for attempt in attempts_beside(shard, f"staging branch {branch!r}"):
        with attempt:
            head = shard.load()
            if branch in head.staged_branches and read_intact(head.table, branch, fingerprint, of_present_schema=False):
                break  # staged meanwhile, or an attempt of unknown outcome landed after all
            check(head)
            if branch in head.staged_branches:
                raise taken(shard, branch)
            _commit_batch(shard, head, files, branch=branch, fingerprint=fingerprint, schema_id=schema_id)
    fail_point("stage-files.after-commit")
    head = shard.load()
    staged = None
    if branch in head.staged_branches:
        staged = read_intact(head.table, branch, fingerprint, of_present_schema=False)
    if staged is None:
        raise changed_while_written(shard, branch)
    return staged


def _commit_batch(
    shard: Shard, head: ShardHead, files: Sequence[DataFile], *, branch: str, fingerprint: str, schema_id: int
) -> None:
    metadata = head.table.metadata
    if schema_id != metadata.current_schema_id:
        raise InputsGone(
            f"shard {shard.name!r} has schema {metadata.current_schema_id} by now, the files were written "
            f"for schema {schema_id}",
            hint="write them again",
        )
    builder = SnapshotBuilder(head.table, commit_uuid=uuid4(), attempt=1)
    summary = staged_summary(fingerprint, schema_id)
    snapshot = builder.build(None, SnapshotChange(operation=Operation.APPEND, added=tuple(files), summary=summary))
    requirements = (
        AssertCurrentSchemaId(current_schema_id=schema_id),
        AssertLastSequenceNumber.of(metadata),
        AssertStagedBranches(branches=head.staged_branches),
        AssertRefSnapshotId(ref=branch, snapshot_id=None),
    )
    updates = (AddSnapshotUpdate(snapshot=snapshot), set_ref(branch, snapshot, SnapshotRefType.BRANCH))
    fail_point("stage-files.before-commit")
    commit_beside(shard, head, requirements, updates, written=builder.written)
