"""Row hashes tell rows apart exactly as Spark's grouping does."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.collections.digest.row_hash import same
from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.reconcile.spark_diff import multiset_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Per schema: groups of equal rows; rows of different groups differ.
CASES: list[tuple[str, list[list[tuple[Any, ...]]]]] = [
    ("a string, b string", [[(None, "x")], [("x", None)], [(None, None)], [("", "x")], [("x", "")], [("x", "x")]]),
    ("a double, b float", [
        [(0.0, 0.0), (-0.0, -0.0), (0.0, -0.0)],
        [(math.nan, 1.0), (-math.nan, 1.0)],
        [(None, 1.0)],
        [(math.inf, 1.0)],
    ]),
    ("a array<double>", [[([0.0],), ([-0.0],)], [([math.nan],)], [([],)], [(None,)], [([None],)], [([None, None],)]]),
    ("a array<array<int>>", [
        [([[1], [2]],)], [([[1, 2]],)], [([[1, 2], []],)], [([[None]],)], [([[], None],)], [([None, []],)],
    ]),
    ("a map<string,double>", [
        [({"x": 0.0, "y": 1.0},), ({"y": 1.0, "x": -0.0},)], [({"x": None, "y": 1.0},)],
        [({"y": 1.0},)], [({},)], [(None,)],
    ]),
    ("a struct<x:int,y:struct<z:string>>", [
        [((1, ("p",)),)], [((1, (None,)),)], [((1, None),)], [((None, ("p",)),)], [((None, None),)], [(None,)],
    ]),
    ("a map<int,array<map<string,int>>>", [
        [({1: [{"x": 1, "y": 2}], 2: None},), ({2: None, 1: [{"y": 2, "x": 1}]},)], [({1: [{"x": 1}], 2: None},)],
        [({1: None, 2: None},)],
    ]),
    ("a boolean, b binary", [[(True, b"")], [(False, b"")], [(None, b"")], [(True, None)], [(True, b"\0")]]),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "groups"), CASES, ids=[ddl for ddl, _ in CASES])
def test_rows_hash_alike_exactly_when_they_are_equal(
    spark: SparkSession, ddl: str, groups: list[list[tuple[Any, ...]]]
) -> None:
    rows = [(number, *row) for number, group in enumerate(groups) for row in group]
    frame = spark.createDataFrame(rows, f"g int, {ddl}")
    shape = RowShape(StructType(frame.schema.fields[1:]))
    numbered = shape.number(frame, NEW, F.col("g"))
    hashed = numbered.select("g", shape.hash(NEW).alias("h"), shape.position(NEW).alias("p")).collect()
    for left, right in combinations(hashed, 2):
        assert (left.h == right.h) is (left.g == right.g), f"{left} {right}"
        assert (left.p == right.p) is (left.g == right.g), f"{left} {right}"
    equalities = [same(F.col(f"{NEW}{n}"), F.col(f"{OLD}{n}"), field.dataType) for n, field in enumerate(shape.schema)]
    both = numbered.crossJoin(shape.number(frame, OLD, F.col("g").alias("og")))
    for row in both.select("g", "og", *(each.alias(f"s{n}") for n, each in enumerate(equalities))).collect():
        assert all(row[2:]) is (row.g == row.og), "equality agrees with the hash"


@pytest.mark.parametrize(("ddl", "groups"), CASES, ids=[ddl for ddl, _ in CASES])
def test_equal_multisets_have_no_corrections(
    spark: SparkSession, ddl: str, groups: list[list[tuple[Any, ...]]]
) -> None:
    places = [F.lit("f").alias("file"), F.lit(0).cast("bigint").alias("pos"), F.lit(0).cast("bigint").alias("time")]
    first, last = ([group[n] for group in groups for _ in range(2)] for n in (0, -1))
    desired, stored = (spark.createDataFrame(rows, ddl) for rows in (first, last))
    shape = RowShape(desired.schema)
    changes = multiset_changes(shape.number(desired, NEW), shape.number(stored, OLD, *places), shape)
    assert changes.collect() == []
    one_less = multiset_changes(shape.number(desired.limit(3), NEW), shape.number(stored, OLD, *places), shape)
    assert one_less.count() == len(first) - 3
