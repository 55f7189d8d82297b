"""Which files a snapshot consists of, as its manifests say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table.snapshots import Snapshot


def read_entries(
    io: FileIO, snapshot: Snapshot, content: ManifestContent | None = None
) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    """Yield the live entries of ``snapshot`` with their manifests; ``content`` limits them to data or to deletes."""
    for manifest in snapshot.manifests(io):
        if content is None or manifest.content == content:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                yield manifest, entry


def read_data_files(io: FileIO, snapshot: Snapshot) -> dict[str, DataFile]:
    """Return the live data files by path; their partition and spec id are those they were written with."""
    return {entry.data_file.file_path: entry.data_file for _, entry in read_entries(io, snapshot, ManifestContent.DATA)}


def read_delete_files(io: FileIO, snapshot: Snapshot) -> dict[str, DataFile]:
    """Return the live position-delete files by path."""
    return {
        entry.data_file.file_path: entry.data_file
        for _, entry in read_entries(io, snapshot, ManifestContent.DELETES)
        if entry.data_file.content == DataFileContent.POSITION_DELETES
    }


def read_added_files(io: FileIO, snapshot: Snapshot) -> list[DataFile]:
    """Return the files that this very snapshot added: what a staged batch consists of."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def partition_of(file: DataFile) -> tuple[int, tuple[object, ...]]:
    """Return the partition of a file as a key: the id of its spec, and the values."""
    return file.spec_id, tuple(file.partition[position] for position in range(len(file.partition)))
