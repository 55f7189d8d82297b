"""Puts back the refs that every commit of ours sets, after somebody has dropped one of them.

A dropped ref takes no snapshot along: the branch and the tag beside it name each other's snapshot, and without both the
snapshots themselves tell whose they are, until an expiry removes them. Only then is a change log lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, SetPropertiesUpdate, TableUpdate
from sqlalchemy.exc import SQLAlchemyError

from tidemark.errors import CorruptState, Fenced
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.branch_commit import ATTEMPTS, AssertSnapshotsAndRefs
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.commit.snapshot_builder import NOTHING, SnapshotBuilder
from tidemark.iceberg.shard.foreign_commits import is_marked
from tidemark.iceberg.shard.head import MAIN, OPEN, OPEN_ID, OWN_MAIN, OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.time_travel import ancestry
from tidemark.retry import retrying

_TAGS = {OWN_MAIN, OWN_UPDATES, OPEN}
_OWN_KINDS = {kind.value for kind in CommitKind}  # a staged batch has a mark of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The missing refs with the snapshots that they get, and what is lost for good, in words."""

    refs: dict[str, Snapshot | None]  # None: a new snapshot without rows
    since: Frontier  # afterwards
    lost: tuple[str, ...] = ()


def plan_repair(metadata: TableMetadata, *, shard: str) -> Repair:
    """Say what a repair of ``shard`` sets; nothing if no ref is missing.

    Raises ``CorruptState`` if the snapshot with the contents is gone, or the table is not ours.
    """
    state = ShardState.parse(metadata.properties, shard=shard)
    lost: list[str] = []
    own = metadata.snapshot_by_name(OWN_MAIN) or _by_commit(metadata, state.commit_id)
    main = metadata.snapshot_by_name(MAIN)
    if own is None and main is None:
        raise CorruptState(
            f"shard {shard!r} has lost its contents: no ref names them, and their snapshot is gone",
            hint="restore the metadata file that the catalog names for the table from a backup",
        )
    if own is None and main is not None:
        own = next(filter(is_marked, ancestry(metadata, main.snapshot_id)), main)
        lost.append("our last snapshot of the contents: what main shows counts as ours, whoever wrote it")
    refs: dict[str, Snapshot | None] = {MAIN: own, OWN_MAIN: own}
    since = state.since
    if state.layout is ShardKind.DIFFERENTIAL:
        log = _find_log(metadata, own)
        refs |= {UPDATES: log, OWN_UPDATES: log}
        if log is None and isinstance(since, int) and isinstance(state.upper, int):
            since = max(since, state.upper - 1)
            lost.append(f"the change log: changes and contents before {since} cannot be read any more")
            holds = sorted(reader for reader, hold in state.holds.items() if hold.since < since)
            lost += [f"what {reader!r} holds: it has to begin anew" for reader in holds]
    if (id_ := metadata.properties.get(OPEN_ID)) is not None:
        refs[OPEN] = metadata.snapshot_by_name(OPEN) or metadata.snapshot_by_id(int(id_))
        if refs[OPEN] is None:
            lost.append(f"what was accepted and not persisted: `tidemark buffer replay {shard}` reads it again")
    present = metadata.refs.keys() if since == state.since else metadata.refs.keys() - {UPDATES, OWN_UPDATES}
    return Repair(refs={ref: found for ref, found in refs.items() if ref not in present}, since=since, lost=tuple(lost))


def repair(shard: Shard, *, generation: int) -> Repair:
    """Set the missing refs, in one commit; return what was set. No row is read or written.

    The commit raises the token: a switch of the mode could not fence a table that nobody could read.

    Raises:
        CorruptState: As ``plan_repair``.
        FencedByGeneration: If a deployment newer than ``generation`` owns the shard.
        ConflictsUnsettled: If others kept changing the table; nothing was repaired.
    """
    done: list[Repair] = []  # kept if the answer to the commit is lost: the next look finds nothing missing

    def repair_once() -> None:
        table = shard.load_table()
        planned = plan_repair(table.metadata, shard=shard.name)
        if not planned.refs:
            return
        done[:] = [planned]
        state = ShardState.parse(table.metadata.properties, shard=shard.name)
        if state.token.generation > generation:
            mine = replace(state.token, generation=generation)
            raise Fenced.by(mine=mine, theirs=state.token, where=f"shard {shard.name!r}")
        state = replace(state, since=planned.since, token=state.token.raised(generation))
        updates: list[TableUpdate] = [SetPropertiesUpdate(updates=state.properties())]
        empty: Snapshot | None = None
        summary = {**state.summary(), "tidemark.commit-id": str(uuid4())}
        for ref, snapshot in planned.refs.items():
            if snapshot is None and empty is None:
                empty = SnapshotBuilder(table).build(None, replace(NOTHING, summary=summary))
                updates.append(AddSnapshotUpdate(snapshot=empty))
            named = snapshot or empty
            assert named is not None  # noqa: S101 - made above
            updates.append(set_ref(ref, named, SnapshotRefType.TAG if ref in _TAGS else SnapshotRefType.BRANCH))
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertLastSequenceNumber.of(table.metadata),
            AssertSnapshotsAndRefs.of(table.metadata),
        )
        shard.iceberg.commit_table(table, requirements, tuple(updates))  # type: ignore[arg-type]  # ours are validated

    what = f"the repair of {shard.name!r}"
    retrying(CommitFailedException, SQLAlchemyError, attempts=ATTEMPTS, what=what)(repair_once)
    return done[0] if done else plan_repair(shard.load_table().metadata, shard=shard.name)


def _by_commit(metadata: TableMetadata, commit_id: str) -> Snapshot | None:
    """Return the snapshot of main of a commit; its snapshot of the change log comes after it."""
    own = (each for each in metadata.snapshots if each.summary and each.summary["tidemark.commit-id"] == commit_id)
    return next(own, None)


def _find_log(metadata: TableMetadata, own: Snapshot | None) -> Snapshot | None:
    """Return our last snapshot of the change log, beside ``own`` of the contents; None if it is gone."""
    if (tagged := metadata.snapshot_by_name(OWN_UPDATES)) is not None:
        return tagged
    if (named := metadata.snapshot_by_name(UPDATES)) is not None:
        return next(filter(is_marked, ancestry(metadata, named.snapshot_id)), None)
    # The refs that are left name contents, of now or for a hold, and what is staged: the log is what they do not reach.
    heads = {ref.snapshot_id for ref in metadata.refs.values()} | ({own.snapshot_id} if own else set())
    named_ids = {each.snapshot_id for head in heads for each in ancestry(metadata, head)}
    ours = (each for each in metadata.snapshots if each.summary and each.summary["tidemark.kind"] in _OWN_KINDS)
    unnamed = (each for each in ours if each.snapshot_id not in named_ids)
    return max(unnamed, key=lambda snapshot: snapshot.sequence_number or 0, default=None)
