"""The names of datasets are those of OpenLineage's spec, and hold no login."""

from __future__ import annotations

from pathlib import Path

import pytest
from openlineage.client.naming import dataset as spec
from pydantic import TypeAdapter

from tests.conftest import settings_in
from tidemark.collections.declarations.sink import DatabaseTable, IcebergTable
from tidemark.collections.sources.formats.sql import SourceDeclaration
from tidemark.orchestration.lineage.datasets import (
    DatasetName,
    name_of_buffer,
    name_of_path,
    name_of_source,
    name_of_table,
    name_of_target,
)

SETTINGS = settings_in(Path("/nowhere"), AIRFLOW_CONN_SHOP="postgres://ada:word@db:5433/shop")


def as_in(naming: spec.DatasetNaming) -> DatasetName:
    """Return the name that OpenLineage's own client makes."""
    return DatasetName(naming.get_namespace(), naming.get_name())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/planes.csv", as_in(spec.LocalFileSystem("/data/planes.csv"))),
        ("file:///data/planes", as_in(spec.LocalFileSystem("/data/planes"))),
        ("/data/day=*/*.csv", as_in(spec.LocalFileSystem("/data"))),
        ("/*.csv", as_in(spec.LocalFileSystem("/"))),
        ("s3a://lake/raw/planes/", as_in(spec.S3("lake", "raw/planes"))),
        ("s3://lake/raw/2026-*/x.json", as_in(spec.S3("lake", "raw"))),
        ("gs://lake/raw", as_in(spec.GCS("lake", "raw"))),
        ("hdfs://name:8020/raw", as_in(spec.HDFS("name", "8020", "/raw"))),
        ("abfss://box@lake.dfs.core.windows.net/raw", as_in(spec.ABFSS("box", "lake", "/raw"))),
        ("sftp://ada:word@host/raw", DatasetName("sftp://host", "/raw")),
    ],
)
def test_paths(path: str, name: DatasetName) -> None:
    assert name_of_path(path) == name


@pytest.mark.parametrize(
    ("url", "table", "name"),
    [
        ("jdbc:postgresql://db/shop", "orders", as_in(spec.Postgres("db", "5432", "shop", "public", "orders"))),
        ("jdbc:postgresql://ada:word@db:1/shop?ssl=1", "x.y", as_in(spec.Postgres("db", "1", "shop", "x", "y"))),
        ("jdbc:mysql://db/shop", "orders", as_in(spec.MySQL("db", "3306", "shop", "orders"))),
        (
            "jdbc:postgresql://one,two:1/shop",
            '"My orders"',
            as_in(spec.Postgres("one", "5432", "shop", "public", "My orders")),
        ),
        ("jdbc:postgresql://db/shop?currentSchema=x", "y", as_in(spec.Postgres("db", "5432", "shop", "x", "y"))),
        ("jdbc:postgresql://db/shop", "(SELECT 1) AS one", None),
        ("jdbc:sqlite:/data/shop.db", "orders", None),
        ("jdbc:sqlserver://db:1433;databaseName=shop", "orders", None),
    ],
)
def test_tables_of_databases(url: str, table: str, name: DatasetName | None) -> None:
    assert name_of_table(url, table) == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"format": "parquet", "path": "/data/a"}, DatasetName("file", "/data/a")),
        ({"format": "iceberg", "table": "lake.web.clicks"}, DatasetName("iceberg://lake", "web.clicks")),
        ({"format": "iceberg", "path": "/lake/clicks"}, DatasetName("file", "/lake/clicks")),
        ({"format": "jdbc", "connection": "shop", "table": "o"}, DatasetName("postgres://db:5433", "shop.public.o")),
        ({"format": "jdbc", "connection": "shop", "query": "SELECT 1"}, None),
        ({"buffer": "file:///data/log"}, DatasetName("file", "/data/log")),
    ],
)
def test_sources(source: dict[str, str], name: DatasetName | None) -> None:
    assert name_of_source(TypeAdapter(SourceDeclaration).validate_python(source), SETTINGS) == name


def test_buffers_and_targets() -> None:
    assert name_of_buffer("kafka://ada:word@one:9092,two:9092/clicks", SETTINGS) == as_in(
        spec.Kafka("one", "9092", "clicks")
    )
    assert name_of_buffer("memory:here", SETTINGS) is None, "no other process can know it"
    table = DatabaseTable(connection="shop", table="sales.orders")
    assert name_of_target(table, SETTINGS) == DatasetName("postgres://db:5433", "shop.sales.orders")
    assert name_of_target(IcebergTable(catalog="lake", table="a.b"), SETTINGS) == DatasetName("iceberg://lake", "a.b")
