"""A hundred files of which one was replaced: a run that reads that one, against MERGE INTO.

A tenth of the rows of the file, or all of them, were updated; one in eleven of these is gone. The files are cut by the
key. Then all files are touched, and nothing is changed, against a hashing scan.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from bench.figures import Figure
from bench.reconciling import checking, hashing_scan, plain, ratio
from bench.spark_part import run_part
from bench.tables import KEY, Mirrors, write_sources
from bench.timing import alternate
from tidemark.collections.reconcile.strategy import Method
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

ROWS, FILES = 20_000_000, 100
CASES = {"0.1%": (10, 6.0), "1%": (1, 4.0)}  # one row in so many of the file; at least so many times as fast as MERGE
ONE_GONE_IN = 11


@dataclass(frozen=True)
class Folder(Mirrors):
    """The collection and the merged table of a folder of files."""

    @property
    def folder(self) -> Path:
        return self.paths["base"]

    def cut(self) -> None:
        """Write the rows into files of one range of keys each."""
        base, whole = self.spark.read.parquet(str(self.folder)), self.folder.with_name("cut")
        base.repartitionByRange(FILES, KEY).sortWithinPartitions(KEY).write.parquet(str(whole))
        self.folder.rename(self.folder.with_name("whole"))
        whole.rename(self.folder)
        for sums in self.folder.glob(".*.crc"):  # Spark's, which a file that is put there by others does not have
            sums.unlink()

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def change(self, one_in: int) -> None:
        """Replace a file in the middle."""
        file, scratch = self.files[FILES // 2], self.folder.with_name("changed")
        rows = self.spark.read.parquet(str(file))
        draw = F.pmod(F.xxhash64(F.lit(one_in), KEY), F.lit(one_in * ONE_GONE_IN))
        category = F.when(draw < ONE_GONE_IN, F.col("category") + 1).otherwise(F.col("category"))
        rows.where(draw > 0).withColumn("category", category).coalesce(1).write.mode("overwrite").parquet(str(scratch))
        next(scratch.glob("*.parquet")).rename(file)

    def touch(self) -> None:
        for file in self.files:
            file.touch()

    def follow(self) -> None:
        report = self.reconcile("base")
        assert report.strategy == Method.CHANGED_FILES, report


def measure_following_files(
    spark: SparkSession, settings: Settings, folder: Path, *, rows: int, runs: int
) -> Iterator[Figure]:
    """Yield the figures of a folder."""
    mirrors = Folder(spark, settings, Shards.connect(settings), write_sources(spark, folder, rows, {}))
    mirrors.cut()
    mirrors.create()
    for name, (one_in, least) in CASES.items():
        equal = mirrors.save()
        mirrors.change(one_in)
        sides: dict[str, Callable[[], object]] = {"tidemark": mirrors.follow, "merge": partial(mirrors.merge, "base")}
        times = alternate(sides, runs, before=partial(mirrors.restore, equal), check=checking(mirrors, "base"))
        label = f"files, {name} changed in one of {FILES}, {rows / 1_000_000:g} M rows"
        yield from plain(label, times)
        bounds = {"at_least": least} if rows >= ROWS else {}  # of few rows, the jobs take the time
        yield ratio(f"{label}: merge / tidemark", times, "merge", "tidemark", **bounds)
    mirrors.reconcile("base")
    equal = mirrors.save()
    mirrors.touch()
    touched: dict[str, Callable[[], object]] = {
        "tidemark": partial(mirrors.reconcile, "base"),
        "hashing scan": partial(hashing_scan, mirrors),
    }
    times = alternate(touched, runs, before=partial(mirrors.restore, equal), check=checking(mirrors, "base"))
    label = f"files, all {FILES} touched, {rows / 1_000_000:g} M rows"
    yield from plain(label, times)
    most = {"at_most": 1.6} if rows >= ROWS else {}
    yield ratio(f"{label}: tidemark / hashing scan", times, "tidemark", "hashing scan", **most)


if __name__ == "__main__":
    sys.exit(run_part("bench.following_files", __doc__, measure_following_files, rows=ROWS))
