"""The quarantine of a collection that reads a buffer: where each bad row stood, why it is none, and its raw bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.apply.execute import alter_columns, read_stored
from tidemark.collections.apply.plan import Add
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.types import parse_columns
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards

COLUMNS_TEXT = (
    "topic string, partition int, `offset` bigint, place int, time_ms bigint, "
    "headers array<struct<name: string, value: binary>>, reason string, detail string, raw binary"
)
COLUMNS = parse_columns(COLUMNS_TEXT)


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
