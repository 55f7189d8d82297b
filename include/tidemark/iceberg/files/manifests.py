"""Which files a snapshot consists of, as its manifests say."""

from __future__ import annotations

from collections.abc import Iterable

from pyarrow.fs import FileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

Partition = tuple[int, tuple[object, ...]]  # the id of its spec, and its values


def read_data_files(io: FileIO, snapshot: Snapshot) -> dict[str, DataFile]:
    """Return the live data files by path, with the partition and spec id of the time of writing."""
    return _live_files(io, snapshot, ManifestContent.DATA)


def read_delete_files(io: FileIO, snapshot: Snapshot) -> dict[str, DataFile]:
    """Return the live position-delete files by path."""
    files = _live_files(io, snapshot, ManifestContent.DELETES)
    return {path: file for path, file in files.items() if file.content == DataFileContent.POSITION_DELETES}


def _live_files(io: FileIO, snapshot: Snapshot, content: ManifestContent) -> dict[str, DataFile]:
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.content == content
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    }


def read_added_files(io: FileIO, snapshot: Snapshot) -> list[DataFile]:
    """Return the files that this snapshot itself added; for a staged batch these are all its files."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def partition_of(file: DataFile) -> Partition:
    """Return the partition of a file in a form that can be a dictionary key."""
    return file.spec_id, tuple(file.partition[position] for position in range(len(file.partition)))


def read_manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Return the manifests of ``snapshots`` by path: a manifest that many of them share is there once."""
    return {manifest.manifest_path: manifest for snapshot in snapshots for manifest in snapshot.manifests(table.io)}


def listed_files(table: Table, manifests: Iterable[ManifestFile], *, live_only: bool = False) -> set[str]:
    """Return the paths of the data and delete files in ``manifests``; without ``live_only`` also of deleted files."""
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=live_only)
    }


def filesystem_of(table: Table, location: str) -> tuple[FileSystem, str]:
    """Return the file system of ``location``, opened with the table's logins, and the path on this file system."""
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    return PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc), path
