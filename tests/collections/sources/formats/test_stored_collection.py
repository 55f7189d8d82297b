"""Other collections are read at one time, as their users see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.sources import rows
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import (
    UnknownCollection,
)
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.sources import Opener
    from tidemark.iceberg.shards import Shards

pytestmark = pytest.mark.spark


def test_another_collection_is_read_at_one_time_without_system_columns_and_foreign_rows(
    spark: SparkSession, shards: Shards, opener: Opener, unique_name: str
) -> None:
    shard = shards.create(unique_name, schema=to_iceberg(parse_columns("x int, y string")), key=("x",))

    def publish(x: int, *, time: int) -> None:
        table = shard.load().table
        row = pa.table({"x": pa.array([x], pa.int32()), "y": ["a"], "_time": [time], "_diff": [1]})
        batch = Batch(added=tuple(write_rows(table, row)), schema_id=table.schema().schema_id)
        Writer.join(shard, 1).publish(batch, lower=time, new_upper=time + 1)

    publish(1, time=0)
    spark.sql(f"INSERT INTO {shard.spark_name} VALUES (7, 'foreign', 0, 1)")
    opened = opener({"collection": unique_name, "where": "x > 0"})
    publish(2, time=1)
    assert rows(opened) == [(1, "a")]
    assert opened.pinnable
    now = opener({"collection": unique_name})
    assert rows(now) == [(1, "a"), (2, "a")]
    assert now.fingerprint != opened.fingerprint
    Writer.join(shard, 1).advance(lower=2, new_upper=3)  # a run with nothing to correct
    assert opener({"collection": unique_name}).fingerprint == now.fingerprint
    with pytest.raises(UnknownCollection):
        opener({"collection": f"{unique_name}_not"})
