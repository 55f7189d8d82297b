"""Append-only collections of ``(id, name)`` rows for tests, appended and read without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tests.support.clock import SteppedClock
from tests.support.rows import SCHEMA, Row, contents
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.forward import Appended
from tidemark.collections.mode import set_mode
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from tidemark.collections.deployment import Mode, StoredMode
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

CLOCK = SteppedClock(1_000)


def create_events(settings: Settings, name: str = "events") -> Shard:
    return Shards.connect(settings).create(name, schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


def rows_table(rows: Iterable[Row]) -> pa.Table:
    listed = list(rows)
    return pa.table(
        {
            "id": pa.array([row[0] for row in listed], pa.int64()),
            "name": pa.array([row[1] for row in listed], pa.string()),
        }
    )


def numbers(start: int, end: int, producer: str = "p") -> list[Row]:
    """The rows that stand for ``[start, end)``: one for each number."""
    return [(number, producer) for number in range(start, end)]


def append_numbers(
    shard: Shard, settings: Settings, start: int, end: int, *, producer: str = "p", stage: bool = True
) -> Appended:
    name = BatchName(producer, Range(start, end))
    rows = rows_table(numbers(start, end, producer))
    return append_rows(shard, name, rows, deployment=deployment_of(settings), clock=CLOCK, stage_when_read_only=stage)


def switch(settings: Settings, mode: Mode) -> StoredMode:
    deployment = deployment_of(settings, clock=CLOCK)
    return set_mode(Shards.connect(settings), deployment, mode, who="tests", why="a test")


def visible(shard: Shard) -> Counter[Row]:
    return contents(shard.load())
