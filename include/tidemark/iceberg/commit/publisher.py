"""The publisher: the only code that moves ``main``. One ``commit_table`` with explicit requirements per attempt.

Never pyiceberg's own transaction commit: it retries on its own, so that an expected parent is silently lost, and
keeps one ref assertion per type, so that updates get lost (reference: iceberg_staging §2.6).
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    ValidatableTableRequirement,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange, last_sequence_number
from tidemark.iceberg.shard.digest_file import bound_file, is_current, write_digest
from tidemark.iceberg.shard.head import HOLD_TAG, MAIN, OWN_MAIN, OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.state import CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.time_travel import own_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.statistics import StatisticsFile
    from pyiceberg.table.update import TableUpdate

    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

FAIL_POINTS = ("publish.before-commit", "publish.after-commit")
ATTEMPTS = 12
FIRST_BACKOFF_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One commit, decided from a fresh head. Whoever proposes has made all checks against that head."""

    state: ShardState  # what the shard shows afterwards
    main: SnapshotChange
    updates: SnapshotChange | None = None
    branches: tuple[tuple[str, int], ...] = ()  # staging branches and the snapshots they must still point at
    set_properties: Mapping[str, str] = field(default_factory=dict)  # beside the state, for readers without a JVM
    removed_properties: tuple[str, ...] = ()
    # A digest is kept through commits that leave the contents alone; a change of contents brings its own or drops it.
    digest: bytes | Literal["keep"] | None = "keep"
    resets_foreign: bool = False  # put main back on our own state if foreign commits lie above it
    resets_foreign_updates: bool = False  # the same for the change log; a change of updates does so anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a successful commit left."""

    state: ShardState
    snapshot_id: int  # of main
    attempts: int


class AssertLastSequenceNumber(ValidatableTableRequirement):
    """The sequence numbers of the new snapshots must follow: no commit on any branch may have come between."""

    type: Literal["assert-last-sequence-number"] = "assert-last-sequence-number"
    last_sequence_number: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or last_sequence_number(base_metadata) != self.last_sequence_number:
            raise CommitFailedException("Requirement failed: another snapshot was added")


