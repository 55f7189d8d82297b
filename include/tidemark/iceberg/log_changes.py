"""Reading a log on: only the files that were added since the last look, not the whole log again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask

from tidemark.iceberg.commit.checks import bounds
from tidemark.iceberg.reading.arrow import scan_tasks
from tidemark.iceberg.shard.layout import DIFF, TIME

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile

    from tidemark.iceberg.shard.head import ShardHead


class TimedUpdate(NamedTuple):
    """One stored update of a log."""

    kind: str
    key: str
    value: str
    time: int
    diff: int


def read_changes(head: ShardHead, *, from_: int, known: set[str]) -> list[TimedUpdate]:
    """Return the updates at times from ``from_`` on, in order of time, as they are stored.

    Args:
        head: The fresh head of a log.
        from_: The first time (inclusive), in ms; from ``head.state.since`` on, times are what they were.
        known: Paths of manifests that hold nothing at these times; those that were looked at now are added.
    """
    io, schema = head.table.io, head.table.schema()
    files: list[DataFile] = []
    for manifest in head.contents.manifests(io):
        if manifest.manifest_path in known or manifest.content != ManifestContent.DATA:
            continue
        known.add(manifest.manifest_path)
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        files += [entry.data_file for entry in entries if bounds(entry.data_file, schema, TIME)[1] >= from_]
    if not files:
        return []
    tasks = [FileScanTask(file, delete_files=set(), residual=AlwaysTrue()) for file in files]
    updates = (TimedUpdate(*row) for row in _rows(scan_tasks(head, tasks)))
    return sorted((update for update in updates if update.time >= from_), key=lambda update: update.time)


def read_all(head: ShardHead) -> list[TimedUpdate]:
    """Return every stored update of a log, in no order."""
    return [TimedUpdate(*row) for row in _rows(head.table.scan(snapshot_id=head.contents.snapshot_id).to_arrow())]


def _rows(table: pa.Table) -> zip[tuple[str, str, str, int, int]]:
    columns = (table.column(name).to_pylist() for name in ("kind", "key", "value", TIME, DIFF))
    return zip(*columns, strict=True)
