"""Small rows written and read with Spark, for tests of the storage layer: ``(id, name)`` as in ``rows``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.reading.spark import pinned
from tidemark.iceberg.staging.spark_corrections import stage_corrections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.rows import Row
    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.shard.shard import Shard

GENERATION = 1


def rows_of(frame: DataFrame) -> Counter[Row]:
    return Counter((row["id"], row["name"]) for row in frame.collect())


def frame_of(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame(list(rows), "id bigint, name string")


def correct_with_spark(
    spark: SparkSession,
    shard: Shard,
    *,
    insert: Iterable[Row] = (),
    retract_ids: Iterable[int] = (),
    time: int,
    batch: str = "b",
) -> Published:
    """Add rows and take away all rows of some ids, staged by Spark and published."""
    writer = Writer.join(shard, GENERATION)
    head = shard.load()
    ids = list(retract_ids)
    corrections = stage_corrections(
        shard,
        head,
        added=frame_of(spark, insert),
        retracted=pinned(spark, shard, head).where(F.col("id").isin(ids)) if ids else None,
        time=time,
        generation=GENERATION,
        writer="test",
        batch=batch,
    )
    return writer.publish(corrections, lower=head.state.upper, new_upper=time + 1)
