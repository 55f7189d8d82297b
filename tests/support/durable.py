"""What is durable in a home and belongs to the deployment that leads, to be compared before and after."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tidemark.iceberg.shards import SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table.metadata import TableMetadata

    from tests.support.homes import Home


def everything(home: Home) -> dict[str, Any]:
    """All that is durable and the leader's: both sides of the catalog, the tables, the buffer, the targets of sinks."""
    shards = [*home.shards.all(), *home.shards.all(SYSTEM)]
    return {
        "catalog": home.dumps(),
        "tables": {shard.identifier: of_the_leader(shard.load().table.metadata) for shard in shards},
        "buffer": contents(home.buffer_folder),
        "target": contents(home.folder / "out"),
    }


def of_the_leader(metadata: TableMetadata) -> dict[str, Any]:
    """What a table is without the staging branches of deployment 2."""
    properties = {name: value for name, value in metadata.properties.items() if name != "tidemark.ingest.quarantine.2"}
    refs = {name: ref for name, ref in metadata.refs.items() if not name.startswith("staged/2/")}
    apart = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in refs}
    return {
        "properties": properties,
        "schemas": (metadata.schemas, metadata.current_schema_id),
        "refs": refs,
        "snapshots": [each for each in metadata.snapshots if each.snapshot_id not in apart],
        "statistics": [each for each in metadata.statistics if each.snapshot_id not in apart],
    }


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
