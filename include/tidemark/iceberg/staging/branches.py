"""Staging branches: data files lie on a branch of their own, which nobody reads until the publisher takes them.

One branch holds one batch in one snapshot. The branch's line of snapshots starts without a parent, so that it pins
nothing of main. This process stages a batch in one commit (``files``), Spark with a few more (``frames``).

What others than its writer may publish, as a flush does batches, Spark writes onto a pending branch first. Nobody else
knows that branch's name; ``settle`` renames it in one commit, so that a branch with a batch's name is always whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    ValidatableTableRequirement,
)

from tidemark.errors import ConflictsUnsettled, CorruptState, Fenced, InputsGone, UsageError
from tidemark.iceberg.commit.branch_commit import (
    AssertSnapshotsAndRefs,
    attempts_beside,
    commit_beside,
    delete_files,
    remove_snapshots,
)
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.shard.branch_names import STAGED, is_passing
from tidemark.iceberg.shard.foreign_commits import is_marked
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.time_travel import only_reached_by
from tidemark.iceberg.shard.token import Token

# The errors for a manifest that is gone or garbage. Not those of a store: an unreachable manifest is not lost.
UNREADABLE = (CorruptState, EOFError, ValueError)
_FINGERPRINT = "tidemark.fingerprint"
_SCHEMA = "tidemark.schema"
STAGED_KIND = "staged"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """The batch on one staging branch."""

    branch: str
    snapshot_id: int
    generation: int
    writer: str
    name: str
    staged_at_ms: int
    rows: int
    size_bytes: int
    fingerprint: str
    files: tuple[DataFile, ...] = field(default=(), repr=False)  # read by ``read_intact``, not by ``list_staged``


def branch_name(*, generation: int, writer: str, batch: str) -> str:
    """Return ``staged/GENERATION/WRITER/BATCH``. Raises ``UsageError`` if a part is empty, or has a slash or `."""
    for part in (writer, batch):
        if not part or set(part) & set("/`"):
            raise UsageError(f"a part of a staging branch's name cannot be {part!r}")
    return f"{STAGED}{generation}/{writer}/{batch}"


def settle(
    shard: Shard,
    pending: str,
    branch: str,
    check: Callable[[ShardHead], None],
    set_properties: Mapping[str, str] | None = None,
) -> None:
    """Rename the staging branch ``pending``, which ``stage`` has written, to ``branch``, in one commit.

    ``check`` is called with the fresh head that the commit requires, and raises to refuse. ``set_properties`` are table
    properties that the same commit sets.

    Raises:
        InputsGone: If ``pending`` is gone, or another process was faster with ``branch``.
        ConflictsUnsettled: If other commits kept winning.
    """
    moved: set[int] = set()
    for attempt in attempts_beside(shard, f"staging branch {branch!r}"):
        with attempt:
            head = shard.load()
            staged = head.staged_branches
            if staged.get(branch) in moved:  # an earlier attempt, whose outcome was unknown, landed
                return
            refuse_superseded(head, branch)
            check(head)
            chain = only_reached_by(head.table.metadata, [pending])
            if branch in staged or not _stands_alone(head.table.metadata, chain):
                raise taken_error(shard, branch)
            snapshot = chain[0]
            moved.add(snapshot.snapshot_id)
            updates = (
                set_ref(branch, snapshot),
                RemoveSnapshotRefUpdate(ref_name=pending),
                SetPropertiesUpdate(updates=dict(set_properties or {})),
            )
            commit_beside(shard, head, [AssertSnapshotsAndRefs.of(head.table.metadata)], updates)


def refuse_superseded(head: ShardHead, branch: str) -> None:
    """Refuse to stage for a deployment older than the one that owns the shard: the last flush may be over.

    Raises ``FencedByGeneration`` if a newer deployment owns the shard.
    """
    generation = int(branch.removeprefix(STAGED).partition("/")[0])
    if generation < head.state.token.generation:
        where = f"collection {head.table.name()[-1]!r}"
        raise Fenced.by(mine=Token(generation, 0), theirs=head.state.token, where=where)


def taken_error(shard: Shard, branch: str) -> InputsGone:
    """Return the error for a branch of that name that another process made or removed meanwhile."""
    return InputsGone(f"staging branch {branch!r} of {shard.name!r} was taken by another process")


def list_staged(head: ShardHead) -> list[StagedBatch]:
    """Return the staged batches, sorted by branch; branches whose rows never arrived have ``rows`` 0."""
    return [
        _describe(branch, _snapshot(head.table, snapshot_id), files=())
        for branch, snapshot_id in sorted(head.staged_branches.items())
    ]


def find_abandoned(head: ShardHead, *, now_ms: int, max_age_ms: int, kept: Collection[str] = ()) -> list[str]:
    """Return the branches that nobody will publish: not ``kept``, and of a dead generation or beyond ``max_age_ms``.

    Corrections, compactions and pending batches are computed again by the next attempt. The other batches of an
    append-only shard are data that exists nowhere else; they are dropped only on request.
    """
    only_computed = head.state.layout is ShardKind.DIFFERENTIAL
    return [
        staged.branch
        for staged in list_staged(head)
        if (only_computed or is_passing(staged.branch))
        and staged.branch not in kept
        and (staged.generation < head.state.token.generation or now_ms - staged.staged_at_ms > max_age_ms)
    ]


