"""Iceberg tables of others are read as they are now, at one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.sources import rows
from tidemark.errors import (
    InputMissing,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.sources import Opener

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
