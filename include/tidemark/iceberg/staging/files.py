"""Stages data files that this process wrote: one commit, no JVM; ``branches`` reads and drops what it stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCurrentSchemaId

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import AssertSnapshotsAndRefs, attempts_beside, commit_beside
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import (
    StagedBatch,
    drop_staged,
    put_on_branch,
    read_intact,
    read_just_staged,
    staged_summary,
    taken_error,
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
    """Put the data files that ``write_rows`` returned onto ``branch``; main and updates stay as they are.

    ``branch`` comes from ``branch_name``. ``schema_id`` is the schema that the files were written with.
    An intact branch of that name with the same ``fingerprint`` (not empty) is returned as it is, and orphan removal
    takes ``files``. Another batch on the branch is dropped, or, unless this batch ``replaces`` it, this batch is
    refused. ``check`` is called with the fresh head that the commit requires, and raises to refuse.

    Raises:
        InputsGone: If the schema changed since the files were written, or the branch is another's.
        ConflictsUnsettled: If other commits kept winning.
    """
    head = shard.load()
    if present := read_intact(head.table, branch, fingerprint, of_present_schema=False):
        return present
    if branch in head.staged_branches:
        if not replaces:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} is another's")
        drop_staged(shard, [branch], seen=head)
    summary = staged_summary(fingerprint, schema_id)
    change = SnapshotChange(operation=Operation.APPEND, added=tuple(files), summary=summary)
    for attempt in attempts_beside(shard, f"staging branch {branch!r}"):
        with attempt:
            head = shard.load()
            if read_intact(head.table, branch, fingerprint, of_present_schema=False):
                break  # staged meanwhile, or an attempt of unknown outcome landed after all
            check(head)
            if branch in head.staged_branches:
                raise taken_error(shard, branch)
            present_id = head.table.metadata.current_schema_id
            if schema_id != present_id:
                raise InputsGone(
                    f"shard {shard.name!r} has schema {present_id} by now, the files were written "
                    f"for schema {schema_id}",
                    hint="write them again",
                )
            builder = SnapshotBuilder(head.table)
            snapshot = builder.build(None, change)
            requirements, updates = put_on_branch(head, branch, snapshot)
            requirements += [
                AssertCurrentSchemaId(current_schema_id=schema_id),
                AssertSnapshotsAndRefs.of(head.table.metadata),
            ]
            fail_point("stage-files.before-commit")
            commit_beside(shard, head, requirements, updates, builder=builder)
    fail_point("stage-files.after-commit")
    return read_just_staged(shard, branch, fingerprint, of_present_schema=False)
