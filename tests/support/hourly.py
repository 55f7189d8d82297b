"""A declared append-only collection that is fed hour by hour from small files, without a JVM."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from tests.support.events import CLOCK
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.interval import append_small, choose_appended
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval, milliseconds

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

HOUR_MS = 3_600_000
MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
START_MS = milliseconds(MIDNIGHT)
CUT = "at >= '{start}' AND at < '{end}'"
HALF_HOURS = [MIDNIGHT + timedelta(minutes=30 * step) for step in range(12)]  # six hours


def hours(start: int, end: int) -> Interval:
    return Interval(START_MS + start * HOUR_MS, START_MS + end * HOUR_MS)


def hour_range(start: int, end: int) -> Range:
    return Range(*(START_MS + hour * HOUR_MS for hour in (start, end)))


class Events:
    """One declared append-only collection over two Parquet files of six hours, two rows each hour."""

    def __init__(self, settings: Settings, folder: Path, name: str = "events", *, zone: str | None = "UTC") -> None:
        self.settings, self.folder, self.name = settings, folder / name, name
        self.shards = Shards.connect(settings)
        self.folder.mkdir()
        kind = "timestamp" if zone else "timestamp_ntz"
        times: list[Any] = HALF_HOURS if zone else [time.replace(tzinfo=None) for time in HALF_HOURS]
        for number, part in enumerate((times[:7], [*times[7:], None])):
            rows = pa.table({"at": pa.array(part, pa.timestamp("us", zone)), "extra": pa.array([0] * len(part))})
            parquet.write_table(rows, self.folder / f"{number}.parquet")
        self.columns = f"at {kind}, extra bigint"

    def declare(self, **more: Any) -> Declaration:
        source = {"format": "parquet", "path": str(self.folder), "where": CUT} | more.pop("source", {})
        declaration = Declaration.model_validate(
            {"name": self.name, "kind": "append-only", "schema": self.columns, "source": source} | more
        )
        registry = deployment_of(self.settings).registry
        self.shards.create(self.name, schema=to_iceberg(parse_columns(self.columns)), layout=ShardKind.APPEND_ONLY)
        seen = registry.read()
        registry.replace([*seen.declarations.values(), declaration], seen=seen)
        return declaration

    def append(self, start: int, end: int) -> CollectionReport:
        chosen = choose_appended(deployment_of(self.settings), [self.name])
        report, left = append_small(self.shards, deployment_of(self.settings), chosen, hours(start, end), clock=CLOCK)
        assert left == []
        return report.collections[self.name]

    def rows(self) -> Counter[tuple[Any, ...]]:
        table = self.shards.open(self.name).load().table.scan().to_arrow()
        return Counter(tuple(row.values()) for row in table.to_pylist())

    def times(self) -> list[datetime]:
        return sorted(row[0] for row in self.rows().elements())
