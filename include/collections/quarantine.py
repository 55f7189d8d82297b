"""Rows that did not parse, kept beside their collection with the reason: nothing is lost, nothing wrong is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from include.collections.append import ArrowDelivery, append
from include.collections.declaration import QUARANTINE_SUFFIX
from include.collections.schema import Column, Primitive
from include.collections.schema_forms import to_iceberg
from include.persist.shard_state import ShardKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table

    from include.clock import Clock
    from include.collections.append import Appended
    from include.collections.deployment import Deployment
    from include.collections.parsed_rows import RejectedRow
    from include.collections.staged_batches import BatchName
    from include.persist.shards import Shards

COLUMNS = (
    Column("file", Primitive("string")),
    Column("row", Primitive("bigint")),  # from 1, without the header
    Column("reason", Primitive("string")),
    Column("content", Primitive("string")),
)


def set_aside(
    shards: Shards,
    collection: str,
    name: BatchName,
    rejected: Sequence[RejectedRow],
    *,
    file: str,
    deployment: Deployment,
    clock: Clock,
) -> Appended:
    """Append the rejected rows of one batch to the collection's quarantine, once, under the batch's own name.

    Done before the batch itself: after a crash in between the batch is appended again, and its quarantine is there.
    The quarantine is a collection of its own, made when it is first needed and staged like any other.
    """
    schema = to_iceberg(COLUMNS)
    shard = shards.create(collection + QUARANTINE_SUFFIX, schema=schema, kind=ShardKind.APPEND_ONLY)

    def rows(_table: Table) -> pa.Table:
        return pa.table(
            {
                "file": pa.array([file] * len(rejected), pa.string()),
                "row": pa.array([row.number for row in rejected], pa.int64()),
                "reason": pa.array([row.reason for row in rejected], pa.string()),
                "content": pa.array([row.content for row in rejected], pa.string()),
            }
        )

    return append(shard, name, ArrowDelivery(name, rows), deployment=deployment, clock=clock)
