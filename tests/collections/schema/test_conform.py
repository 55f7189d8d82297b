"""What a source gives is made to fit without loss, or refused by name; remote files are listed as local ones are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.collections.schema.conform import conform
from tidemark.collections.schema.convert import from_spark, to_spark
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import columns_text
from tidemark.collections.sources.file_listing import _list_remote, list_files
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
QUERY = "SELECT CAST(1 AS SMALLINT) AS i, CAST(1.5 AS FLOAT) AS f, CAST(2.5 AS DECIMAL(3,1)) AS d, array(1) AS l"


def test_values_are_widened_and_put_into_the_stored_order(spark: SparkSession) -> None:
    stored = parse_columns("l array<bigint>, d decimal(9,1), f double, i bigint")
    fitted = conform(spark.sql(QUERY), stored, where="it")
    assert from_spark(fitted.schema, where="it") == stored
    assert [str(value) for value in fitted.first() or ()] == ["[1]", "2.5", "1.5", "1"]


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("i int, f float, d decimal(3,1), l array<int>, gone date", "it lacks the column 'gone'"),
        ("i int, f float, d decimal(3,1), list array<int>", "lacks the column 'list'; it has 'l' instead"),
        ("i int, f float, d decimal(3,1)", "has the column 'l', which the collection does not have"),
        ("i string, f float, d decimal(3,1), l array<int>", "'i' of it is smallint, the collection stores string"),
        ("i int, f float, d decimal(9,2), l array<int>", r"column 'd' of it is decimal\(3,1\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(spark: SparkSession, stored: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        conform(spark.sql(QUERY), parse_columns(stored), where="it")


def test_a_declared_schema_leaves_other_columns_out(spark: SparkSession) -> None:
    fitted = conform(spark.sql(QUERY), parse_columns("i int"), where="it", leave_out_others=True)
    assert fitted.columns == ["i"]


def test_two_columns_of_one_name_and_types_that_cannot_be_stored_are_refused(spark: SparkSession) -> None:
    with pytest.raises(SchemaMismatch, match="several columns of the name 'a'"):
        conform(spark.sql("SELECT 1 AS a, 2 AS a"), parse_columns("a int"), where="it")
    with pytest.raises(SchemaMismatch, match="'a' of it has the type interval"):
        conform(spark.sql("SELECT INTERVAL '1' DAY AS a"), parse_columns("a int"), where="it")


def test_types_come_back_from_spark() -> None:
    from pyspark.sql.types import StructField, StructType

    text = "a boolean, b timestamp_ntz, c map<string,array<decimal(5,2)>>, d struct<`x y`:binary,z:date>, e timestamp"
    schema = StructType([StructField(column.name, to_spark(column.type)) for column in parse_columns(text)])
    assert columns_text(from_spark(schema, where="it")) == text


def test_hadoop_lists_what_python_lists(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t/day=1").mkdir(parents=True)
    for name in ("day=1/a.csv", "b.csv", "_SUCCESS", ".hidden", "_k=1"):
        (tmp_path / "t" / name).write_text(name)
    local = list_files(str(tmp_path / "t"))
    remote = sorted(_list_remote(f"file://{tmp_path}/t", spark), key=lambda file: file.uri)
    assert [file.uri.removeprefix("file:").lstrip("/") for file in remote] == [
        file.uri.removeprefix("file:").lstrip("/") for file in local.files
    ]
    assert [file.size_bytes for file in remote] == [file.size_bytes for file in local.files]
    assert [f.modified_ns // 10**6 for f in remote] == [f.modified_ns // 10**6 for f in local.files]
    assert local.has_partition_folders
