"""Whole corrections on a staging branch: a read-only deployment keeps a correction there until it may publish.

One branch holds one correction in one parentless snapshot: rows added and retracted (distinguished by ``_diff``),
position deletes, the upper that the correction was computed against, and its digest. A later correction replaces an
earlier one in one commit, so that corrections do not pile up. While the contents are those of that upper, a correction
can be published; otherwise it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetStatisticsUpdate

from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside, delete_files, remove_snapshots
from tidemark.iceberg.commit.checks import bounds
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.files.manifests import read_added_files, read_data_files
from tidemark.iceberg.shard.branch_names import STAGED_LOWER
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.iceberg.shard.damage import damage_of
from tidemark.iceberg.shard.digest_file import read_payload, write_digest
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import UNREADABLE, put_on_branch, staged_files, staged_summary

FAIL_POINTS = ("stage-corrections.before-commit", "stage-corrections.after-commit")
_TIME, _ABOUT = "tidemark.staged-time", "tidemark.staged-slice"
_NOTE, _PINNED = "tidemark.staged-digest", "tidemark.staged-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCorrections:
    """A correction on its branch, ready for ``Writer.publish``."""

    batch: Batch
    lower: int  # the upper it was computed against
    time: int  # of its rows
    digest: bytes | None
    digest_note: str


def stage_whole(
    shard: Shard,
    batch: Batch,
    *,
    branch: str,
    lower: int,
    time: int,
    digest: bytes | None,
    digest_note: str,
    about: str = "",
    check: Callable[[ShardHead], None] = lambda _: None,
) -> None:
    """Put a correction onto ``branch`` instead of publishing it, and drop the correction that was there.

    The arguments are those of ``Writer.publish``, for a differential shard; ``time``, that of the rows, is not below
    ``lower``. ``about`` says which rows the correction is about, and is opaque to this layer. The batch's own staging
    branches are removed. ``check`` sees the state that the commit replaces, and may raise.

    Raises ``ConflictsUnsettled`` if other commits kept winning.
    """
    table = shard.load().table
    digest_file = None if digest is None else write_digest(table, str(uuid4()), digest)
    schema_id = table.metadata.current_schema_id if batch.schema_id is None else batch.schema_id
    change = SnapshotChange(
        operation=Operation.OVERWRITE if batch.deletes else Operation.APPEND,
        added=(*batch.added, *batch.retracted),
        deletes=batch.deletes,
        summary={
            **staged_summary(f"corrections of {lower}", schema_id),
            STAGED_LOWER: str(lower),
            _TIME: str(time),
            _ABOUT: about,
            _NOTE: digest_note,
            _PINNED: str(batch.pinned_snapshot_id or ""),
        },
    )
    built: set[int] = set()
    replaced_files: list[str] = []
    for attempt in attempts_beside(shard, f"staging branch {branch!r}"):
        with attempt:
            head = shard.load()
            if head.staged_branches.get(branch) in built:  # an attempt of unknown outcome landed: nothing to replace
                break
            check(head)
            builder = SnapshotBuilder(head.table)
            snapshot = builder.build(None, change)
            built.add(snapshot.snapshot_id)
            requirements, updates = put_on_branch(head, branch, snapshot)
            if digest_file is not None:
                bound = digest_file.model_copy(update={"snapshot_id": snapshot.snapshot_id})
                updates.append(SetStatisticsUpdate(statistics=bound))
            for name, snapshot_id in batch.branches:
                requirements.append(AssertRefSnapshotId(ref=name, snapshot_id=snapshot_id))
                updates.append(RemoveSnapshotRefUpdate(ref_name=name))
            replaced, replaced_files = staged_files(head.table, [branch])
            if replaced:
                updates.append(remove_snapshots(replaced))
            fail_point("stage-corrections.before-commit")
            commit_beside(shard, head, requirements, updates, builder=builder)
    fail_point("stage-corrections.after-commit")
    delete_files(table, replaced_files)


def staged_times(head: ShardHead, branch: str) -> tuple[int, int] | None:
    """Return the upper that the correction on ``branch`` was computed against, and its time; None if it is damaged."""
    snapshot, summary = _staged(head, branch)
    return (int(summary[STAGED_LOWER]), int(summary[_TIME])) if snapshot else None


def staged_about(head: ShardHead, branch: str) -> str:
    """Return which rows the correction on ``branch`` is about; empty if it does not say so."""
    return _staged(head, branch)[1].get(_ABOUT, "")


def why_stale(head: ShardHead, branch: str) -> str:
    """Return why the correction on ``branch`` cannot be published, as far as summaries tell; empty if it can be."""
    snapshot, summary = _staged(head, branch)
    if snapshot is None:
        return "it is damaged"
    if not head.state.still_shows(int(summary[STAGED_LOWER])):
        return "the contents have changed since"
    if summary["tidemark.schema"] != str(head.table.metadata.current_schema_id):
        return "the columns have changed since"
    return ""


def _staged(head: ShardHead, branch: str) -> tuple[Snapshot | None, dict[str, str]]:
    """Return the snapshot that ``stage_whole`` put onto ``branch``, and its summary; None if another one is there."""
    snapshot = head.table.metadata.snapshot_by_name(branch)
    if snapshot is None or snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return None, {}
    summary = snapshot.summary.additional_properties
    return (snapshot, summary) if {STAGED_LOWER, _TIME} <= summary.keys() else (None, {})


def read_current(head: ShardHead, branch: str) -> StagedCorrections | str:
    """Return the correction on ``branch`` if it can be published, else why not.

    It was computed against the contents and the schema of ``head``, it is whole, and the files that it deletes rows
    from are there: compaction may have rewritten them, which leaves the contents alone.
    """
    if reason := why_stale(head, branch):
        return reason
    staged = read_whole(head, branch)
    if staged is None:
        return "it is damaged"
    wanted = staged.batch.deleted_from
    if not wanted or staged.batch.pinned_snapshot_id == head.contents.snapshot_id:
        return staged
    is_there = wanted <= read_data_files(head.table.io, head.contents).keys()
    return staged if is_there else "files with rows that it retracts were rewritten since"


def read_whole(head: ShardHead, branch: str) -> StagedCorrections | None:
    """Return the correction that ``stage_whole`` put onto ``branch``; None if it is damaged or another batch.

    Raises ``Unreachable`` if the store is in trouble.
    """
    snapshot, summary = _staged(head, branch)
    if snapshot is None:
        return None
    try:
        files = read_added_files(head.table.io, snapshot)
    except UNREADABLE:
        return None
    if any(damage_of(head.table, file) for file in files):
        return None
    data = [file for file in files if file.content == DataFileContent.DATA]
    deletes = tuple(file for file in files if file.content != DataFileContent.DATA)
    schema = head.table.schema()
    added = tuple(file for file in data if bounds(file, schema, DIFF) == (1, 1))
    kept = [file for file in head.table.metadata.statistics if file.snapshot_id == snapshot.snapshot_id]
    whose = f"what is staged for {'.'.join(head.table.name())}"
    batch = Batch(
        added=added,
        retracted=tuple(file for file in data if file not in added),
        deletes=deletes,
        pinned_snapshot_id=int(summary[_PINNED] or 0) or None,
        deleted_from=frozenset(path for file in deletes for path in _deleted_from(head.table, file.file_path)),
        schema_id=int(summary["tidemark.schema"] or 0),
        branches=((branch, snapshot.snapshot_id),),
    )
    return StagedCorrections(
        batch=batch,
        lower=int(summary[STAGED_LOWER]),
        time=int(summary[_TIME]),
        digest=read_payload(head.table.io, kept[0].statistics_path, whose=whose) if kept else None,
        digest_note=summary[_NOTE] or "",
    )


def _deleted_from(table: Table, path: str) -> list[str]:
    with table.io.new_input(path).open() as stream:
        column = pq.read_table(stream, columns=["file_path"]).column("file_path")
    return [str(named) for named in column.unique().to_pylist()]
