"""One commit to a target table: the snapshot, the columns and the progress at once, on what the run has seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID, uuid4

import numpy as np
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableUpdate,
    ValidatableTableRequirement,
    update_table_metadata,
)

from tidemark.errors import NotPossible, Refused
from tidemark.iceberg.commit.publisher import AssertLastSequenceNumber, set_ref
from tidemark.iceberg.commit.snapshot_builder import FORMAT_VERSION, SnapshotBuilder, SnapshotChange
from tidemark.iceberg.files.data_files import write_position_deletes
from tidemark.iceberg.files.manifests import listed_files
from tidemark.iceberg.files.row_positions import as_delete_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.head import MAIN
from tidemark.sinks.progress import Progress
from tidemark.sinks.targets.keys import Keys

PREFIX = "tidemark-sink."
PROGRESS, COMMIT_ID = f"{PREFIX}progress", f"{PREFIX}commit-id"


class AssertProperty(ValidatableTableRequirement):
    """No run may have claimed the table, or written to it, since it was read."""

    type: Literal["assert-property"] = "assert-property"
    value: str | None

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or base_metadata.properties.get(PROGRESS) != self.value:
            raise CommitFailedException("Requirement failed: another run of a sink came between")


@dataclass(slots=True, kw_only=True)
class Change:
    """What a transaction does to a table, whatever foreign maintenance does to its files meanwhile."""

    schema_id: int  # of the table as the run found it
    evolved: Table  # with the columns of the new rows
    after: Progress
    added: tuple[DataFile, ...]
    updates: tuple[TableUpdate, ...] = ()  # that make the table, or its columns
    keys: Keys | None = None  # of rows that go, or come anew
    key: tuple[str, ...] = ()
    replaces_all: bool = False
    is_new: bool = False  # the commit makes the table
    commit_id: str = field(default_factory=lambda: str(uuid4()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, whose files are written: all that is left is to let the catalog decide."""

    requirements: tuple[ValidatableTableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...]  # garbage if the attempt is lost


def parse_progress(table: Table, *, where: str) -> Progress | None:
    """Return the progress in the properties of a table. Raises ``CorruptState``."""
    text = table.properties.get(PROGRESS)
    return None if text is None else Progress.parse(json.loads(text), where=where)


def progress_property(progress: Progress) -> dict[str, str]:
    """Return the property in which a table keeps the progress."""
    return {PROGRESS: json.dumps(progress.to_json())}


def fencing(table: Table) -> tuple[ValidatableTableRequirement, ...]:
    """Return what a commit requires, so that one of two runs at once loses.

    A catalog on a server knows the requirements of the specification alone. There, only ``main`` fences: two
    runs may claim the table, and the one that comes second to write loses.
    """
    standard: tuple[ValidatableTableRequirement, ...] = (AssertTableUUID(uuid=table.metadata.table_uuid),)
    if not isinstance(table.catalog, MetastoreCatalog):
        return standard
    return (*standard, AssertProperty(value=table.properties.get(PROGRESS)))


def prepare(table: Table, change: Change, *, attempt: int, title: str) -> Attempt:
    """Write the manifests, and the position deletes, of ``change`` on top of ``table``."""
    evolved = change.evolved if change.is_new else _with_updates(table, change)
    parent = None if change.is_new else table.current_snapshot()
    check_table(table, title=title)
    if not change.replaces_all:
        _check_history(table, title=title)
    deletes = () if change.keys is None or parent is None else _write_deletes(evolved, parent, change.keys, change.key)
    removed = frozenset[str]()
    if change.replaces_all and parent is not None:
        removed = frozenset(listed_files(table, parent.manifests(table.io), live_only=True))
    builder = SnapshotBuilder(evolved, commit_uuid=UUID(change.commit_id), attempt=attempt)
    snapshot = builder.build(
        parent,
        SnapshotChange(
            operation=Operation.OVERWRITE if deletes or removed else Operation.APPEND,
            added=change.added,
            deletes=deletes,
            removed=removed,
            summary={COMMIT_ID: change.commit_id, f"{PREFIX}time": str(change.after.time)},
        ),
    )
    properties = {COMMIT_ID: change.commit_id, **progress_property(change.after)}
    return Attempt(
        requirements=(AssertCreate(),) if change.is_new else _requirements(table, parent),
        updates=(
            *change.updates,
            AddSnapshotUpdate(snapshot=snapshot),
            set_ref(MAIN, snapshot),
            SetPropertiesUpdate(updates=properties),
        ),
        written=(*builder.written, *(file.file_path for file in deletes)),
    )


