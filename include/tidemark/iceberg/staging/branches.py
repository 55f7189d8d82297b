"""Staging: data files lie on branches of their own, which nobody sees until the publisher takes them.

One branch holds one batch in one snapshot, whose line starts without a parent, so that the branch pins nothing of main:
small batches are staged in one commit (``file_staging``); for Spark the line starts with an empty base, and above it
comes the one snapshot that Spark appended. Spark writes to the branch by its identifier, ``table.branch_NAME``: that
form fails when the branch is missing, whereas the write option ``branch`` is ignored by appends to a catalog's table
and the rows land on main (Iceberg 1.12.0), and ``spark.wap.branch`` is a setting of the whole session.

What others than its writer may publish, as a flush does batches, Spark writes onto a pending branch first. Nobody else
has its name, or looks at it; it becomes the real one in one commit (``settle``), so that what bears a batch's name is
whole.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    ValidatableTableRequirement,
)

from tidemark.errors import ConflictsUnsettled, CorruptState, InputsGone, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import commit_beside, delete_files
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange, last_sequence_number
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.shard.branch_names import STAGED, is_passing
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame

    from tidemark.iceberg.commit.branch_commit import Change
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

FAIL_POINTS = ("stage.after-branch", "stage.after-rows")
# A manifest that is gone or cut; no other trouble with a store: what cannot be seen just now is not lost.
_UNREADABLE = (FileNotFoundError, EOFError, ValueError)
_FINGERPRINT = "tidemark.fingerprint"
_SCHEMA = "tidemark.schema"
_STAGED_KIND = "staged"


class AssertStagedBranches(ValidatableTableRequirement):
    """No branch was staged, settled or dropped since it was decided what may be: a ref moves without a snapshot."""

    type: Literal["assert-staged-branches"] = "assert-staged-branches"
    branches: dict[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        refs = base_metadata.refs if base_metadata else {}
        if {name: ref.snapshot_id for name, ref in refs.items() if name.startswith(STAGED)} != self.branches:
            raise CommitFailedException("Requirement failed: another batch was staged or dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """What lies on one staging branch."""

    branch: str
    snapshot_id: int
    generation: int
    writer: str
    name: str
    staged_at_ms: int
    rows: int
    size_bytes: int
    fingerprint: str
    files: tuple[DataFile, ...] = field(default=(), repr=False)  # read from the manifests by ``stage`` alone


def branch_name(*, generation: int, writer: str, batch: str) -> str:
    """Return ``staged/GENERATION/WRITER/BATCH``.

    Raises:
        UsageError: If a part is empty or holds a slash or a backquote.
    """
    for part in (writer, batch):
        if not part or set(part) & set("/`"):
            raise UsageError(f"a part of a staging branch's name cannot be {part!r}")
    return f"{STAGED}{generation}/{writer}/{batch}"


def stage(shard: Shard, rows: DataFrame, *, branch: str, fingerprint: str = "") -> StagedBatch:
    """Write ``rows`` as data files onto ``branch``; main and updates stay as they are.

    Args:
        shard: The shard that will publish the files.
        rows: All columns of the table, the system columns included.
        branch: A name made by ``branch_name``.
        fingerprint: Names what is staged (a plan, its inputs and their versions). A branch of that name with the same
            fingerprint, schema and a single snapshot is taken as it is; any other is dropped and staged again.
            Without one the rows are always written.

    Raises:
        InputsGone: If another process began to stage on ``branch`` meanwhile.
        ConflictsUnsettled: If other commits kept winning against the few metadata commits that this needs.
    """
    head = shard.load()
    if branch in head.staged_branches:
        present = read_intact(head.table, branch, fingerprint) if fingerprint else None
        if present is not None:
            return present
        drop_staged(shard, [branch], seen=head)
    _create_branch(shard, branch)
    fail_point("stage.after-branch")
    schema_id = head.table.metadata.current_schema_id
    partitioned = not head.table.spec().is_unpartitioned()
    writer = (
        rows.writeTo(f"{shard.spark_name}.`branch_{branch}`")
        .options(**{f"snapshot-property.{key}": value for key, value in staged_summary(fingerprint, schema_id).items()})
        # A table with a sort order would be range-partitioned, which computes the rows twice to sample them.
        .option("distribution-mode", "hash" if partitioned else "none")
        .option("check-nullability", "false")  # computed columns count as nullable; required ones are still checked
    )
    writer.append()
    fail_point("stage.after-rows")
    staged = read_intact(shard.load().table, branch, fingerprint)
    if staged is None:
        raise ConflictsUnsettled(
            f"staging branch {branch!r} of {shard.name!r} was changed by another process while it was written",
            hint="run it again",
        )
    return staged


def settle(shard: Shard, pending: str, branch: str, check: Callable[[ShardHead], None]) -> None:
    """Let the batch on ``pending`` be the one on ``branch``, in one commit.

    Args:
        shard: The shard.
        pending: A branch that ``stage`` has written.
        branch: Its name from now on.
        check: Called with each fresh head before the commit, whose requirements then hold against that very head;
            raises to refuse.

    Raises:
        InputsGone: If ``pending`` is gone, or another process was faster with ``branch``.
        ConflictsUnsettled: If other commits kept winning.
    """
    moved: set[int] = set()

    def decide(head: ShardHead, _attempt: int) -> Change | None:
        staged = head.staged_branches
        if staged.get(branch) in moved:  # an attempt of unknown outcome landed after all
            return None
        check(head)
        if branch in staged or pending not in staged:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} was taken by another process")
        moved.add(staged[pending])
        snapshot = _snapshot(head.table, staged[pending])
        requirements = (
            AssertTableUUID(uuid=head.table.metadata.table_uuid),
            AssertLastSequenceNumber(last_sequence_number=last_sequence_number(head.table.metadata)),
            AssertStagedBranches(branches=staged),
            AssertRefSnapshotId(ref=pending, snapshot_id=snapshot.snapshot_id),
            AssertRefSnapshotId(ref=branch, snapshot_id=None),
        )
        return requirements, (
            set_ref(branch, snapshot, SnapshotRefType.BRANCH),
            RemoveSnapshotRefUpdate(ref_name=pending),
        )

    commit_beside(shard, decide, what=f"staging branch {branch!r}")


def list_staged(head: ShardHead) -> list[StagedBatch]:
    """Return what is staged, sorted by branch; branches whose rows never arrived have ``rows`` 0."""
    return [
        _describe(branch, _snapshot(head.table, snapshot_id), files=())
        for branch, snapshot_id in sorted(head.staged_branches.items())
    ]


def find_abandoned(head: ShardHead, *, now_ms: int, max_age_ms: int) -> list[str]:
    """Return the branches that nobody will publish: of a dead generation, or older than ``max_age_ms``.

    A lost attempt computes its corrections, its compaction and whatever is pending again. The batches of an append-only
    shard are data that exists nowhere else, and go only on request.
    """
    only_computed = head.state.layout is ShardKind.DIFFERENTIAL
    return [
        staged.branch
        for staged in list_staged(head)
        if (only_computed or is_passing(staged.branch))
        and (staged.generation < head.state.token.generation or now_ms - staged.staged_at_ms > max_age_ms)
    ]


def drop_staged(shard: Shard, branches: Iterable[str], *, seen: ShardHead | None = None) -> list[str]:
    """Remove staging branches, their snapshots and their files; return the branches that were still there.

    With ``seen``, a branch stays that holds something else by now than that head shows: it is another process's.

    Safe against a concurrent publish: the removal requires each branch to be where it was, and a publish takes it away
    in its own commit. Files that cannot be deleted now are left to orphan removal.
    """
    wanted = set(branches)
    dropped: dict[str, int] = {}
    files: list[str] = []

    def decide(head: ShardHead, _attempt: int) -> Change | None:
        nonlocal dropped, files
        dropped = {
            name: id_
            for name, id_ in head.staged_branches.items()
            if name in wanted and (seen is None or seen.staged_branches.get(name) == id_)
        }
        if not dropped:
            return None
        doomed = [each for name in dropped for each in _branch_snapshots(head.table, name)]
        files = _own_files(head.table, doomed)
        requirements = (
            AssertTableUUID(uuid=head.table.metadata.table_uuid),
            *(AssertRefSnapshotId(ref=name, snapshot_id=id_) for name, id_ in dropped.items()),
        )
        removal = RemoveSnapshotsUpdate(**{"snapshot-ids": [each.snapshot_id for each in doomed]})
        return requirements, (*(RemoveSnapshotRefUpdate(ref_name=name) for name in dropped), removal)

    commit_beside(shard, decide, what="the removal of staging branches")
    delete_files(shard.load().table, files if dropped else [])
    return sorted(dropped)


def read_staged(shard: Shard, branch: str) -> StagedBatch:
    """Return what ``branch`` holds, with its files.

    Raises:
        UsageError: If there is no such branch.
        CorruptState: If it holds more or less than one staged snapshot.
    """
    head = shard.load()
    if branch not in head.staged_branches:
        raise UsageError(f"shard {shard.name!r} has no staging branch {branch!r}")
    staged = read_intact(head.table, branch, fingerprint=None)
    if staged is None:
        raise CorruptState(
            f"staging branch {branch!r} of {shard.name!r} does not hold exactly one staged snapshot",
            hint="discard it and stage again",
        )
    return staged


def _create_branch(shard: Shard, branch: str) -> None:
    """Give ``branch`` an empty snapshot without a parent, so that what Spark appends to it holds nothing of main."""
    written: list[str] = []
    bases: set[int] = set()

    def decide(head: ShardHead, attempt: int) -> Change | None:
        table = head.table
        if head.staged_branches.get(branch) in bases:  # an attempt of unknown outcome landed after all
            return None
        if branch in table.metadata.refs:
            raise InputsGone(f"staging branch {branch!r} of {shard.name!r} was taken by another process")
        builder = SnapshotBuilder(table, commit_uuid=uuid4(), attempt=attempt)
        base = builder.build(None, SnapshotChange(operation=Operation.APPEND, summary={"tidemark.kind": _STAGED_KIND}))
        written.extend(builder.written)
        bases.add(base.snapshot_id)
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertLastSequenceNumber(last_sequence_number=last_sequence_number(table.metadata)),
            AssertRefSnapshotId(ref=branch, snapshot_id=None),
        )
        return requirements, (AddSnapshotUpdate(snapshot=base), set_ref(branch, base, SnapshotRefType.BRANCH))

    commit_beside(shard, decide, what=f"staging branch {branch!r}", written=written)


def staged_files(table: Table, branch: str) -> tuple[list[int], list[str]]:
    """Return the snapshots of a branch, and everything that they alone refer to."""
    snapshots = _branch_snapshots(table, branch)
    return [each.snapshot_id for each in snapshots], _own_files(table, snapshots)


def staged_summary(fingerprint: str, schema_id: int) -> dict[str, str]:
    """Return what the snapshot of a staged batch says about itself."""
    return {"tidemark.kind": _STAGED_KIND, _FINGERPRINT: fingerprint, _SCHEMA: str(schema_id)}


def read_intact(
    table: Table, branch: str, fingerprint: str | None, *, of_present_schema: bool = True
) -> StagedBatch | None:
    """Return the batch on ``branch`` if it is one staged snapshot with that fingerprint, with its files.

    Args:
        table: The freshly loaded table.
        branch: A staging branch that exists.
        fingerprint: None takes any; the empty one matches only what was staged just now, which the caller knows.
        of_present_schema: Whether the batch must have been written with the table's present schema. Rows that exist
            nowhere else may have an older one: Iceberg reads columns that came later as NULL.
    """
    chain = _branch_snapshots(table, branch)
    if not chain or any(_is_written(base) for base in chain[1:]):
        return None  # two snapshots: a stage commit whose outcome was unknown was sent twice, or somebody else wrote
    summary = chain[0].summary
    if summary is None or summary["tidemark.kind"] != _STAGED_KIND or summary[_SCHEMA] is None:
        return None
    if of_present_schema and summary[_SCHEMA] != str(table.metadata.current_schema_id):
        return None
    if fingerprint is not None and (summary[_FINGERPRINT] or "") != fingerprint:
        return None
    try:
        files = tuple(read_added_files(table.io, chain[0]))
    except _UNREADABLE:
        return None
    return _describe(branch, chain[0], files=files)


def _is_written(snapshot: Snapshot) -> bool:
    """Tell whether a snapshot holds rows; the empty base of a branch that Spark writes to does not."""
    return snapshot.summary is None or bool(int(snapshot.summary["total-records"] or 0))


def _branch_snapshots(table: Table, branch: str) -> list[Snapshot]:
    """Return the branch's snapshots, newest first."""
    chain = []
    snapshot = table.metadata.snapshot_by_name(branch)
    while snapshot is not None:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = table.metadata.snapshot_by_id(parent) if parent is not None else None
    return chain


