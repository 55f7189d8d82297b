"""Orphan removal deletes files below a table's folder that no metadata names; crashes and lost commits leave them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote
from uuid import uuid4

from pyarrow.fs import FileSelector
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside, delete_files
from tidemark.iceberg.files.manifests import filesystem_of, listed_files, read_manifests
from tidemark.iceberg.leases.protection import protect_writers
from tidemark.iceberg.shard.shard import Shard

_REMOVAL = "tidemark.orphans-removed"
_SUFFIXES = (".parquet", ".avro", ".metadata.json", ".puffin", ".crc")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanRemoval:
    """The result of one removal."""

    files: int
    bytes: int


def remove_orphans(shard: Shard, *, older_than_ms: int) -> OrphanRemoval:
    """Delete files of the table's folder that no snapshot and no metadata names and that were last written long ago.

    ``older_than_ms``, in ms since the Unix epoch, must lie ``ORPHAN_AGE_MS`` before the store's ``store_now_ms``. Older
    files stay, too, if they may be of a process that holds a lease: ``protect_writers``.
    """
    files = [file for file in _list_files(shard.load().table) if file[1] < older_than_ms]
    if not _unnamed(shard.load().table, files):
        return OrphanRemoval(files=0, bytes=0)
    settings = getattr(shard.iceberg, "settings", None)
    if settings is not None and (since_ms := protect_writers(settings, shard.name)) is not None:
        files = [file for file in files if file[1] < since_ms]
    for attempt in attempts_beside(shard, "the removal of orphans"):
        with attempt:
            # A commit that is under way loses against this change, and then looks for its files again: ``kept_files``.
            commit_beside(shard, shard.load(), (), [SetPropertiesUpdate(updates={_REMOVAL: str(uuid4())})])
    table = shard.load().table
    orphans = _unnamed(table, files)
    scheme = table.location().partition("://")
    prefix = f"{scheme[0]}://" if scheme[1] and scheme[0] != "file" else ""
    delete_files(table, [prefix + path for path, _ in orphans])
    return OrphanRemoval(files=len(orphans), bytes=sum(size for _, size in orphans))


def store_now_ms(shard: Shard) -> int:
    """Return the present time, in ms since the Unix epoch, of the store that the files lie in."""
    table = shard.load_table()
    location = table.location_provider().new_metadata_location(f"tidemark-time-{uuid4()}.crc")
    with table.io.new_output(location).create() as stream:
        stream.write(b"now")
    filesystem, path = filesystem_of(table, location)
    now_ms = (filesystem.get_file_info(path).mtime_ns or 0) // 1_000_000
    table.io.delete(location)
    return now_ms


def _unnamed(table: Table, files: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Return path and size of the files that the table's metadata do not name."""
    named = {name for path in _named_files(table) for name in _names(path)}
    return [(path, size) for path, _, size in files if not named.intersection(_names(path))]


def _named_files(table: Table) -> set[str]:
    metadata = table.metadata
    manifests = read_manifests(table, metadata.snapshots)
    return {
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(file.statistics_path for file in metadata.statistics),
        *(file.statistics_path for file in metadata.partition_statistics),
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *manifests,
        *listed_files(table, manifests.values()),
    }


def _list_files(table: Table) -> list[tuple[str, int, int]]:
    """Return path, time of the last write in ms, and size of the files that a table has, below its folder."""
    filesystem, path = filesystem_of(table, table.location())
    return [
        (info.path, (info.mtime_ns or 0) // 1_000_000, info.size or 0)
        for info in filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        if info.is_file and info.path.endswith(_SUFFIXES)
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
