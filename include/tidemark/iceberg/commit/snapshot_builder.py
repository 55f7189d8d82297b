"""Build one snapshot: its manifests, manifest list and summary. Nothing is visible until the publisher commits it.

Only this module and ``publisher`` depend on pyiceberg's manifest writers; on an upgrade of pyiceberg, check both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final
from uuid import UUID, uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries

from tidemark.iceberg.files.manifest_lists import copy_manifest_list

FORMAT_VERSION: Final = 2
COMPRESSION: Final = "deflate"
MERGE_ABOVE = 100  # manifests; a commit adds one or two, and a read opens all: above, they are rewritten as one


def last_sequence_number(metadata: TableMetadata) -> int:
    """Return the largest sequence number given out so far."""
    return metadata.last_sequence_number  # type: ignore[union-attr]  # format v1 has none, and shards are v2


class DeleteManifestWriter(ManifestWriterV2):
    """A manifest of delete files, which pyiceberg 0.12 reads and cannot write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


WRITERS = {ManifestContent.DATA: ManifestWriterV2, ManifestContent.DELETES: DeleteManifestWriter}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChange:
    """The files that a snapshot adds to its parent, and the paths of those that it removes."""

    operation: Operation
    added: tuple[DataFile, ...] = ()  # data files
    deletes: tuple[DataFile, ...] = ()  # position-delete files
    removed: frozenset[str] = frozenset()
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_files(self) -> bool:
        return bool(self.added or self.deletes or self.removed)

    @property
    def changes_rows(self) -> bool:
        return self.operation != Operation.REPLACE and self.changes_files


NOTHING = SnapshotChange(operation=Operation.APPEND)


