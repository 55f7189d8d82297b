"""Files below a table's folder that its metadata does not name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.iceberg.files.manifests import listed_files, read_manifests

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def stored_files(settings: Settings) -> set[Path]:
    return {path for path in (settings.home / "warehouse").rglob("*") if path.is_file()}


def named_files(shard: Shard) -> set[str]:
    """Names of every file that the table's metadata knows."""
    table = shard.load().table
    manifests = read_manifests(table, table.metadata.snapshots)
    paths = {
        table.metadata_location,
        *(entry.metadata_file for entry in table.metadata.metadata_log),
        *(each.statistics_path for each in table.metadata.statistics),
        *(each.manifest_list for each in table.metadata.snapshots),
        *manifests,
        *listed_files(table, manifests.values()),
    }
    return {path.rpartition("/")[2] for path in paths}


def leftovers(settings: Settings, shard: Shard) -> set[str]:
    """Names of the stored files that nothing refers to; a checksum file goes with the file it belongs to."""
    names = {path.name for path in stored_files(settings) if f"/{shard.name}/" in str(path)}
    named = named_files(shard)
    return names - named - {f".{name}.crc" for name in named}