def commit(shard: Shard, commit_id: str, propose: Callable[[ShardHead], Proposal]) -> Published:
    """Publish what ``propose`` says about the fresh head; on a conflict load and ask again, a bounded number of times.

    Args:
        shard: The shard to move.
        commit_id: A UUID chosen before the first attempt; it finds a commit whose outcome is unknown.
        propose: Called with each fresh head. Raises what its checks find (Fenced, Sealed, UpperMismatch, ...).

    Raises:
        ConflictsUnsettled: If other commits kept winning; nothing was written.
        CommitStateUnknown: If the store went away during the commit and cannot be asked, or went away time and again.
    """
    failure: Exception | None = None
    in_doubt = False  # whether some attempt may have landed that nobody has been told of
    digest_file: StatisticsFile | None = None
    for attempt in range(1, ATTEMPTS + 1):
        head, landed = _look(shard, commit_id, attempts=attempt, in_doubt=in_doubt)
        if landed is not None:
            return landed
        proposal = _under_present_schema(propose(head), head)
        builder = SnapshotBuilder(head.table, commit_uuid=UUID(commit_id), attempt=attempt)
        if isinstance(proposal.digest, bytes) and digest_file is None:
            path = head.table.location_provider().new_metadata_location(f"tidemark-digest-{commit_id}.puffin")
            digest_file = write_digest(head.table.io, path, proposal.digest)
        requirements, updates, snapshot = _assemble(head, proposal, builder, digest_file)
        fail_point("publish.before-commit")
        try:
            shard.iceberg.commit_table(head.table, requirements, updates)  # type: ignore[arg-type]  # ours is validated too
        except CommitFailedException as error:
            failure = error
            _delete(head, builder.written)
            log.debug("attempt %s on %s lost: %s", attempt, shard.name, error)
        except (DBAPIError, SQLAlchemyError) as error:
            # The update may have landed, or may still land: its files stay; orphan removal takes them if unused.
            failure, in_doubt = error, True
            log.warning(
                "the outcome of commit %s to %s is unknown, looking for it: %s",
                commit_id,
                shard.name,
                type(error).__name__,
            )
        else:
            fail_point("publish.after-commit")
            _delete_replaced_digest(head, proposal)
            return Published(state=proposal.state, snapshot_id=snapshot.snapshot_id, attempts=attempt)
        time.sleep(random.uniform(0.5, 1.5) * FIRST_BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
    _, landed = _look(shard, commit_id, attempts=ATTEMPTS, in_doubt=in_doubt)
    if landed is not None:
        return landed
    if not isinstance(failure, CommitFailedException):
        raise _unknown(shard, commit_id) from failure
    # By now the table has moved on from the head of every attempt: none of them can land any more.
    if digest_file is not None:
        _delete(head, [digest_file.statistics_path])
    raise ConflictsUnsettled(
        f"{ATTEMPTS} attempts to commit to shard {shard.name!r} lost against other commits; nothing was written",
        hint="run it again",
    ) from failure


def next_state(shard: Shard, state: ShardState, kind: CommitKind, commit_id: str, **changes: Any) -> ShardState:
    """Return the state after a commit that leaves the contents alone; its snapshot holds them from the upper on."""
    return replace(state, kind=kind, commit_id=commit_id, writer=shard.writer_id, lower=state.upper, **changes)


def _look(shard: Shard, commit_id: str, *, attempts: int, in_doubt: bool) -> tuple[ShardHead, Published | None]:
    """Load the head, and tell what commit ``commit_id`` left, if it landed.

    That is not what others have made of it since: their token is none of the caller's.

    Raises:
        Unreachable: If the catalog does not answer.
        CommitStateUnknown: The same, if an attempt is ``in_doubt``.
    """
    try:
        head = shard.load()
    except Unreachable as error:
        if not in_doubt:
            raise
        raise _unknown(shard, commit_id) from error
    snapshot = head.own_commit(commit_id)
    if snapshot is None:
        return head, None
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    state = head.state.as_in(summary, shard=shard.name)
    return head, Published(state=state, snapshot_id=snapshot.snapshot_id, attempts=attempts)


def _unknown(shard: Shard, commit_id: str) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"the catalog went away during commit {commit_id} to shard {shard.name!r}: it may have landed",
        hint="run it again: it computes afresh, and finds nothing to do if the commit landed",
    )


def _assemble(
    head: ShardHead, proposal: Proposal, builder: SnapshotBuilder, digest_file: StatisticsFile | None
) -> tuple[tuple[ValidatableTableRequirement, ...], tuple[TableUpdate, ...], Snapshot]:
    """Turn a proposal into requirements and updates; also return the new snapshot of main."""
    metadata = head.table.metadata
    state = proposal.state
    differential = state.layout is ShardKind.DIFFERENTIAL
    moves_main = not (differential and head.foreign) or proposal.resets_foreign
    summary = state.summary()
    main = builder.build(head.contents, replace(proposal.main, summary={**summary, **proposal.main.summary}))
    updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=main), _tag(OWN_MAIN, main)]
    if moves_main:
        updates.append(_branch(MAIN, main))
    requirements: list[ValidatableTableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastSequenceNumber(last_sequence_number=last_sequence_number(metadata)),
        _require(MAIN, head.main.snapshot_id),
        _require(OWN_MAIN, head.own.snapshot_id),
    ]
    if differential:
        requirements.append(_require(UPDATES, metadata.refs[UPDATES].snapshot_id))
        if proposal.updates is not None:
            change = replace(proposal.updates, summary={**summary, **proposal.updates.summary})
            snapshot = builder.build(head.updates, change)
            updates += [AddSnapshotUpdate(snapshot=snapshot), _branch(UPDATES, snapshot), _tag(OWN_UPDATES, snapshot)]
        elif head.foreign_updates and head.updates is not None and proposal.resets_foreign_updates:
            updates.append(_branch(UPDATES, head.updates))
    updates += _hold_tags(head, state, main)
    for branch, snapshot_id in proposal.branches:
        requirements.append(_require(branch, snapshot_id))
        updates.append(RemoveSnapshotRefUpdate(ref_name=branch))
    updates.append(SetPropertiesUpdate(updates={**proposal.set_properties, **state.properties()}))
    if proposal.removed_properties:
        updates.append(RemovePropertiesUpdate(removals=list(proposal.removed_properties)))
    updates += _statistics(head, proposal, digest_file, main)
    return tuple(requirements), tuple(updates), main