def has_landed(table: Table | None, commit_id: str) -> bool:
    """Tell whether the commit is in the history of the table."""
    if table is None:
        return False
    summaries = (snapshot.summary for snapshot in table.metadata.snapshots)
    return table.properties.get(COMMIT_ID) == commit_id or any(
        summary is not None and summary[COMMIT_ID] == commit_id for summary in summaries
    )


def _check_history(table: Table, *, title: str) -> None:
    """Raise ``Refused`` if somebody moved ``main`` back behind the sink's last commit, whose rows are then gone."""
    commit_id = table.properties.get(COMMIT_ID)
    summaries = ((each, each.summary) for each in table.metadata.snapshots)
    last = [each for each, summary in summaries if summary is not None and summary[COMMIT_ID] == commit_id]
    present = table.current_snapshot()
    history = () if present is None else ancestors_of(present, table.metadata)
    if commit_id is not None and last and last[0] not in history:
        raise Refused(
            f"{title} was rolled back to a snapshot before {last[0].snapshot_id}, the last one of the sink",
            hint="roll it forward; or drop the sink, and declare it again with `existing: replace`, which loads all "
            "rows anew",
        )


def check_table(table: Table, *, title: str) -> None:
    """Raise ``NotPossible`` for a table that sinks cannot write, or whose deletes they cannot read."""
    if table.metadata.format_version != FORMAT_VERSION:
        raise NotPossible(
            f"{title} is of format version {table.metadata.format_version}, and sinks write version {FORMAT_VERSION}",
            hint="name a table that is not there: the sink makes one",
        )
    snapshot = table.current_snapshot()
    if snapshot is not None and snapshot.summary is not None and int(snapshot.summary["total-equality-deletes"] or 0):
        raise NotPossible(
            f"{title} has equality deletes, which another engine wrote, and which sinks cannot read",
            hint="rewrite its files with that engine, and let nobody else write rows there",
        )


def _requirements(table: Table, parent: Snapshot | None) -> tuple[ValidatableTableRequirement, ...]:
    metadata = table.metadata
    requirements: tuple[ValidatableTableRequirement, ...] = (
        *fencing(table),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertRefSnapshotId(ref=MAIN, snapshot_id=None if parent is None else parent.snapshot_id),
    )
    # A server checks the sequence number of a new snapshot by itself.
    is_local = isinstance(table.catalog, MetastoreCatalog)
    return (*requirements, AssertLastSequenceNumber.of(metadata)) if is_local else requirements


def _with_updates(table: Table, change: Change) -> Table:
    """Return the present table with the new columns."""
    metadata = update_table_metadata(table.metadata, change.updates) if change.updates else table.metadata
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def _write_deletes(table: Table, parent: Snapshot, keys: Keys, key: Sequence[str]) -> tuple[DataFile, ...]:
    """Write the positions of the stored rows with such keys."""
    stored = StoredRows.in_snapshot(table, parent)
    positions = {}
    for file in stored.files:
        found = [placed.positions[keys.find(placed.rows)] for placed in stored.scan(file, key)]
        if found and len(joined := np.concatenate(found)):
            positions[file.file_path] = joined
    return write_position_deletes(table, as_delete_rows(positions), stored.by_path) if positions else ()
