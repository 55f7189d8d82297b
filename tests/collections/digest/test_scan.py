"""A digest is the same whoever adds up the hashes, the driver or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tidemark.collections.digest import scan
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.digest.scan import FILE, VALUE, Scanned, scan_digest, scan_files

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS, BUCKETS = 30_000, 1 << 12


@pytest.fixture(params=[(), ("k",)], ids=["multiset", "keyed"])
def shape(request: pytest.FixtureRequest, spark: SparkSession) -> RowShape:
    return RowShape(frame(spark).schema, request.param)


def frame(spark: SparkSession, partitions: int = 3) -> DataFrame:
    return spark.range(0, ROWS, 1, partitions).select(
        F.when(F.col("id") % 7 != 0, F.col("id") % 100).alias("k"), F.hex("id").alias("v")
    )


def scans(rows: DataFrame, shape: RowShape, expected_rows: int) -> list[Scanned]:
    numbered = shape.number(rows, NEW)
    return [scan_digest(numbered, shape, NEW, BUCKETS, expected_rows=expected) for expected in (0, expected_rows)]


@pytest.mark.parametrize("partitions", [2, 12])
def test_driver_finds_the_digest_that_spark_finds(
    spark: SparkSession, shape: RowShape, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_spark, _ = scans(frame(spark, partitions), shape, 0)
    monkeypatch.setattr(scan, "_sums", lambda _: pytest.fail("Spark groups, though the driver takes all rows"))
    numbered = shape.number(frame(spark, partitions), NEW)
    in_driver = scan_digest(numbered, shape, NEW, BUCKETS, expected_rows=ROWS)
    assert (in_driver.digest.sums == in_spark.digest.sums).all()
    assert in_driver.null_keys == in_spark.null_keys == (len(range(0, ROWS, 7)) if shape.is_keyed else 0)


@pytest.mark.parametrize("partitions", [2, 12])
def test_source_that_has_grown_is_left_to_spark(
    spark: SparkSession, shape: RowShape, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_FEW_ROWS", 0)
    in_spark, grown = scans(frame(spark, partitions), shape, ROWS // 20)
    assert (grown.digest.sums == in_spark.digest.sums).all()
    assert grown.null_keys == in_spark.null_keys
    assert grown.digest.row_count + grown.null_keys == ROWS


def test_driver_takes_few_rows_of_a_source_that_has_grown(spark: SparkSession, shape: RowShape) -> None:
    numbered = shape.number(frame(spark, 40), NEW)
    hashes = scan._collect_hashes(numbered, shape, NEW, BUCKETS, limit=100)
    assert hashes.column("hash").null_count == 40
    assert hashes.num_rows <= sum(100 / rank + 2 for rank in range(1, 41))


def test_a_source_beyond_the_limit_for_results_is_left_to_spark(spark: SparkSession, shape: RowShape) -> None:
    conf = spark.sparkContext._jsc.sc().conf()  # which the scheduler reads for every stage
    in_spark, _ = scans(frame(spark), shape, 0)
    conf.set(scan._RESULT_LIMIT, "8k")
    try:
        numbered = shape.number(frame(spark), NEW)
        found = scan._scan_in_driver(numbered, shape, NEW, BUCKETS, limit=10 * ROWS)
    finally:
        conf.remove(scan._RESULT_LIMIT)
    assert found is None
    numbered = shape.number(frame(spark), NEW)
    assert (scan_digest(numbered, shape, NEW, BUCKETS, expected_rows=ROWS).digest.sums == in_spark.digest.sums).all()


def test_each_file_has_a_digest_and_bounds_of_its_own(spark: SparkSession, shape: RowShape) -> None:
    files, mixed = 3, F.col("new_0") % 3
    numbered = shape.number(frame(spark), NEW)
    rows = numbered.withColumn(FILE, mixed.cast("int")).withColumn(VALUE, F.col("new_0")).where("new_0 IS NOT NULL")
    found = scan_digest(rows, shape, NEW, BUCKETS, expected_rows=ROWS, file_buckets=16)
    assert found.by_file is not None
    assert sorted(found.by_file) == list(range(files))
    total = Digest.empty(16)
    for number, each in found.by_file.items():
        values = range(number, 100, files)
        assert each.bounds == (min(values), max(values))
        alone = scan_digest(rows.where(F.col(FILE) == number), shape, NEW, BUCKETS, expected_rows=ROWS)
        assert len(alone.digest.differing(each.digest)) == 0
        total += each.digest
    assert len(total.differing(found.digest)) == 0


def test_a_file_with_a_row_without_a_value_has_no_bounds(spark: SparkSession) -> None:
    shape = RowShape(frame(spark).schema)
    rows = shape.number(frame(spark), NEW).withColumn(FILE, F.lit(1)).withColumn(VALUE, F.col("new_0"))
    found = scan_digest(rows, shape, NEW, BUCKETS, expected_rows=ROWS, file_buckets=16)
    assert found.by_file is not None
    assert found.by_file[1].bounds is None


def test_files_of_more_rows_than_the_driver_takes_are_read_one_after_the_other(
    spark: SparkSession, shape: RowShape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame(spark, 6).where("k IS NOT NULL").withColumn("file", F.spark_partition_id()).write.parquet(str(tmp_path / "f"))
    files = spark.read.parquet(str(tmp_path / "f"))
    size = F.col("_metadata.file_size").cast("int")
    numbered = shape.number(files.select("k", "v", size.alias(FILE)), NEW, F.col(FILE)).withColumn(
        VALUE, F.col("new_0")
    )
    sizes = {row[FILE]: row[FILE] for row in numbered.select(FILE).distinct().collect()}
    assert len(sizes) == 6

    def scanned() -> Scanned:
        return scan_files(numbered, shape, NEW, BUCKETS, expected_rows=ROWS, sizes=sizes)

    once, scan_in_driver, looks = scanned(), scan._scan_in_driver, list["DataFrame"]()

    def noted(frame: DataFrame, *arguments: Any, **more: Any) -> Scanned | None:
        looks.append(frame)
        return scan_in_driver(frame, *arguments, **more)

    monkeypatch.setattr(scan, "_scan_in_driver", noted)
    monkeypatch.setattr(scan, "DRIVER_HASHES", ROWS // 2)
    in_groups = scanned()
    assert len(looks) == 6, "two files may have more rows than half of what the driver takes"
    assert sum(map(files_read, looks)) == 6, "no file is read twice"
    assert (in_groups.digest.sums == once.digest.sums).all()
    assert in_groups.by_file is not None
    assert once.by_file is not None
    assert in_groups.by_file.keys() == once.by_file.keys() == sizes.keys()
    for number, each in once.by_file.items():
        assert (in_groups.by_file[number].digest.sums == each.digest.sums).all()
        assert in_groups.by_file[number].bounds == each.bounds
    monkeypatch.setattr(scan, "DRIVER_HASHES", 100)
    monkeypatch.setattr(scan, "_FEW_ROWS", 0)
    too_large = scanned()
    assert (too_large.digest.sums == once.digest.sums).all()
    assert too_large.by_file is None, "a file has more rows than the driver takes"


def files_read(rows: DataFrame) -> int:
    """Return how many files Spark reads for ``rows``."""
    leaf = rows._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    leaf.inputRDD()
    return int(leaf.metrics().apply("numFiles").value())
