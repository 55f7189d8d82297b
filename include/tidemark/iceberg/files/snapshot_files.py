"""Every file that snapshots refer to: what expiry and orphan removal must and must not delete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


@dataclass(slots=True)
class SnapshotFiles:
    """Files by kind; ``manifests`` by path, so that one that many snapshots share is read once."""

    manifest_lists: set[str] = field(default_factory=set)
    manifests: dict[str, ManifestFile] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table, snapshots: Iterable[Snapshot]) -> SnapshotFiles:
        """Read the manifest lists of ``snapshots``."""
        files = cls()
        for snapshot in snapshots:
            files.manifest_lists.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                files.manifests.setdefault(manifest.manifest_path, manifest)
        return files


def live_files(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    """Return the data and delete files that are live in some of ``manifests``."""
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def listed_files(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    """Return every data and delete file that ``manifests`` name, also those that they declare deleted."""
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
