"""A run follows an Iceberg source by its changed files, and says why if it cannot; the result is that of a full run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.homes import Home
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.same_source import reconcile_unchanged
from tidemark.collections.sources import iceberg_changes
from tidemark.report import FALLBACK, CollectionReport, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

CHANGED_FILES = "changed-files"
GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}
LAKE = "folders.a.lake"


class Lake:
    """An Iceberg table of columns ``k`` and ``v``, and collection ``copy``, which is made equal to it."""

    def __init__(self, settings: Settings, spark: SparkSession, folder: Path, **declared: Any) -> None:
        self.home, self.spark = Home(settings, folder, "k bigint, v string"), spark
        spark.conf.set("spark.sql.catalog.folders", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set("spark.sql.catalog.folders.type", "hadoop")
        spark.conf.set("spark.sql.catalog.folders.warehouse", str(folder))
        self.declared = declared

    def create(self, mode: str = "copy-on-write", *, version: int = 2, partitioned: str = "") -> None:
        modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
        self.sql(
            f"CREATE TABLE {LAKE} (k bigint, v string) USING iceberg {partitioned} "
            f"TBLPROPERTIES ('format-version'='{version}', 'gc.enabled'='true', {modes})"
        )

    def start(self, rows: str = "VALUES (1, 'a'), (2, 'b'), (3, 'c')") -> None:
        """Fill the table with two files, and make the collection equal to it."""
        self.sql(f"INSERT INTO {LAKE} {rows}")
        self.sql(f"INSERT INTO {LAKE} VALUES (10, 'x'), (11, 'y')")
        self.declare()
        assert self.run().strategy == "load"

    def declare(self, **more: Any) -> None:
        source = {"format": "iceberg", "path": str(self.home.folder / "a" / "lake")}
        fields: dict[str, Any] = {"key": ["k"], "guards": GUARDS, **self.declared, **more}
        fields["source"] = {**source, **fields.get("source", {})}
        declaration = self.home.declaration("copy", **fields)
        if self.home.shards.exists("copy"):
            self.home.registry.replace([declaration], seen=self.home.registry.read())
        else:
            self.home.apply(declaration)

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement)

    def call(self, procedure: str, *arguments: str) -> None:
        self.sql(f"CALL folders.system.{procedure}({', '.join(['table => ' + repr('a.lake'), *arguments])})")

    def snapshot(self) -> int:
        row = self.spark.sql(f"SELECT snapshot_id FROM {LAKE}.refs WHERE name = 'main'").first()
        assert row is not None
        return int(row[0])

    def run(self, **more: Any) -> CollectionReport:
        """Reconcile as the command line does."""
        self.home.clock.step(10)
        declared = self.home.registry.read().declarations
        done, left = reconcile_unchanged(self.home.deployment, declared, clock=self.home.clock, **more)
        if left:
            done = reconcile_all(self.spark, self.home.deployment, left, clock=self.home.clock, **more)
        return done.collections["copy"]

    def wanted(self) -> list[tuple[Any, ...]]:
        return sorted(
            map(tuple, self.spark.read.format("iceberg").load(str(self.home.folder / "a" / "lake")).collect())
        )

    def check(self, report: CollectionReport) -> None:
        assert report.error is None
        assert self.home.tuples("copy") == self.wanted()


@pytest.fixture
def lake(home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(iceberg_changes, "MOST_SHARE", 100.0)  # of a table of two files, one is too much
    return Lake(home, home_spark, tmp_path)


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
@pytest.mark.parametrize(("mode", "version"), [("copy-on-write", 2), ("merge-on-read", 2), ("merge-on-read", 3)])
def test_only_changed_files_are_read(lake: Lake, key: list[str], mode: str, version: int) -> None:
    lake.create(mode, version=version)
    lake.declared = {"key": key}
    lake.start()
    steps = {
        f"UPDATE {LAKE} SET v = 'B' WHERE k = 2": (1, 1),
        f"DELETE FROM {LAKE} WHERE k = 1": (0, 1),
        f"INSERT INTO {LAKE} VALUES (4, 'd')": (1, 0),
        f"UPDATE {LAKE} SET v = 'z' WHERE k IN (3, 11)": (2, 2),
    }
    for step, (inserted, retracted) in steps.items():
        lake.sql(step)
        report = lake.run()
        assert (report.strategy, report.details.get(FALLBACK)) == (CHANGED_FILES, None), step
        assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, inserted, retracted)
        assert report.rows_source == len(lake.wanted())
        lake.check(report)
    assert lake.run(full=True).strategy == "digest"
