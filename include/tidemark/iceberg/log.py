"""The log layout: small typed updates, written and read in this process; the persist catalog is a log.

A process that follows a log reads only the files that were added since its last read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import NestedField, StringType

from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.checks import bounds
from tidemark.iceberg.commit.publisher import Published
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.reading.arrow import scan_tasks
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead

LOG_SCHEMA = Schema(
    NestedField(1, "kind", StringType(), required=True),
    NestedField(2, "key", StringType(), required=True),
    NestedField(3, "value", StringType(), required=True),
)


class LogUpdate(NamedTuple):
    """One update of a log: ``value`` is JSON text, ``diff`` +1 or -1."""

    kind: str
    key: str
    value: str
    diff: int


def append_to_log(
    writer: Writer,
    updates: Sequence[LogUpdate],
    *,
    lower: int,
    time: int,
    commit_id: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Published:
    """Publish ``updates`` at ``time`` if the log's upper is still ``lower``; the new upper is ``time + 1``.

    ``properties`` become table properties in the same commit; a sensor can read them without opening the log.
    Raises as ``Writer.publish``.
    """
    table = writer.shard.load().table
    batch = Batch(added=write_updates(table, updates, time=time), schema_id=table.schema().schema_id)
    return writer.publish(batch, lower=lower, new_upper=time + 1, commit_id=commit_id, properties=properties)


def write_updates(table: Table, updates: Sequence[LogUpdate], *, time: int) -> tuple[DataFile, ...]:
    """Write ``updates`` at ``time`` as data files of a log; nothing becomes visible."""
    rows = {
        "kind": pa.array([update.kind for update in updates], pa.string()),
        "key": pa.array([update.key for update in updates], pa.string()),
        "value": pa.array([update.value for update in updates], pa.string()),
        TIME: pa.array([time] * len(updates), pa.int64()),
        DIFF: pa.array([update.diff for update in updates], pa.int64()),
    }
    return write_rows(table, pa.table(rows))


class TimedUpdate(NamedTuple):
    """One stored update of a log."""

    kind: str
    key: str
    value: str
    time: int
    diff: int


def read_changes(head: ShardHead, *, from_: int, known: set[str]) -> list[TimedUpdate]:
    """Return the stored updates at times from ``from_`` (inclusive, in ms) on, in order of time.

    Consolidation does not change times after ``head.state.since``. ``known`` are paths of manifests that hold no update
    at these times; this call adds all manifests that it reads.
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
    """Return all stored updates of a log, in no order."""
    return [TimedUpdate(*row) for row in _rows(head.table.scan(snapshot_id=head.contents.snapshot_id).to_arrow())]


def _rows(table: pa.Table) -> zip[tuple[str, str, str, int, int]]:
    columns = (table.column(name).to_pylist() for name in ("kind", "key", "value", TIME, DIFF))
    return zip(*columns, strict=True)
