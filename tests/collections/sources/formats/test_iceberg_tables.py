"""Tables of others are read at one snapshot, other collections at one time, as their users see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.sources import rows
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.pins import name_state
from tidemark.errors import InputMissing, UnknownCollection
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.sources import Opener
    from tidemark.iceberg.shards import Shards

pytestmark = pytest.mark.spark


def test_an_iceberg_table_is_read_at_one_snapshot(spark: SparkSession, opener: Opener, unique_name: str) -> None:
    name = f"tidemark.lake.{unique_name}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS tidemark.lake")
    spark.sql(f"CREATE TABLE {name} (x int) USING iceberg")
    source = {"format": "iceberg", "table": name}
    assert rows(opener(source)) == []
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    opened = opener(source)
    spark.sql(f"INSERT INTO {name} VALUES (2)")
    assert rows(opened) == [(1,)]
    assert not opened.moved()
    assert rows(opener(source)) == [(1,), (2,)]
    with pytest.raises(InputMissing):
        opener({"format": "iceberg", "table": f"{name}_not"})


def test_a_table_is_read_as_it_is_now_although_its_catalog_keeps_what_it_loaded(
    spark: SparkSession, opener: Opener, tmp_path: Path
) -> None:
    for name, keeps in (("keeping", "true"), ("other", "false")):  # the first as Iceberg has it by default
        spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{name}.warehouse", str(tmp_path))
        spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", keeps)
    spark.sql("CREATE TABLE other.a.b (x int) USING iceberg")
    source = {"format": "iceberg", "table": "keeping.a.b"}
    assert rows(opener(source)) == []
    for x in (1, 2):
        spark.sql(f"INSERT INTO other.a.b VALUES ({x})")
        assert rows(opener(source)) == [(each,) for each in range(1, x + 1)]
    spark.sql("DROP TABLE other.a.b")
    with pytest.raises(InputMissing):
        opener(source)


def test_an_iceberg_table_can_be_named_by_its_folder(spark: SparkSession, opener: Opener, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.catalog.folders", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.folders.type", "hadoop")
    spark.conf.set("spark.sql.catalog.folders.warehouse", str(tmp_path))
    spark.sql("CREATE TABLE folders.a.b (x int) USING iceberg")
    spark.sql("INSERT INTO folders.a.b VALUES (1)")
    opened = opener({"format": "iceberg", "path": "a/b"})
    spark.sql("INSERT INTO folders.a.b VALUES (2)")
    assert rows(opened) == [(1,)]
    with pytest.raises(InputMissing):
        opener({"format": "iceberg", "path": "a/c"})


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
    assert name_state(now.state or ()) != name_state(opened.state or ())
    Writer.join(shard, 1).advance(lower=2, new_upper=3)  # a run with nothing to correct
    assert name_state(opener({"collection": unique_name}).state or ()) == name_state(now.state or ())
    with pytest.raises(UnknownCollection):
        opener({"collection": f"{unique_name}_not"})


def test_rows_of_another_engine_in_an_append_only_collection_have_another_name(
    spark: SparkSession, shards: Shards, opener: Opener, unique_name: str
) -> None:
    shard = shards.create(unique_name, schema=to_iceberg(parse_columns("x int")), layout=ShardKind.APPEND_ONLY)

    def name() -> str:
        return name_state(opener({"collection": unique_name}).state or ())

    names = [name()]
    for x in (1, 2):
        spark.sql(f"INSERT INTO {shard.spark_name} VALUES ({x}, 'another', 0)")
        names.append(name())
    assert len({*names}) == 3
    spark.sql(
        f"CALL tidemark.system.rewrite_data_files(table => '{shard.spark_name}', options => map('rewrite-all', 'true'))"
    )
    assert rows(opener({"collection": unique_name})) == [(1,), (2,)]
    assert name() == names[-1]