def _snapshot(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise CorruptState(f"snapshot {snapshot_id} of {'.'.join(table.name())} has a branch and is not there")
    return snapshot


def _describe(branch: str, snapshot: Snapshot, *, files: tuple[DataFile, ...]) -> StagedBatch:
    generation, _, rest = branch.removeprefix(STAGED).partition("/")
    writer, _, name = rest.partition("/")
    summary = snapshot.summary
    return StagedBatch(
        branch=branch,
        snapshot_id=snapshot.snapshot_id,
        generation=int(generation) if generation.isdecimal() else 0,
        writer=writer,
        name=name,
        staged_at_ms=snapshot.timestamp_ms,
        rows=int((summary["added-records"] if summary else None) or 0),
        size_bytes=int((summary["added-files-size"] if summary else None) or 0),
        fingerprint=(summary[_FINGERPRINT] if summary else None) or "",
        files=files,
    )


def _own_files(table: Table, snapshots: Iterable[Snapshot]) -> list[str]:
    """Return everything that only these snapshots of a staging branch refer to: data, manifests and lists, digests."""
    listed = list(snapshots)
    ids = {each.snapshot_id for each in listed}
    paths = [each.statistics_path for each in table.metadata.statistics if each.snapshot_id in ids]
    for snapshot in listed:
        with suppress(*_UNREADABLE):  # a damaged branch can be dropped, too: orphan removal finds the rest
            paths += [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
            paths += [file.file_path for file in read_added_files(table.io, snapshot)]
        paths.append(snapshot.manifest_list)
    return sorted(set(paths))
