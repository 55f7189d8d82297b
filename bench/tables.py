"""The tables that are measured: sources of one size with a known share of changed rows, and their stored copies."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.schema.convert import from_spark, to_iceberg
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.layout import TABLE_PROPERTIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.iceberg.shards import Shards
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

KEY = "k"
FILE_FORM = (  # of every side
    "format-version",
    "write.parquet.compression-codec",
    "write.parquet.compression-level",
    "write.parquet.row-group-size-bytes",
)
ALL_STAY = " updated"  # in the name of a share
_PARTS = 4
_OF_A_MILLION = 1_000_000


def write_sources(spark: SparkSession, folder: Path, rows: int, shares: dict[str, float]) -> dict[str, Path]:
    """Write a base table and, per share, one that differs in that share of the rows: 10 of 11 updated, 1 replaced.

    Of a share whose name ends in ``ALL_STAY`` all are updated.
    """
    base = spark.range(0, rows, 1, _PARTS).select(
        F.col("id").alias(KEY),
        (F.col("id") % 1000).cast("int").alias("category"),
        F.concat(F.lit("name-"), F.hex(F.xxhash64("id"))).alias("name"),
        (F.pmod(F.xxhash64(F.lit("amount"), "id"), F.lit(_OF_A_MILLION)) / 100).alias("amount"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1000).alias("at"),
        F.when(F.col("id") % 7 != 0, F.hash("id")).alias("note"),
    )
    paths = {name: folder / name for name in ("base", *shares)}
    base.write.parquet(str(paths["base"]))
    stored = spark.read.parquet(str(paths["base"]))
    for name, share in shares.items():
        replaced = 0.0 if name.endswith(ALL_STAY) else share / 11
        changed, gone = round(share * _OF_A_MILLION), round(replaced * _OF_A_MILLION)
        draw = F.pmod(F.xxhash64(F.lit(name), KEY), F.lit(_OF_A_MILLION))
        kept = stored.withColumn("draw", draw).where(F.col("draw") >= gone)
        category = F.when(F.col("draw") < changed, F.col("category") + 1).otherwise(F.col("category"))
        fresh = stored.where(F.col(KEY) < round(rows * replaced)).withColumn(KEY, F.col(KEY) + rows)
        kept.withColumn("category", category).drop("draw").unionByName(fresh).write.parquet(str(paths[name]))
    return paths


@dataclass(frozen=True)
class Mirrors:
    """A differential collection, and with the same contents a table that MERGE INTO keeps up to date."""

    spark: SparkSession
    settings: Settings
    shards: Shards
    paths: dict[str, Path]
    with_merge: bool = True

    def create(self) -> None:
        """Load what is measured from the base."""
        schema = self.spark.read.parquet(str(self.paths["base"])).schema
        self.shards.create("mirror", schema=to_iceberg(from_spark(schema, where="base")), key=(KEY,))
        self.reconcile("base")
        if not self.with_merge:
            return
        listed = ", ".join(f"'{name}' = '{TABLE_PROPERTIES[name]}'" for name in (*FILE_FORM, "write.merge.mode"))
        self.spark.sql(
            f"CREATE TABLE {self.merged} ({', '.join(f'{c.name} {c.dataType.simpleString()}' for c in schema)}) "
            f"USING iceberg TBLPROPERTIES ({listed})"
        )
        self.read("base").writeTo(self.merged).append()

    mirror = "tidemark.collections.mirror"
    merged = "tidemark.collections.merged"

    def read(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.paths[name]))

    def declaration(self, name: str) -> Declaration:
        source = {"format": "parquet", "path": str(self.paths[name])}
        guards = {"max_delete_ratio": 1.0}
        return Declaration.model_validate(
            {"name": "mirror", "kind": "differential", "key": [KEY], "source": source, "guards": guards}
        )

    def reconcile(self, name: str, *, is_full: bool = False) -> CollectionReport:
        shard = self.shards.open("mirror")
        return Reconciliation(
            spark=self.spark,
            settings=self.settings,
            shards=self.shards,
            shard=shard,
            declaration=self.declaration(name),
            data_interval=None,
            overrides=Overrides(),
            clock=SystemClock(),
            is_full=is_full,
        ).run(Writer.join(shard, self.settings.generation))

    def merge(self, name: str) -> None:
        """Do the same with one statement, as merge-on-read."""
        source = self.read(name)
        source.createOrReplaceTempView("source")
        columns = [column for column in source.columns if column != KEY]
        differs = " OR ".join(f"NOT (t.{column} <=> s.{column})" for column in columns)
        self.spark.sql(
            f"MERGE INTO {self.merged} t USING source s ON t.{KEY} = s.{KEY} "
            f"WHEN MATCHED AND ({differs}) THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE"
        )

    def save(self) -> dict[str, str]:
        """Return where the metadata of both tables lies now, to be put back by ``restore``."""
        for digest in self._metadata.glob("*.puffin"):  # the next commit deletes the digest that it replaces
            shutil.copy(digest, self._digests / digest.name)
        with closing(sqlite3.connect(self.settings.catalog_path)) as database:
            return dict(database.execute("SELECT table_name, metadata_location FROM iceberg_tables"))

    def restore(self, saved: dict[str, str]) -> None:
        """Put both tables back: metadata and data files are never changed, only pointed at."""
        shutil.copytree(self._digests, self._metadata, dirs_exist_ok=True)
        with closing(sqlite3.connect(self.settings.catalog_path)) as database, database:
            for table, location in saved.items():
                database.execute(
                    "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (location, table)
                )

    @property
    def _metadata(self) -> Path:
        return Path(self.shards.open("mirror").load().table.location().removeprefix("file://")) / "metadata"

    @property
    def _digests(self) -> Path:
        folder = self.settings.home / "digests"
        folder.mkdir(exist_ok=True)
        return folder
