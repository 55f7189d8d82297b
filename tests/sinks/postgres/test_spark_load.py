"""First loads by Spark into PostgreSQL: parallel copies into a table that nobody reads, and one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.sinks.changes import change
from tests.sinks.targets.driving import OWNER, PLAIN
from tests.sinks.wide import append_wide
from tests.support.dying import surviving
from tidemark.sinks import spark_load
from tidemark.sinks.target import Extent
from tidemark.sinks.targets.postgres.target import PostgresTarget
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sinks.postgres.conftest import Database
    from tests.support.homes import Home

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TO = {"connection": "pg", "table": "copies"}
LEFT = "SELECT relname FROM pg_class WHERE relname LIKE 'tidemark_load%'"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_large_load_is_carried_on_by_small_runs(
    sinking: Home, home_spark: SparkSession, database: Database, *, is_there: bool
) -> None:
    if is_there:
        database.execute("CREATE TABLE copies (name text, id bigint PRIMARY KEY); INSERT INTO copies VALUES ('old', 7)")
    sinking.declare_sink(to=TO | {"existing": "replace"}, spark_from_rows=3)
    loaded = sinking.run_sink(spark=home_spark)
    assert (loaded.error, loaded.inserted) == (None, 3)
    assert database.rows("SELECT id, name FROM copies") == sinking.tuples("events")
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    assert sinking.run_sink().inserted == 2, "by the primary key"
    assert database.rows("SELECT id, name FROM copies") == sinking.tuples("events")
    assert database.rows(LEFT) == []


def test_spark_carries_every_type_as_one_process_does(
    sinking: Home, home_spark: SparkSession, database: Database
) -> None:
    append_wide(sinking, without_nul=True)
    for name in ("alone", "copies"):
        to = {"connection": "pg", "table": name}
        sinking.declare_sink(name, "wide", mode="changes", to=to, spark_from_rows=3)
        assert sinking.run_sink(name, spark=home_spark if name == "copies" else None).inserted == 3
    assert repr(database.rows()) == repr(database.rows("SELECT * FROM alone"))


@pytest.mark.crash
@pytest.mark.parametrize("point", [*spark_load.FAIL_POINTS, "sink.postgres-written", "sink.postgres-committed"])
def test_a_load_that_died_is_finished_by_the_next_run(
    sinking: Home, home_spark: SparkSession, database: Database, point: str
) -> None:
    sinking.declare_sink(mode="changes", to=TO, spark_from_rows=3)
    report, died = surviving(lambda: sinking.run_sink(spark=home_spark), point)
    assert died
    assert report.error is None  # type: ignore[attr-defined]
    assert database.rows("SELECT id, name FROM copies WHERE _diff = 1") == sinking.tuples("events")
    assert database.rows(LEFT) == []


def test_a_part_comes_once_however_often_it_is_tried(sinking: Home, database: Database) -> None:
    sink = sinking.declare_sink(to=TO)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    with open_target(sink, sinking.settings) as target:
        assert isinstance(target, PostgresTarget)
        claimed = target.claim(OWNER, generation=1)
        with target.begin_load(claimed, replace(claimed, time=5, columns=PLAIN), Extent(2, 1)) as load:
            parts = [load.writer.write(number, iter([rows.slice(number, 1)])) for number in (0, 0, 1)]
            assert load.commit(parts[1:]) == 2
    assert database.rows() == [(1, "a"), (2, "b")]