def _under_present_schema(proposal: Proposal, head: ShardHead) -> Proposal:
    """Return ``proposal`` with the schema that its commit will name, and that the commit requires to be present."""
    return replace(proposal, state=replace(proposal.state, schema_id=head.table.metadata.current_schema_id))


def _hold_tags(head: ShardHead, state: ShardState, main: Snapshot) -> list[TableUpdate]:
    """Pin with a tag, for each hold, the snapshot with the contents at its since; drop the tags of holds that end.

    Where a hold starts at a time that is not final yet, its tag follows main. Where another tool has expired the
    snapshot already, there is nothing left to pin.
    """
    refs = head.table.metadata.refs
    updates: list[TableUpdate] = []
    for reader, hold in state.holds.items():
        tag = HOLD_TAG + reader
        if tag in refs and hold.since < state.lower and head.state.holds.get(reader) == hold:
            continue
        snapshot = main if not hold.since < state.lower else _own_at(head, hold.since)
        if snapshot is not None:
            updates.append(_tag(tag, snapshot))
        elif tag in refs:
            updates.append(RemoveSnapshotRefUpdate(ref_name=tag))
    ended = sorted(HOLD_TAG + reader for reader in head.state.holds.keys() - state.holds.keys())
    return updates + [RemoveSnapshotRefUpdate(ref_name=tag) for tag in ended if tag in refs]


def _own_at(head: ShardHead, time: int) -> Snapshot | None:
    return next((snapshot for snapshot, lower in own_snapshots(head) if not time < lower), None)


def _statistics(
    head: ShardHead, proposal: Proposal, digest_file: StatisticsFile | None, main: Snapshot
) -> list[TableUpdate]:
    """Bind the digest to the new snapshot, taking it off the old one."""
    old = bound_file(head)
    new = old if _keeps_digest(head, proposal) else digest_file
    updates: list[TableUpdate] = []
    if old is not None:
        updates.append(RemoveStatisticsUpdate(snapshot_id=old.snapshot_id))
    if new is not None:
        bound = new.model_copy(update={"snapshot_id": main.snapshot_id})
        updates.append(SetStatisticsUpdate(statistics=bound))
    return updates


def _keeps_digest(head: ShardHead, proposal: Proposal) -> bool:
    """Return whether the present digest goes over to the new snapshot, which has the present schema."""
    return proposal.digest == "keep" and is_current(head)


def _require(ref: str, snapshot_id: int) -> AssertRefSnapshotId:
    return AssertRefSnapshotId(ref=ref, snapshot_id=snapshot_id)


def set_ref(name: str, snapshot: Snapshot, kind: SnapshotRefType) -> SetSnapshotRefUpdate:
    """Point a branch or tag at ``snapshot``; it never expires by age."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot.snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def _branch(name: str, snapshot: Snapshot) -> SetSnapshotRefUpdate:
    return set_ref(name, snapshot, SnapshotRefType.BRANCH)


def _tag(name: str, snapshot: Snapshot) -> SetSnapshotRefUpdate:
    return set_ref(name, snapshot, SnapshotRefType.TAG)


def _delete_replaced_digest(head: ShardHead, proposal: Proposal) -> None:
    old = bound_file(head)
    if old is not None and not _keeps_digest(head, proposal):
        _delete(head, [old.statistics_path])


def _delete(head: ShardHead, paths: list[str]) -> None:
    """Delete files that nothing refers to; what cannot be deleted now is left to orphan removal."""
    for path in paths:
        with suppress(OSError):
            head.table.io.delete(path)
