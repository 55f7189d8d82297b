"""Stages data files that this process wrote: one commit, no JVM; the branch is what ``staging`` reads and drops."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertCurrentSchemaId, AssertRefSnapshotId, AssertTableUUID

from tidemark.errors import ConflictsUnsettled, InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import commit_beside
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange, last_sequence_number
from tidemark.iceberg.staging.branches import AssertStagedBranches, drop_staged, read_intact, staged_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.manifest import DataFile

    from tidemark.iceberg.commit.branch_commit import Change
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch

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
        replaces: Whether another batch on a branch of that name is dropped; otherwise it refuses this one.
        check: Called with each fresh head before the commit, whose requirements then hold against that very head;
            raises to refuse.

    Raises:
        InputsGone: If the schema changed since the files were written, or the branch is another's.
        ConflictsUnsettled: If other commits kept winning.
    """
    written: list[str] = []

    def decide(head: ShardHead, attempt: int) -> Change | None:
        table = head.table
        if branch in head.staged_branches and read_intact(table, branch, fingerprint, of_present_schema=False):
            return None  # staged meanwhile, or an attempt of unknown outcome landed after all
        check(head)
        if branch in head.staged_branches:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} was taken by another process")
        if schema_id != table.metadata.current_schema_id:
            raise InputsGone(
                f"shard {shard.name!r} has schema {table.metadata.current_schema_id} by now, the files were written "
                f"for schema {schema_id}",
                hint="write them again",
            )
        builder = SnapshotBuilder(table, commit_uuid=uuid4(), attempt=attempt)
        change = SnapshotChange(
            operation=Operation.APPEND, added=tuple(files), summary=staged_summary(fingerprint, schema_id)
        )
        snapshot = builder.build(None, change)
        written.extend(builder.written)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=schema_id),
            AssertLastSequenceNumber(last_sequence_number=last_sequence_number(table.metadata)),
            AssertStagedBranches(branches=head.staged_branches),
            AssertRefSnapshotId(ref=branch, snapshot_id=None),
        )
        fail_point("stage-files.before-commit")
        return requirements, (AddSnapshotUpdate(snapshot=snapshot), set_ref(branch, snapshot, SnapshotRefType.BRANCH))

    head = shard.load()
    if branch in head.staged_branches:
        present = read_intact(head.table, branch, fingerprint, of_present_schema=False)
        if present is not None:
            return present
        if not replaces:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} is another's")
        drop_staged(shard, [branch], seen=head)
    commit_beside(shard, decide, what=f"staging branch {branch!r}", written=written)
    fail_point("stage-files.after-commit")
    head = shard.load()
    staged = (
        read_intact(head.table, branch, fingerprint, of_present_schema=False)
        if branch in head.staged_branches
        else None
    )
    if staged is None:
        raise ConflictsUnsettled(
            f"staging branch {branch!r} of {shard.name!r} was changed by another process while it was written",
            hint="run it again",
        )
    return staged