def drop_staged(shard: Shard, branches: Iterable[str], *, seen: ShardHead | None = None) -> list[str]:
    """Remove staging branches, their snapshots and their files; return the branches that were still there.

    With ``seen``, a branch that has moved since that head stays: it belongs to another process now.

    Safe against a concurrent publish: the removal requires each branch to be where it was, and a publish removes the
    branch in its own commit. Files that cannot be deleted now are left to orphan removal.
    """
    wanted = set(branches)
    for attempt in attempts_beside(shard, "the removal of staging branches"):
        with attempt:
            head = shard.load()
            dropped = {
                name: snapshot_id
                for name, snapshot_id in head.staged_branches.items()
                if name in wanted and (seen is None or seen.staged_branches.get(name) == snapshot_id)
            }
            if not dropped:
                return []
            doomed, files = staged_files(head.table, dropped)
            commit_beside(
                shard,
                head,
                [AssertRefSnapshotId(ref=name, snapshot_id=snapshot_id) for name, snapshot_id in dropped.items()],
                [*(RemoveSnapshotRefUpdate(ref_name=name) for name in dropped), remove_snapshots(doomed)],
            )
    delete_files(shard.load().table, files)
    return sorted(dropped)


def staged_files(table: Table, branches: Iterable[str]) -> tuple[list[Snapshot], list[str]]:
    """Return what staging branches alone hold: snapshots, and the files data, manifests, lists and digests of these."""
    snapshots = only_reached_by(table.metadata, list(branches))
    if not snapshots:
        return [], []
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    paths = [file.statistics_path for file in table.metadata.statistics if file.snapshot_id in ids]
    for snapshot in snapshots:
        with suppress(*UNREADABLE):  # a damaged branch can be dropped, too: orphan removal finds the rest
            manifests = snapshot.manifests(table.io)
            paths += [manifest.manifest_path for manifest in manifests if manifest.added_snapshot_id in ids]
            paths += [file.file_path for file in read_added_files(table.io, snapshot)]
        paths.append(snapshot.manifest_list)
    try:
        return snapshots, sorted(set(paths) - _taken_by_others(table))
    except UNREADABLE:  # nobody can say what the damaged snapshot of another tool needs: orphan removal sees to it
        return snapshots, []


def _taken_by_others(table: Table) -> set[str]:
    """Return the files that other tools have added, as `CALL system.cherrypick_snapshot` adds those of a branch."""
    foreign = (snapshot for snapshot in table.metadata.snapshots if not is_marked(snapshot))
    return {file.file_path for snapshot in foreign for file in read_added_files(table.io, snapshot)}


def put_on_branch(
    head: ShardHead, branch: str, snapshot: Snapshot
) -> tuple[list[ValidatableTableRequirement], list[TableUpdate]]:
    """Return what a commit requires and changes that puts a new snapshot on a branch, unmoved since ``head``.

    Raises as ``refuse_superseded``.
    """
    refuse_superseded(head, branch)
    requirements: list[ValidatableTableRequirement] = [
        AssertLastSequenceNumber.of(head.table.metadata),
        AssertRefSnapshotId(ref=branch, snapshot_id=head.staged_branches.get(branch)),
    ]
    return requirements, [AddSnapshotUpdate(snapshot=snapshot), set_ref(branch, snapshot)]


def staged_summary(fingerprint: str, schema_id: int) -> dict[str, str]:
    """Return the summary entries for the snapshot of a staged batch."""
    return {"tidemark.kind": STAGED_KIND, _FINGERPRINT: fingerprint, _SCHEMA: str(schema_id)}


def read_just_staged(shard: Shard, branch: str, fingerprint: str, *, of_present_schema: bool = True) -> StagedBatch:
    """Return the batch that this process staged just now. Raises ``ConflictsUnsettled`` if another process changed it.

    Arguments are those of ``read_intact``.
    """
    staged = read_intact(shard.load().table, branch, fingerprint, of_present_schema=of_present_schema)
    if staged is None:
        raise ConflictsUnsettled(
            f"staging branch {branch!r} of {shard.name!r} was changed by another process while it was written",
            hint="run it again",
        )
    return staged


def read_intact(
    table: Table, branch: str, fingerprint: str | None, *, of_present_schema: bool = True
) -> StagedBatch | None:
    """Return the batch on ``branch``, with its files; None if there is not one staged snapshot with that fingerprint.

    Args:
        table: The freshly loaded table.
        branch: The name of a staging branch.
        fingerprint: None takes any; the empty one matches only what was staged just now, which the caller knows.
        of_present_schema: Whether the batch must have been written with the table's present schema. Rows that exist
            nowhere else may have an older one: Iceberg reads columns that came later as NULL.
    """
    chain = only_reached_by(table.metadata, [branch])
    if not _stands_alone(table.metadata, chain):
        return None
    summary = chain[0].summary
    if summary is None or summary["tidemark.kind"] != STAGED_KIND or summary[_SCHEMA] is None:
        return None
    if of_present_schema and summary[_SCHEMA] != str(table.metadata.current_schema_id):
        return None
    if fingerprint is not None and (summary[_FINGERPRINT] or "") != fingerprint:
        return None
    try:
        files = tuple(read_added_files(table.io, chain[0]))
    except UNREADABLE:
        return None
    return _describe(branch, chain[0], files=files)


def _stands_alone(metadata: TableMetadata, chain: Sequence[Snapshot]) -> bool:
    """Tell whether a branch's own snapshots, newest first, are one above at most the empty base that Spark writes to.

    Not so is a branch that grew from main, or that a stage commit of unknown outcome reached twice.
    """
    if not chain or any(_is_written(base) for base in chain[1:]):
        return False
    parent = chain[-1].parent_snapshot_id  # an empty base may have been expired by another tool
    return parent is None or metadata.snapshot_by_id(parent) is None


def _is_written(snapshot: Snapshot) -> bool:
    return snapshot.summary is None or bool(int(snapshot.summary["total-records"] or 0))


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
