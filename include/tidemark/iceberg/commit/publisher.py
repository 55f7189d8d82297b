"""The publisher: the only code that moves ``main``. One ``commit_table`` with explicit requirements per attempt.

``fences`` lets attempts at many shards land in one transaction.

Never pyiceberg's own transaction commit: it retries on its own, so that an expected parent is silently lost, and
keeps one ref assertion per type, so that updates get lost (reference: iceberg_staging §2.6).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID, uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile
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
    TableUpdate,
    ValidatableTableRequirement,
)
from sqlalchemy.exc import SQLAlchemyError

from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, StaleState, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.kept_files import AssertFilesKept
from tidemark.iceberg.commit.snapshot_builder import NOTHING, SnapshotBuilder, SnapshotChange, last_sequence_number
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shard.digest_file import bound_file, is_current, write_digest
from tidemark.iceberg.shard.head import HOLD_TAG, MAIN, OPEN, OPEN_ID, OWN_MAIN, OWN_UPDATES, UPDATES, ShardHead
from tidemark.iceberg.shard.layout import stray_properties
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import HOLD, CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.time_travel import own_snapshots
from tidemark.retry import retrying

log = logging.getLogger(__name__)

FAIL_POINTS = ("publish.before-commit", "publish.after-commit")
ATTEMPTS = 12
# Whoever fences must win, even against a leader that commits without a pause; one attempt wins about one time of five.
FENCE_ATTEMPTS, FENCE_LONGEST_PAUSE_S = 60, 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.04, 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What one commit does, decided from a fresh head, against which all checks were made."""

    state: ShardState  # what the shard shows afterwards
    main: SnapshotChange = NOTHING
    updates: SnapshotChange | None = None
    open: SnapshotChange | None = None
    branches: tuple[tuple[str, int], ...] = ()  # staging branches and the snapshots they must still point at
    set_properties: Mapping[str, str] = field(default_factory=dict)  # beside the state, for readers without a JVM
    # A digest is kept through commits that leave the contents alone; a change of contents brings its own or drops it.
    digest: bytes | Literal["keep"] | None = "keep"
    digest_parts: bytes | None = None  # of a digest that is given
    outdates_staged: bool = False  # corrections that were computed before must not be published, as if rows had changed
    resets_foreign: bool = False  # put main back on our own state if foreign commits lie above it
    resets_foreign_updates: bool = False  # the same for the change log; a change of updates does so anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a successful commit left."""

    state: ShardState
    snapshot_id: int  # of main
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One commit whose files are written: all that is left is to let the catalog decide."""

    state: ShardState  # what the shard shows afterwards
    requirements: tuple[ValidatableTableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    snapshot: Snapshot  # of main
    written: tuple[str, ...]  # manifests and manifest lists, garbage if the commit fails


class AssertLastSequenceNumber(ValidatableTableRequirement):
    """The sequence numbers of the new snapshots must follow: no commit on any branch may have come between."""

    type: Literal["assert-last-sequence-number"] = "assert-last-sequence-number"
    last_sequence_number: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> AssertLastSequenceNumber:
        return cls(last_sequence_number=last_sequence_number(metadata))

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or last_sequence_number(base_metadata) != self.last_sequence_number:
            raise CommitFailedException("Requirement failed: another snapshot was added")


class Publication:
    """One commit to a shard, attempted on fresh heads until it lands.

    The caller checks each head and says what to commit on top of it; what a check raises ends the publication::

        publication = Publication(writer.shard)
        for head in publication.heads():
            writer.check_token(head)
            publication.commit(head, Proposal(state=publication.next_state(head.state, CommitKind.ADVANCE, upper=9)))
        return publication.published
    """

    def __init__(self, shard: Shard, commit_id: str | None = None, *, is_fence: bool = False) -> None:
        """Begin; ``commit_id`` is a UUID, by which an attempt with unknown outcome is found later."""
        self.shard = shard
        self._attempts = FENCE_ATTEMPTS if is_fence else ATTEMPTS
        self._longest_pause_s = FENCE_LONGEST_PAUSE_S if is_fence else LONGEST_PAUSE_S
        self.commit_id = commit_id or str(uuid4())
        self._attempt = 0
        self._published: Published | None = None
        self._failure: Exception = TypeError("a head was passed over without a commit")  # of the last attempt
        self._in_doubt = False  # whether the outcome of some attempt is unknown
        self._digest_file: StatisticsFile | None = None  # written once, whatever the number of attempts

    @property
    def published(self) -> Published:
        """The state and snapshot that the commit left; only after ``heads`` has ended."""
        if self._published is None:
            raise TypeError(f"nothing was committed to {self.shard.name!r} yet")  # a bug in the caller
        return self._published

    def heads(self) -> Iterator[ShardHead]:
        """Yield a fresh head for each attempt, until one has landed; ``commit`` makes the attempt.

        Raises:
            ConflictsUnsettled: If other commits kept winning; nothing was written.
            CommitStateUnknown: If the store went away during the commit and cannot be asked, or went away every time.
            Unreachable: If the catalog does not answer, and no attempt is in doubt.
        """
        loop = retrying(
            CommitFailedException,
            SQLAlchemyError,
            attempts=self._attempts + 1,  # after the last attempt, a look whether it landed
            what=f"commit {self.commit_id} to shard {self.shard.name!r}",
            first_pause_s=FIRST_PAUSE_S,
            longest_pause_s=self._longest_pause_s,
        )
        for attempt in loop:
            self._attempt += 1
            head = self._load()
            if self._published is None and self._attempt <= self._attempts:
                yield head
            if self._published is not None:
                return
            with attempt:
                if self._attempt > self._attempts:
                    raise self._error_of_last_attempt(head) from self._failure
                raise self._failure

    def _error_of_last_attempt(self, head: ShardHead) -> StaleState:
        """Return the error for the last attempt, which has not landed by ``head``."""
        if not isinstance(self._failure, CommitFailedException):
            return self._unknown()
        # By now the table has moved on from the head of every attempt: none of them can land any more.
        if self._digest_file is not None:
            delete_files(head.table, [self._digest_file.statistics_path])
        return ConflictsUnsettled(
            f"{self._attempts} attempts to commit to shard {self.shard.name!r} lost against other commits; "
            "nothing was written",
            hint="run it again",
        )

    def next_state(self, state: ShardState, kind: CommitKind, **changes: Any) -> ShardState:
        """Return the state after this commit. Unless ``changes`` say otherwise it leaves the contents alone.

        The lower is the present upper then: the new snapshot holds the contents from there on, older times stay with
        the snapshots before.
        """
        fields = {"lower": state.upper, **changes}
        return replace(state, kind=kind, commit_id=self.commit_id, writer=self.shard.writer_id, **fields)

    def commit(self, head: ShardHead, proposal: Proposal) -> None:
        """Attempt the commit on top of ``head``; when the attempt is lost, ``heads`` goes on with a fresh head."""
        attempt = self.prepare(head, proposal)
        fail_point("publish.before-commit")
        try:
            self.shard.iceberg.commit_table(head.table, attempt.requirements, attempt.updates)  # type: ignore[arg-type]  # ours are validated too
        except CommitFailedException as error:
            self._failure = error
            delete_files(head.table, attempt.written)
        except SQLAlchemyError as error:
            # The update may have landed, or may still land: its files stay; orphan removal takes them if unused.
            self._failure, self._in_doubt = error, True
            log.warning(
                "the outcome of commit %s to %s is unknown, looking for it: %s",
                self.commit_id,
                self.shard.name,
                type(error).__name__,
            )
        else:
            fail_point("publish.after-commit")
            replaced = bound_file(head)
            if replaced is not None and not _keeps_digest(head, proposal):
                delete_files(head.table, [replaced.statistics_path])
            self._published = Published(
                state=attempt.state, snapshot_id=attempt.snapshot.snapshot_id, attempts=self._attempt
            )

    def prepare(self, head: ShardHead, proposal: Proposal) -> Attempt:
        """Write what a commit on top of ``head`` needs, which the catalog does not name yet."""
        is_changed = proposal.main.changes_rows or proposal.outdates_staged or not head.is_of_last_commit
        present = replace(
            proposal.state,
            schema_id=head.table.metadata.current_schema_id,  # the commit requires it
            changed=proposal.state.upper if is_changed else head.state.changed,
        )
        proposal = replace(proposal, state=present)
        builder = SnapshotBuilder(head.table, commit_uuid=UUID(self.commit_id), attempt=self._attempt)
        if isinstance(proposal.digest, bytes) and self._digest_file is None:
            self._digest_file = write_digest(head.table, self.commit_id, proposal.digest, proposal.digest_parts)
        with naming_damage(self.shard.load):
            requirements, updates, snapshot = _assemble(head, proposal, builder, self._digest_file)
        kept = AssertFilesKept.of(head.table, builder, (branch for branch, _ in proposal.branches))
        return Attempt(
            state=present,
            requirements=(*requirements, kept),
            updates=updates,
            snapshot=snapshot,
            written=tuple(builder.written),
        )

    def _load(self) -> ShardHead:
        """Return a fresh head; if an earlier attempt landed, set ``published`` to the state that this attempt left.

        Not to the present state: others may have committed since, and their token is not the caller's.
        """
        try:
            head = self.shard.load()
        except Unreachable as error:
            if not self._in_doubt:
                raise
            raise self._unknown() from error
        snapshot = head.own_commit(self.commit_id)
        if snapshot is not None:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            state = head.state.as_in(summary, shard=self.shard.name)
            self._published = Published(state=state, snapshot_id=snapshot.snapshot_id, attempts=self._attempt)
        return head

    def _unknown(self) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"the catalog went away during commit {self.commit_id} to shard {self.shard.name!r}: it may have landed",
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
    updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=main), set_ref(OWN_MAIN, main, SnapshotRefType.TAG)]
    if moves_main:
        updates.append(set_ref(MAIN, main))
    requirements: list[ValidatableTableRequirement] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastSequenceNumber.of(metadata),
        AssertRefSnapshotId(ref=MAIN, snapshot_id=head.main.snapshot_id),
        AssertRefSnapshotId(ref=OWN_MAIN, snapshot_id=head.own.snapshot_id),
    ]
    if differential:
        requirements.append(AssertRefSnapshotId(ref=UPDATES, snapshot_id=metadata.refs[UPDATES].snapshot_id))
        if proposal.updates is not None:
            change = replace(proposal.updates, summary={**summary, **proposal.updates.summary})
            snapshot = builder.build(head.updates, change)
            updates += [
                AddSnapshotUpdate(snapshot=snapshot),
                set_ref(UPDATES, snapshot),
                set_ref(OWN_UPDATES, snapshot, SnapshotRefType.TAG),
            ]
        elif head.foreign_updates and head.updates is not None and proposal.resets_foreign_updates:
            updates.append(set_ref(UPDATES, head.updates))
    if proposal.open is not None:
        opened = builder.build(head.open, replace(proposal.open, summary={"tidemark.kind": OPEN}))
        before = None if head.open is None else head.open.snapshot_id
        requirements.append(AssertRefSnapshotId(ref=OPEN, snapshot_id=before))
        updates += [AddSnapshotUpdate(snapshot=opened), set_ref(OPEN, opened, SnapshotRefType.TAG)]
        updates.append(SetPropertiesUpdate(updates={OPEN_ID: str(opened.snapshot_id)}))
    ended_holds = sorted(head.state.holds.keys() - state.holds.keys())
    updates += _hold_tags(head, state, main, ended_holds)
    for branch, snapshot_id in proposal.branches:
        requirements.append(AssertRefSnapshotId(ref=branch, snapshot_id=snapshot_id))
        updates.append(RemoveSnapshotRefUpdate(ref_name=branch))
    updates.append(SetPropertiesUpdate(updates={**proposal.set_properties, **state.properties()}))
    stray = stray_properties(metadata.properties, state.layout)  # older programs set them
    if removals := [*(HOLD + reader for reader in ended_holds), *stray]:
        updates.append(RemovePropertiesUpdate(removals=removals))
    updates += _statistics(head, proposal, digest_file, main)
    return tuple(requirements), tuple(updates), main


def _hold_tags(head: ShardHead, state: ShardState, main: Snapshot, ended: Sequence[str]) -> list[TableUpdate]:
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
        older = (snapshot for snapshot, lower in own_snapshots(head) if not hold.since < lower)
        snapshot = next(older, None) if hold.since < state.lower else main
        if snapshot is not None:
            updates.append(set_ref(tag, snapshot, SnapshotRefType.TAG))
        elif tag in refs:
            updates.append(RemoveSnapshotRefUpdate(ref_name=tag))
    ended_tags = (HOLD_TAG + reader for reader in ended)
    return updates + [RemoveSnapshotRefUpdate(ref_name=tag) for tag in ended_tags if tag in refs]


def _statistics(
    head: ShardHead, proposal: Proposal, digest_file: StatisticsFile | None, main: Snapshot
) -> list[TableUpdate]:
    """Bind the digest to the new snapshot instead of the old one."""
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
    """Return whether the present digest is also that of the new snapshot, which has the present schema."""
    return proposal.digest == "keep" and is_current(head)


def set_ref(name: str, snapshot: Snapshot, type_: SnapshotRefType = SnapshotRefType.BRANCH) -> SetSnapshotRefUpdate:
    """Point a branch, or a tag, at ``snapshot``; it never expires by age."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=type_,
        snapshot_id=snapshot.snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
