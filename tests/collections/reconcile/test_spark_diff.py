"""Which rows lie in a set of buckets: exactly those whose bucket is wanted, from one bucket to the most there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from tidemark.collections.digest.row_layout import NEW, RowShape
from tidemark.collections.reconcile.spark_diff import bucket_set, in_buckets
from tidemark.collections.reconcile.strategy import FINEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("k", LongType()).add("v", LongType())


@pytest.mark.spark
@pytest.mark.parametrize("bucket_count", [1, 2, 64, 128, 4096, FINEST])
@pytest.mark.parametrize("key", [(), ("k",)])
def test_rows_of_the_wanted_buckets_are_found(spark: SparkSession, bucket_count: int, key: tuple[str, ...]) -> None:
    shape = RowShape(SCHEMA, key)
    keys = [*range(2000), None, -(2**63), 2**63 - 1]
    rows = spark.createDataFrame(
        pa.table({f"{NEW}0": pa.array(keys, pa.int64()), f"{NEW}1": pa.array(keys, pa.int64())})
    )
    found = rows.select(f"{NEW}0", shape.bucket(NEW, bucket_count).alias("bucket")).toArrow()
    buckets = dict(zip(*(found.column(n).to_pylist() for n in range(2)), strict=True))
    wanted = sorted({bucket for bucket in buckets.values() if bucket >= 0 and bucket % 3 != 1} | {bucket_count - 1})
    near = in_buckets(rows, shape, NEW, bucket_count, bucket_set(np.array(wanted), bucket_count))
    assert {row[0] for row in near.collect()} == {number for number, bucket in buckets.items() if bucket in wanted}
