"""A column that vanishes from JSON files is refused; one that rows leave out because it is NULL is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.homes import Home
from tidemark.errors import SchemaMismatch
from tidemark.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.collections.declarations.collection import Declaration
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000


def declare_json(home: Home, *rows: dict[str, Any], **more: Any) -> Declaration:
    """Declare the collection ``c`` over one file of JSON lines, and write the file."""
    source = {"format": "json", "path": str(home.folder / "c.json"), "schema": home.schema}
    declaration = home.declaration("c", source=source, **more)
    home.apply(declaration)
    home.write_json("c", *rows)
    return declaration


@pytest.fixture
def installation(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path, "k int, `v.w` string, x double")


def test_column_that_vanishes_from_all_rows_is_refused(installation: Home, home_spark: SparkSession) -> None:
    declaration = declare_json(installation, {"k": 1, "v.w": "a"}, {"k": 2})
    installation.reconcile(home_spark, declaration)
    installation.write_json("c", {"k": 1, "V.w": "a"}, {"k": 2, "x": 0.5, "sub": {"v.w": "b"}})
    lacks = r"the source of 'c' lacks the column 'v\.w', which .*: no row of .*/c\.json has it"
    with pytest.raises(SchemaMismatch, match=lacks):
        installation.reconcile(home_spark, declaration)
    with pytest.raises(SchemaMismatch, match=lacks):
        installation.reconciliation(home_spark, declaration).plan()
    with pytest.raises(SchemaMismatch, match=lacks):  # nor through a copy
        installation.reconcile(
            home_spark, declaration, opened=lambda source: source.materialise((installation.folder / "copy").as_uri())
        )
    assert installation.tuples("c") == [(1, "a", None), (2, None, None)]


@pytest.mark.parametrize(
    ("rows", "stored"),
    [
        ([{"k": 1}, {"k": 2, "v.w": "b"}], [(1, None, None), (2, "b", None)]),
        ([{"k": 1}, {"k": 2, "v.w": None}], [(1, None, None), (2, None, None)]),
        ([{"k": n} for n in range(2000)] + [{"k": 2000, "v.w": "b"}], None),
        ([], []),
    ],
    ids=["left out in one row", "null is written out", "occurs late", "no rows"],
)
def test_column_that_rows_leave_out_is_null(
    installation: Home, home_spark: SparkSession, rows: list[dict[str, Any]], stored: list[Any] | None
) -> None:
    free = {"allow_empty": True, "max_delete_ratio": 1.0}
    declaration = declare_json(installation, {"k": 1, "v.w": "a"}, {"k": 2}, guards=free)
    installation.reconcile(home_spark, declaration)
    installation.write_json("c", *rows)
    installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == stored if stored is not None else len(installation.tuples("c")) == 2001


@pytest.mark.usefixtures("large")
def test_the_same_is_told_of_corrections_that_only_spark_holds(installation: Home, home_spark: SparkSession) -> None:
    declaration = declare_json(installation, {"k": 1, "v.w": "a"}, {"k": 2, "x": 0.5}, {"k": 3, "x": 1.5})
    installation.reconcile(home_spark, declaration)
    installation.write_json("c", {"k": 1, "v.w": "a"}, {"k": 2}, {"k": 3, "x": 1.5})
    installation.reconcile(home_spark, declaration)
    installation.write_json("c", {"k": 1, "v.w": "b"}, {"k": 2}, {"k": 3})
    with pytest.raises(SchemaMismatch, match="lacks the column 'x',"):
        installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(1, "a", None), (2, None, None), (3, None, 1.5)]


def test_column_that_never_had_values_may_stay_without(installation: Home, home_spark: SparkSession) -> None:
    declaration = declare_json(installation, {"k": 1, "v.w": "a"})
    installation.reconcile(home_spark, declaration)
    installation.write_json("c", {"k": 1, "v.w": "b"}, {"k": 2})
    asked: list[str] = []
    installation.reconcile(
        home_spark,
        declaration,
        opened=lambda source: replace(source, occurring_columns=lambda: asked.append("all rows") or frozenset()),
    )
    assert installation.tuples("c") == [(1, "b", None), (2, None, None)]
    assert asked == []


def test_slice_without_a_column_that_other_slices_have_is_stored(
    home: Settings, tmp_path: Path, home_spark: SparkSession
) -> None:
    installation = Home(home, tmp_path, "k int, day date, v string")
    rows = [{"k": 1, "day": "1970-01-01", "v": "a"}, {"k": 2, "day": "1970-01-02", "v": "b"}]
    scoped = {"key": ["k", "day"], "scope": {"column": "day", "every": "day"}}
    declaration = declare_json(installation, *rows, **scoped)
    installation.reconcile(home_spark, declaration)
    second_day = Interval(DAY_MS, 2 * DAY_MS)
    installation.write_json("c", rows[0], {"k": 2, "day": "1970-01-02"})
    installation.reconcile(home_spark, declaration, interval=second_day)
    assert [row[2] for row in installation.tuples("c")] == ["a", None]
    installation.write_json(
        "c", {"k": 1, "day": "1970-01-01"}, {"k": 2, "day": "1970-01-02"}, {"k": 3, "day": "1970-01-02"}
    )
    installation.reconcile(home_spark, declaration, interval=second_day)  # nothing of the slice is lost
    with pytest.raises(SchemaMismatch, match="'v'"):
        installation.reconcile(home_spark, declaration, interval=Interval(0, DAY_MS))
