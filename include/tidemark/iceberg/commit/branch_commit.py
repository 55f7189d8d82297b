"""Commits that leave main and updates where they are: staging branches made or removed, snapshots expired."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    ValidatableTableRequirement,
)
from sqlalchemy.exc import SQLAlchemyError
from tenacity import Retrying

from tidemark.iceberg.commit.kept_files import AssertFilesKept
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.retry import retrying

log = logging.getLogger(__name__)

ATTEMPTS = 12


class _LostCommitError(Exception):
    """Another commit won, or nobody knows whether this commit landed: read a fresh head."""


class AssertNoRefNeeds(ValidatableTableRequirement):
    """No ref that stays where it is points at a snapshot that is to be removed: pyiceberg would remove the ref, too."""

    type: Literal["assert-no-ref-needs"] = "assert-no-ref-needs"
    snapshot_ids: frozenset[int]
    changed_refs: frozenset[str]

    @classmethod
    def of(cls, updates: Sequence[TableUpdate]) -> AssertNoRefNeeds:
        changed = (update for update in updates if isinstance(update, RemoveSnapshotRefUpdate | SetSnapshotRefUpdate))
        removals = (update for update in updates if isinstance(update, RemoveSnapshotsUpdate))
        return cls(
            snapshot_ids=frozenset(snapshot_id for removal in removals for snapshot_id in removal.snapshot_ids),
            changed_refs=frozenset(update.ref_name for update in changed),
        )

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        for name, ref in (base_metadata.refs if base_metadata else {}).items():
            if name not in self.changed_refs and ref.snapshot_id in self.snapshot_ids:
                raise CommitFailedException(f"Requirement failed: ref {name} needs snapshot {ref.snapshot_id}")


class AssertSnapshotsAndRefs(ValidatableTableRequirement):
    """Nobody added or removed a snapshot, or changed a ref, since the head was read: refs move alone, too."""

    type: Literal["assert-snapshots-and-refs"] = "assert-snapshots-and-refs"
    snapshot_ids: frozenset[int]
    refs: dict[str, int]

    @classmethod
    def of(cls, metadata: TableMetadata) -> AssertSnapshotsAndRefs:
        return cls(
            snapshot_ids=frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots),
            refs={name: ref.snapshot_id for name, ref in metadata.refs.items()},
        )

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or self.of(base_metadata) != self:
            raise CommitFailedException("Requirement failed: a snapshot was added or removed, or a ref was changed")


def attempts_beside(shard: Shard, what: str) -> Retrying:
    """Return the attempts at one commit beside main; ``what`` names the commit in the error message.

    Each attempt begins with a fresh head::

        for attempt in attempts_beside(shard, "the removal of staging branches"):
            with attempt:
                head = shard.load()
                ...
                commit_beside(shard, head, requirements, updates)

    An unknown outcome is treated like a conflict, so each attempt must first check in the fresh head whether an earlier
    attempt landed. The loop raises ``ConflictsUnsettled`` if other commits keep winning.
    """
    return retrying(_LostCommitError, attempts=ATTEMPTS, what=f"{what} of {shard.name!r}")


def commit_beside(
    shard: Shard,
    head: ShardHead,
    requirements: Sequence[ValidatableTableRequirement],
    updates: Sequence[TableUpdate],
    *,
    builder: SnapshotBuilder | None = None,
) -> None:
    """Commit ``updates`` on top of the fresh ``head``, within an attempt of ``attempts_beside``.

    ``builder`` has built the snapshots that the commit adds, if any; their manifests are deleted if the commit loses.

    Raises ``InputsGone`` if a file of these snapshots is gone, or may be removed as an orphan at any moment.
    """
    table = head.table
    requirements = [AssertTableUUID(uuid=table.metadata.table_uuid), AssertNoRefNeeds.of(updates), *requirements]
    if builder is not None:
        requirements.append(AssertFilesKept.of(table, builder))
    try:
        shard.iceberg.commit_table(table, tuple(requirements), tuple(updates))  # type: ignore[arg-type]  # our own are validated
    except CommitFailedException as error:
        delete_files(table, builder.written if builder else ())
        raise _LostCommitError from error
    except SQLAlchemyError as error:  # the commit may still land, so that its files stay
        log.warning("the outcome of a commit to %s is unknown: %s", shard.name, type(error).__name__)
        raise _LostCommitError from error


def remove_snapshots(snapshots: Iterable[Snapshot]) -> RemoveSnapshotsUpdate:
    """Return the update that removes ``snapshots``, and what the metadata say of their statistics."""
    return RemoveSnapshotsUpdate(**{"snapshot-ids": [snapshot.snapshot_id for snapshot in snapshots]})


def delete_files(table: Table, paths: Iterable[str]) -> int:
    """Delete files that nothing refers to; return the number of deleted files. Orphan removal deletes the others."""
    deleted = 0
    for path in paths:
        with suppress(OSError):
            table.io.delete(path)
            deleted += 1
    return deleted
