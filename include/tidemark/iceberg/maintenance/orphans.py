"""Orphan removal deletes files below a table's folder that no metadata names; crashes and lost commits leave them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from pyarrow.fs import FileSelector
from pyiceberg.table import Table

from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.files.manifests import SnapshotFiles, filesystem_of, listed_files
from tidemark.iceberg.shard.shard import Shard

MIN_AGE_MS = 3 * 24 * 3600 * 1000  # longer than any job writes before it commits
_SUFFIXES = (".parquet", ".avro", ".metadata.json", ".puffin", ".crc")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRemoval:
    """The result of one removal."""

    files: int
    bytes: int


def remove_orphans(shard: Shard, *, older_than_ms: int) -> OrphanRemoval:
    """Delete files of the table's folder that no snapshot and no metadata names and that were last written long ago.

    ``older_than_ms``, in ms since the Unix epoch, must lie further back than the longest time between the first file of
    a job and its commit: see ``MIN_AGE_MS``.
    """
    # First the folder, then the metadata: the metadata names a file that is committed in between, and a file that is
    # written after the listing is not in the listing.
    table = shard.load().table
    files = _list_files(table)
    table = shard.load().table
    named = {name for path in _named_files(table) for name in _names(path)}
    orphans = [
        (path, size)
        for path, modified_ms, size in files
        if modified_ms < older_than_ms and path.endswith(_SUFFIXES) and not named.intersection(_names(path))
    ]
    scheme = table.location().partition("://")
    prefix = f"{scheme[0]}://" if scheme[1] and scheme[0] != "file" else ""
    delete_files(table, [prefix + path for path, _ in orphans])
    return OrphanRemoval(files=len(orphans), bytes=sum(size for _, size in orphans))


def _named_files(table: Table) -> set[str]:
    metadata = table.metadata
    files = SnapshotFiles.of(table, metadata.snapshots)
    return {
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(file.statistics_path for file in metadata.statistics),
        *(file.statistics_path for file in metadata.partition_statistics),
        *files.manifest_lists,
        *files.manifests,
        *listed_files(table, files.manifests.values()),
    }


def _list_files(table: Table) -> list[tuple[str, int, int]]:
    """Return path, time of the last write in ms, and size of every file below the table's folder."""
    filesystem, path = filesystem_of(table, table.location())
    return [
        (info.path, (info.mtime_ns or 0) // 1_000_000, info.size or 0)
        for info in filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        if info.is_file
    ]


def _names(path: str) -> tuple[str, str]:
    """Return the name of the file, as it is and unquoted; for a checksum file the name of the checked file.

    Paths come in several forms (``file:///a``, ``file:/a``, ``/a``; quoted or not), and an unknown form would cost a
    live file. Names hold a UUID; if two files have the same name, an orphan stays.
    """
    name = path.rpartition("/")[2]
    if name.endswith(".crc"):
        name = name.removesuffix(".crc").removeprefix(".")
    return name, unquote(name)
