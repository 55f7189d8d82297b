"""Damage that a disk, a person or another tool does to a shard's metadata file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.rows import local_path

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard


def metadata_file(shard: Shard) -> Path:
    """Return the file that the catalog names now."""
    return Path(local_path(shard.load().table.metadata_location))


def damage_metadata(shard: Shard, how: str) -> None:
    """Damage the present metadata file; who has parsed it already does not see it, so connect anew.

    "no list" removes the list of the manifests instead.
    """
    if how == "no list":
        Path(local_path(shard.load().contents.manifest_list)).unlink()
        return
    path = metadata_file(shard)
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how.startswith("without "):
        metadata = json.loads(whole)
        del metadata[how.removeprefix("without ")]
        path.write_text(json.dumps(metadata), encoding="utf-8")
    else:
        damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "binary": bytes(range(128, 256)), "list": b"[]"}
        path.write_bytes(damaged[how])