class SnapshotBuilder:
    """Builds the snapshots of one commit; sequence numbers follow those of the given metadata."""

    def __init__(self, table: Table, *, commit_uuid: UUID | None = None, attempt: int = 1) -> None:
        self._metadata: TableMetadata = table.metadata
        self._io: FileIO = table.io
        self._locations = table.location_provider()
        self._commit_uuid = commit_uuid or uuid4()
        self._attempt = attempt
        self._manifest_numbers = count()
        self._sequence_number = last_sequence_number(table.metadata)
        self.written: list[str] = []  # manifests and manifest lists, garbage if the commit fails
        self.added: list[str] = []  # data and delete files

    def build(self, parent: Snapshot | None, change: SnapshotChange) -> Snapshot:
        """Write the manifests of ``change`` on top of ``parent`` and return the new snapshot.

        Raises ``FileNotFoundError`` if a file to be removed is not live in ``parent``.
        """
        self._sequence_number += 1
        self.added += [file.file_path for file in (*change.added, *change.deletes)]
        snapshot_id = self._metadata.new_snapshot_id()
        path = self._locations.new_metadata_location(f"snap-{snapshot_id}-{self._attempt}-{self._commit_uuid}.avro")
        removed_files: list[DataFile] = []
        if parent is None or change.changes_files or _has_removed_files(parent):
            removed_files = self._write_list(path, parent, change, snapshot_id)
        else:
            header = {
                "snapshot-id": str(snapshot_id),
                "parent-snapshot-id": str(parent.snapshot_id),
                "sequence-number": str(self._sequence_number),
            }
            copy_manifest_list(self._io.new_input(parent.manifest_list), self._io.new_output(path), header)
        self.written.append(path)
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            manifest_list=path,
            sequence_number=self._sequence_number,
            summary=self._summary(change, removed_files, parent),
            schema_id=self._metadata.current_schema_id,
        )

    def _write_list(
        self, path: str, parent: Snapshot | None, change: SnapshotChange, snapshot_id: int
    ) -> list[DataFile]:
        """Write the manifests of ``change``, and the list of all manifests; return the removed files."""
        inherited = parent.manifests(self._io) if parent else []
        kept, removed_files = self._without(inherited, change.removed, snapshot_id)
        manifests = [
            *self._write_added(change.added, ManifestContent.DATA, snapshot_id),
            *self._write_added(change.deletes, ManifestContent.DELETES, snapshot_id),
            *self._merge(kept, snapshot_id),
        ]
        with write_manifest_list(
            format_version=FORMAT_VERSION,
            output_file=self._io.new_output(path),
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=self._sequence_number,
            avro_compression=COMPRESSION,
        ) as writer:
            writer.add_manifests(manifests)
        return removed_files

    def _without(
        self, manifests: list[ManifestFile], removed: frozenset[str], snapshot_id: int
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Rewrite the manifests that list a removed file; return all manifests and the removed files."""
        if not removed:
            return [one for one in manifests if one.has_added_files() or one.has_existing_files()], []
        kept: list[ManifestFile] = []
        removed_files: list[DataFile] = []
        for manifest in manifests:
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            files = [entry.data_file for entry in entries if entry.data_file.file_path in removed]
            if not files:
                kept.append(manifest)
                continue
            removed_files.extend(files)
            with self._writer(manifest.content, manifest.partition_spec_id, snapshot_id) as writer:
                for entry in entries:
                    (writer.delete if entry.data_file.file_path in removed else writer.existing)(entry)
            kept.append(writer.to_manifest_file())
        if missing := removed - {file.file_path for file in removed_files}:
            raise FileNotFoundError(f"{len(missing)} files to be removed are not live, for example {min(missing)}")
        return kept, removed_files

    def _write_added(self, files: Iterable[DataFile], content: ManifestContent, snapshot_id: int) -> list[ManifestFile]:
        by_spec: defaultdict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(file)
        manifests = []
        for spec_id, group in sorted(by_spec.items()):
            with self._writer(content, spec_id, snapshot_id) as writer:
                for file in group:
                    writer.add_entry(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return manifests

    def _merge(self, manifests: list[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
        """Rewrite the manifests of one content and spec as one, once there are too many of them."""
        groups: defaultdict[tuple[ManifestContent, int], list[ManifestFile]] = defaultdict(list)
        for manifest in manifests:
            groups[manifest.content, manifest.partition_spec_id].append(manifest)
        merged: list[ManifestFile] = []
        for (content, spec_id), group in groups.items():
            if len(group) <= MERGE_ABOVE:
                merged.extend(group)
                continue
            with self._writer(content, spec_id, snapshot_id) as writer:
                for manifest in group:
                    # Entries that this commit deleted must stay listed as deleted; older deletions need not.
                    own = manifest.added_snapshot_id == snapshot_id
                    for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=not own):
                        (writer.delete if entry.status == ManifestEntryStatus.DELETED else writer.existing)(entry)
            merged.append(writer.to_manifest_file())
        return merged

    def _writer(self, content: ManifestContent, spec_id: int, snapshot_id: int) -> ManifestWriterV2:
        path = self._locations.new_metadata_location(
            f"{self._commit_uuid}-{self._attempt}-m{next(self._manifest_numbers)}.avro"
        )
        self.written.append(path)
        return WRITERS[content](
            self._metadata.specs()[spec_id],
            self._metadata.schema(),
            self._io.new_output(path),
            snapshot_id,
            COMPRESSION,
        )

    def _summary(self, change: SnapshotChange, removed_files: list[DataFile], parent: Snapshot | None) -> Summary:
        collector = SnapshotSummaryCollector()
        schema, specs = self._metadata.schema(), self._metadata.specs()
        for file in (*change.added, *change.deletes):
            collector.add_file(file, schema, specs[file.spec_id])
        for file in removed_files:
            collector.remove_file(file, schema, specs[file.spec_id])
        # pyiceberg computes totals for append, overwrite and delete only; they are the same for a replacement.
        computed_as = Operation.OVERWRITE if change.operation == Operation.REPLACE else change.operation
        computed = update_snapshot_summaries(
            Summary(operation=computed_as, **collector.build(), **change.summary), parent.summary if parent else None
        )
        return Summary(operation=change.operation, **computed.additional_properties)


def _has_removed_files(snapshot: Snapshot) -> bool:
    """Tell whether the snapshot took files away: it may list manifests without a live file, which its child drops."""
    summary = snapshot.summary
    return summary is None or any(summary[key] for key in ("deleted-data-files", "removed-delete-files"))
