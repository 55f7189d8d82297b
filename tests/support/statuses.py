"""Append-only collections of ``(id, replica, status, at)`` for tests, without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from tests.support.clock import SteppedClock
from tests.support.events import switch
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from tidemark.collections.append.forward import Appended
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "replica", StringType()),
    NestedField(3, "status", StringType()),
    NestedField(4, "at", TimestamptzType()),
)
DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


class Status(NamedTuple):
    id: int | None
    replica: str | None
    status: str | None
    at_ms: int | None


def status_table(rows: Iterable[Status]) -> pa.Table:
    listed = list(rows)
    return pa.table(
        {
            "id": pa.array([each.id for each in listed], pa.int64()),
            "replica": pa.array([each.replica for each in listed], pa.string()),
            "status": pa.array([each.status for each in listed], pa.string()),
            "at": pa.array(
                [None if each.at_ms is None else each.at_ms * 1_000 for each in listed], pa.timestamp("us", "UTC")
            ),
        }
    )


class Statuses:
    """One collection, and a clock that stands at ``NOW_MS``."""

    def __init__(self, settings: Settings, name: str = "statuses") -> None:
        self.settings, self.clock = settings, SteppedClock(NOW_MS)
        self.shard: Shard = Shards.connect(settings).create(name, schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
        switch(settings, Mode.READ_WRITE)
        self.batches = 0

    def append(self, *rows: Status) -> Appended:
        self.batches += 1
        name = BatchName("p", Range(self.batches, self.batches + 1))
        rows_table = status_table(rows)
        return append_rows(self.shard, name, rows_table, deployment=deployment_of(self.settings), clock=self.clock)

    def rows(self) -> Counter[Status]:
        return read_statuses(self.shard)


def read_statuses(shard: Shard, snapshot_id: int | None = None) -> Counter[Status]:
    """Read the rows as any other engine would."""
    from collections import Counter

    table = shard.load().table.scan(snapshot_id=snapshot_id).to_arrow()
    times = table.column("at").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("id", "replica", "status")]
    return Counter(Status(*row) for row in zip(*columns, times, strict=True))
