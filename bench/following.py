"""An Iceberg source of which one row in a thousand was updated: a run that follows it, against MERGE INTO.

The updated keys lie in one range, in a table that copies on write, or are spread over all files of one that merges on
read and has had such an update before. Both sides start from equal tables, and write merge-on-read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bench.figures import Figure
from bench.reconciling import checking, plain, ratio
from bench.spark_part import run_part
from bench.tables import KEY, Mirrors, write_sources
from bench.timing import alternate
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.reconcile.strategy import Method
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS, FILES = 20_000_000, 40
ONE_IN = 1000
LEAST = {"range": 6.0, "spread": 4.0}  # times as fast as MERGE INTO
SOURCES = {"range": "copy-on-write", "spread": "merge-on-read"}


@dataclass(frozen=True)
class Lakes(Mirrors):
    """The collection and the merged table, with two Iceberg tables for sources."""

    catalog: ClassVar[str] = "lakes"

    @property
    def folder(self) -> Path:
        return self.paths["base"].parent / "lakes"

    def fill(self, rows: int) -> None:
        """Write both sources from the base, in files that are sorted by the key."""
        for setting, value in (("", "org.apache.iceberg.spark.SparkCatalog"), (".type", "hadoop")):
            self.spark.conf.set(f"spark.sql.catalog.{self.catalog}{setting}", value)
        self.spark.conf.set(f"spark.sql.catalog.{self.catalog}.warehouse", str(self.folder))
        base = self.spark.read.parquet(str(self.paths["base"]))
        columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in base.schema)
        for name, mode in SOURCES.items():
            listed = f"'write.update.mode' = '{mode}', 'write.distribution-mode' = 'none'"
            self.spark.sql(f"CREATE TABLE {self.table(name)} ({columns}) USING iceberg TBLPROPERTIES ({listed})")
            cut = base.repartitionByRange(FILES, KEY).sortWithinPartitions(KEY)
            cut.writeTo(self.table(name)).append()
        self.update("spread", rows, salt="earlier")

    def table(self, name: str) -> str:
        return f"{self.catalog}.a.{name}"

    def update(self, name: str, rows: int, *, salt: str = "now") -> None:
        chosen = f"{KEY} BETWEEN {rows // 2} AND {rows // 2 + rows // ONE_IN - 1}"
        if name == "spread":
            chosen = f"pmod(xxhash64('{salt}', {KEY}), {ONE_IN}) = 0"
        self.spark.sql(f"UPDATE {self.table(name)} SET category = category + 1 WHERE {chosen}")  # noqa: S608 - all ours

    def read(self, name: str) -> DataFrame:
        return super().read(name) if name in self.paths else self.spark.table(self.table(name))

    def declaration(self, name: str) -> Declaration:
        if name in self.paths:
            return super().declaration(name)
        source = {"format": "iceberg", "path": str(self.folder / "a" / name)}
        fields = {"name": "mirror", "kind": "differential", "key": [KEY], "guards": {"max_delete_ratio": 1.0}}
        return Declaration.model_validate({**fields, "source": source})

    def follow(self, name: str) -> None:
        report = self.reconcile(name)
        assert report.strategy == Method.CHANGED_FILES, report


def measure_following(
    spark: SparkSession, settings: Settings, folder: Path, *, rows: int, runs: int
) -> Iterator[Figure]:
    """Yield the figures of both sources."""
    lakes = Lakes(spark, settings, Shards.connect(settings), write_sources(spark, folder, rows, {}))
    lakes.fill(rows)
    lakes.create()
    for name, least in LEAST.items():
        lakes.reconcile(name)  # all rows are compared once
        lakes.merge(name)
        equal = lakes.save()
        lakes.update(name, rows)
        sides = {"tidemark": partial(lakes.follow, name), "merge": partial(lakes.merge, name)}
        times = alternate(sides, runs, before=partial(lakes.restore, equal), check=checking(lakes, name))
        label = f"Iceberg, 0.1% updated, {name}, {rows / 1_000_000:g} M rows"
        yield from plain(label, times)
        bounds = {"at_least": least} if rows >= ROWS else {}  # of few rows, the jobs take the time
        yield ratio(f"{label}: merge / tidemark", times, "merge", "tidemark", **bounds)


if __name__ == "__main__":
    sys.exit(run_part("bench.following", __doc__, measure_following, rows=ROWS))
