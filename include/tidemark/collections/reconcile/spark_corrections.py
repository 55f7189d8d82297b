"""Corrections that do not fit into the driver: Spark keeps, counts and writes them onto staging branches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.digest.scan import scan_digest
from tidemark.collections.reconcile.driver_corrections import SmallCorrections
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.collections.reconcile.spark_diff import duplicate_keys, with_hashes
from tidemark.collections.reconcile.strategy import DRIVER_CANDIDATES, fits_driver
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import to_rows, to_tuples
from tidemark.iceberg.reading.spark import POSITION
from tidemark.iceberg.staging.spark_corrections import stage_corrections


@dataclass(frozen=True, kw_only=True)
class LargeCorrections:
    """The changes of one comparison (see ``spark_diff``) as a data frame that is cheap to read again.

    ``changes`` reads temporary files, or, for a first load, the source.
    """

    changes: DataFrame
    shape: RowShape
    inserted: int
    retracted: int
    updated: int

    @classmethod
    def of(cls, changes: DataFrame, shape: RowShape, *, scratch: str) -> LargeCorrections:
        """Write ``changes`` below the folder ``scratch``, and count them.

        Parquet without dictionaries takes half the time of Spark's cache, and takes no memory from the join.
        """
        folder = f"{scratch}/changes"
        writer = changes.write.option("compression", "lz4_raw").option("parquet.enable.dictionary", "false")
        writer.parquet(folder)
        kept = changes.sparkSession.read.schema(changes.schema).parquet(folder)
        totals = kept.agg(
            F.count_if(_has_new()).alias("inserted"),
            F.count_if(_has_old()).alias("retracted"),
            F.count_if(_has_new() & _has_old()).alias("updated"),
        ).collect()[0]
        return cls(changes=kept, shape=shape, **totals.asDict())

    @classmethod
    def load(cls, desired: DataFrame, shape: RowShape, *, rows: int) -> LargeCorrections:
        """Insert all rows of ``desired``, ``rows`` in number; every read of ``desired`` must return the same rows."""
        nothing = [F.lit(None).cast(field.dataType).alias(f"{OLD}{n}") for n, field in enumerate(shape.schema)]
        nowhere = [F.lit(None).cast("bigint").alias(name) for name in ("file", "pos")]
        changes = desired.select("*", *nothing, *nowhere, F.lit(True).alias("inserts"))  # noqa: FBT003
        return cls(changes=changes, shape=shape, inserted=rows, retracted=0, updated=0)

    def collected(self) -> SmallCorrections | None:
        """Return the corrections in the memory of the driver, if they fit."""
        if not fits_driver(expected=math.inf, at_most=self.inserted + self.retracted - self.updated):
            return None
        return SmallCorrections.of_changes(with_hashes(self.changes, self.shape).toArrow(), self.shape)

    @property
    def inserts_one_key_twice(self) -> bool:
        added = self.changes.where(_has_new() & ~_has_old())
        # Comparing hashes of keys in the driver saves Spark a shuffle.
        if self.inserted - self.updated <= DRIVER_CANDIDATES:
            hashes = added.select(self.shape.position(NEW).alias("hash")).toArrow().column("hash").to_numpy()
            if len(np.unique(hashes)) == len(hashes):
                return False
        return not duplicate_keys(added, self.shape).isEmpty()

    def digest(self, bucket_count: int) -> Digest:
        added = scan_digest(self.changes.where(_has_new()), self.shape, NEW, bucket_count).digest
        return added + -scan_digest(self.changes.where(_has_old()), self.shape, OLD, bucket_count).digest

    def count_values(self) -> tuple[list[int], list[int]]:
        """Return how many inserted, and how many retracted, rows have a value in each column."""
        came = [F.count_if(_has_new() & column.isNotNull()) for column in self.shape.columns(NEW)]
        went = [F.count_if(_has_old() & column.isNotNull()) for column in self.shape.columns(OLD)]
        counts = list(self.changes.agg(*came, *went).collect()[0])
        return counts[: self.shape.width], counts[self.shape.width :]

    def samples(self, limit: int) -> dict[str, list[dict[str, object]]]:
        return {
            "inserted": self._rows(_has_new() & ~_has_old(), NEW, limit),
            "retracted": self._rows(_has_old() & ~_has_new(), OLD, limit),
            "updated": self._pairs(limit),
        }

    def write(self, writer: Writer, pinned: Pinned, time: int, *, cluster_by: Sequence[str] = ()) -> Batch:
        retracted = None
        if self.retracted:
            places = [F.col("file"), F.col("pos").alias(POSITION)]
            names = F.broadcast(pinned.spark.createDataFrame(pinned.file_names()))
            rows = self._named(_has_old(), OLD, *places).join(names, on="file", how="inner")
            retracted = rows.drop("file")
        return stage_corrections(
            writer.shard,
            pinned.head,
            added=self._named(_has_new(), NEW) if self.inserted else None,
            retracted=retracted,
            cluster_by=cluster_by,
            time=time,
            generation=writer.generation,
            writer=writer.shard.writer_id,
            batch=str(uuid4()),
        )

    def _named(self, which: Column, prefix: str, *also: Column) -> DataFrame:
        return self.changes.where(which).select(*self.shape.named_columns(prefix), *also)

    def _rows(self, which: Column, prefix: str, limit: int) -> list[dict[str, object]]:
        return to_rows(self._named(which, prefix).limit(limit).toArrow())

    def _pairs(self, limit: int) -> list[dict[str, object]]:
        both = self.changes.where(_has_new() & _has_old())
        rows = to_tuples(both.select(*self.shape.columns(OLD), *self.shape.columns(NEW)).limit(limit).toArrow())
        names, width = self.shape.schema.names, self.shape.width
        sides = (("before", slice(width)), ("after", slice(width, None)))
        return [{side: dict(zip(names, row[half], strict=True)) for side, half in sides} for row in rows]


def _has_new() -> Column:
    return F.col("inserts")


def _has_old() -> Column:
    return F.isnotnull("file")
