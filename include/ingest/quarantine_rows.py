"""The quarantine of a collection that reads a buffer: where each bad row stood, why it is none, and its raw bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from include.collections.apply_plan import Add
from include.collections.applying import alter_columns, read_stored
from include.collections.declaration import QUARANTINE_SUFFIX
from include.collections.schema import parse_columns
from include.collections.schema_forms import to_iceberg
from include.persist.shard_state import ShardKind
from include.write_buffer.arrow_messages import TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from include.ingest.message_rows import BadRow
    from include.persist.shard import Shard
    from include.persist.shards import Shards

COLUMNS_TEXT = (
    "topic string, partition int, `offset` bigint, place int, time_ms bigint, "
    "headers array<struct<name: string, value: binary>>, reason string, detail string, raw binary"
)
COLUMNS = parse_columns(COLUMNS_TEXT)
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("place", pa.int32()),
        ("time_ms", pa.int64()),
        ("headers", TYPES["headers"]),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.binary()),
    ]
)


def quarantine_name(collection: str) -> str:
    """Return the name of the collection that the bad rows of ``collection`` go to."""
    return collection + QUARANTINE_SUFFIX


def open_quarantine(shards: Shards, collection: str) -> Shard:
    """Return the quarantine, made or given its columns if need be: one that files left has others."""
    name = quarantine_name(collection)
    shard = shards.create(name, schema=to_iceberg(COLUMNS), kind=ShardKind.APPEND_ONLY)
    present = {column.name for column in read_stored(shard.load().table).columns}
    if missing := [Add(name, column) for column in COLUMNS if column.name not in present]:
        alter_columns(shard, missing)
    return shard


def quarantined_rows(bad: Sequence[BadRow], messages: pa.RecordBatch, *, topic: str, sequencer_id: int) -> pa.Table:
    """Return ``bad`` as rows of the quarantine; ``messages`` have their headers."""
    headers = dict(zip(messages.column("number").to_pylist(), messages.column("headers").to_pylist(), strict=True))
    return pa.table(
        {
            "topic": pa.array([topic] * len(bad), pa.string()),
            "partition": pa.array([sequencer_id] * len(bad), pa.int32()),
            "offset": pa.array([row.number for row in bad], pa.int64()),
            "place": pa.array([row.place for row in bad], pa.int32()),
            "time_ms": pa.array([row.time_ms for row in bad], pa.int64()),
            "headers": pa.array([headers[row.number] for row in bad], TYPES["headers"]),
            "reason": pa.array([row.reason for row in bad], pa.string()),
            "detail": pa.array([row.detail for row in bad], pa.string()),
            "raw": pa.array([row.raw for row in bad], pa.binary()),
        },
        schema=ARROW,
    )
