"""A digest is the same whoever adds up the hashes, the driver or Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tidemark.collections.digest import scan
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.digest.scan import FILE, VALUE, Scanned, scan_digest

if TYPE_CHECKING:
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
