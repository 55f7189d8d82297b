"""Declared collections over CSV files, in a home of their own."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from tests.support.clock import SteppedClock
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.formats.source import Source
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.interval import Interval
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings


def declare(name: str, **more: object) -> Declaration:
    source = {"format": "csv", "path": f"/nowhere/{name}.csv", "options": {"header": True}, "schema": "k int, v string"}
    return Declaration.model_validate({"name": name, "kind": "differential", "key": ["k"], "source": source} | more)


class Watched(Source):
    """A source; ``opened`` sees, and may replace, what it gives each time that it is opened."""

    source: Any
    opened: Any

    @property
    def needs_interval(self) -> bool:
        return bool(self.source.needs_interval)

    def open(self, opening: Opening, where: str) -> OpenedSource:
        found: OpenedSource = self.opened(self.source.open(opening, where))
        return found


class Installation:
    """Declared collections, all with the columns ``schema``, over CSV files."""

    def __init__(self, settings: Settings, folder: Path, schema: str = "k int, v string") -> None:
        self.settings, self.folder, self.schema = settings, folder, schema
        self.shards = Shards.connect(settings)
        self.clock = SteppedClock()

    def write(self, name: str, rows: list[tuple[object, ...]]) -> None:
        path = self.folder / f"{name}.csv"
        path.unlink(missing_ok=True)  # another file, as a careful producer leaves it
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([[column.name for column in parse_columns(self.schema)], *rows])

    def apply(self, *declarations: Declaration) -> None:
        registry = deployment_of(self.settings).registry
        for each in declarations:
            self.shards.create(each.name, schema=to_iceberg(parse_columns(self.schema)), key=each.key)
        registry.replace(declarations, seen=registry.read())

    def declare(self, name: str, **more: object) -> Declaration:
        path = str(self.folder / f"{name}.csv")
        source = {"format": "csv", "path": path, "options": {"header": True}, "schema": self.schema}
        return declare(name, **{"source": source} | more)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the contents as another engine sees them, sorted."""
        found = self.shard(name).load().table.scan().to_arrow().drop_columns(["_time", "_diff"]).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def shard(self, name: str) -> Shard:
        return self.shards.open(name)

    def reconciliation(
        self,
        spark: SparkSession,
        declaration: Declaration,
        *,
        opened: Callable[[OpenedSource], OpenedSource] = lambda source: source,
        interval: Interval | None = None,
        overrides: Overrides | None = None,
    ) -> Reconciliation:
        """Return a run; ``opened`` sees, and may replace, the source each time that it is opened."""
        self.clock.step(10)
        source = Watched(source=declaration.source, opened=opened)
        return Reconciliation(
            spark=spark,
            settings=self.settings,
            shards=self.shards,
            shard=self.shard(declaration.name),
            declaration=declaration.model_copy(update={"source": source}),
            data_interval=interval,
            overrides=overrides or Overrides(),
            clock=self.clock,
        )

    def reconcile(
        self, spark: SparkSession, declaration: Declaration, *, writer: Writer | None = None, **more: Any
    ) -> CollectionReport:
        run = self.reconciliation(spark, declaration, **more)
        return run.run(writer or Writer.join(self.shard(declaration.name), 1))
