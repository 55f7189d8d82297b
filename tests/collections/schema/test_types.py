"""Column types: parsing, what widens into what, and their forms in Iceberg and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.schema.convert import from_iceberg, from_parquet, to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import (
    Array,
    Column,
    Decimal,
    Map,
    Primitive,
    Struct,
    Type,
    columns_text,
    fits,
    stored_columns,
    widens,
)
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from pathlib import Path

names = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1).filter(str.strip)
primitives = st.sampled_from(
    [
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
        "timestamp_ntz",
        "string",
    ]
).map(Primitive)
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda scale: Decimal(p, scale)))


def structs(kinds: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    fields = st.lists(st.builds(Column, names, kinds), min_size=1, max_size=3, unique_by=lambda field: field.name)
    return fields.map(lambda found: Struct(tuple(found)))


types: st.SearchStrategy[Type] = st.recursive(
    primitives | decimals, lambda kinds: kinds.map(Array) | st.builds(Map, kinds, kinds) | structs(kinds), max_leaves=5
)
schemas = st.lists(
    st.builds(Column, names, types), min_size=1, max_size=4, unique_by=lambda column: column.name.lower()
)


@given(schemas.map(tuple))
def test_the_text_of_columns_is_read_back(columns: tuple[Column, ...]) -> None:
    assert parse_columns(columns_text(columns)) == columns


@given(schemas.map(tuple))
def test_columns_come_back_from_an_iceberg_schema(columns: tuple[Column, ...]) -> None:
    stored = stored_columns(columns)
    assert from_iceberg(to_iceberg(stored)) == stored


@given(types, types, types)
def test_widening_is_a_strict_order(a: Type, b: Type, c: Type) -> None:
    assert not widens(a, a)
    assert not (widens(a, b) and widens(b, a))
    if widens(a, b) and widens(b, c):
        assert widens(a, c)


@pytest.mark.parametrize(
    ("source", "stored", "possible"),
    [
        ("int", "bigint", True), ("bigint", "int", False), ("float", "double", True), ("int", "double", False),
        ("decimal(5,2)", "decimal(7,2)", True), ("decimal(5,2)", "decimal(7,3)", False), ("date", "timestamp", False),
        ("timestamp", "timestamp_ntz", False), ("int", "string", False), ("smallint", "int", True),
        ("array<int>", "array<bigint>", True), ("map<string,float>", "map<string,double>", True),
        ("struct<a:int,b:int>", "struct<a:bigint,b:int>", True), ("struct<a:int>", "struct<b:int>", False),
        ("struct<a:int,b:int>", "struct<b:int,a:int>", False), ("varchar(5)", "string", True),
    ],
)  # fmt: skip
def test_only_what_loses_nothing_fits(source: str, stored: str, *, possible: bool) -> None:
    kinds = [parse_columns(f"x {text}")[0].type for text in (source, stored)]
    assert fits(*kinds) is possible


def test_spark_words_are_understood() -> None:
    text = "a LONG NOT NULL COMMENT 'it''s', `b c` Decimal, d STRUCT<x: INT, y: ARRAY<STRING>>, e varchar(10)"
    assert (
        columns_text(parse_columns(text)) == "a bigint, `b c` decimal(10,0), d struct<x:int,y:array<string>>, e string"
    )


@pytest.mark.parametrize(
    "text",
    ["", "a", "a int b int", "a int,", "a interval", "a decimal(40,2)", "a decimal(2,3)", "a array<int", "a int, A int",
     "a map<int>", "a int NOT", "a varchar", "a §"],
)  # fmt: skip
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"column|schema|NULL"):
        parse_columns(text)


def test_parquet_columns_are_those_that_spark_reads(tmp_path: Path) -> None:
    moments = pa.array([0], pa.timestamp("us", tz="UTC"))
    table = pa.table(
        {
            "b": [True], "i8": pa.array([1], pa.int8()), "u32": pa.array([1], pa.uint32()), "i64": [1], "f": [1.5],
            "u64": pa.array([1], pa.uint64()), "s": ["x"], "z": moments, "n": pa.array([0], pa.timestamp("us")),
            "d": pa.array([0], pa.date32()), "l": [[1]], "c": pa.array(["x"]).dictionary_encode(),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), "t": [{"x": 1, "y": ["z"]}],
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert columns_text(from_parquet(file, where="it")) == (
            "b boolean, i8 tinyint, u32 bigint, i64 bigint, f double, u64 decimal(20,0), s string, z timestamp, "
            "n timestamp_ntz, d date, l array<bigint>, c string, m map<string,int>, t struct<x:bigint,y:array<string>>"
        )


def test_nanoseconds_are_refused_and_old_spark_times_are_understood(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([0], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file, pytest.raises(SchemaMismatch, match="'n' of it"):
        from_parquet(file, where="it")
    pq.write_table(table, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    with pq.ParquetFile(tmp_path / "b.parquet") as file:
        assert columns_text(from_parquet(file, where="it")) == "n timestamp"
