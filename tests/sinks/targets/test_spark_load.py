"""First loads by Spark: the same as those of one process, whatever dies, and no row seen before all are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.sinks.foreign_readers import read_manifest
from tests.sinks.targets.conftest import place, with_lake
from tests.sinks.targets.driving import Driven
from tests.sinks.wide import append_wide
from tests.support.crash import run_real_command
from tests.support.dying import interrupted_at, surviving
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.sinks import spark_load
from tidemark.sinks.targets.files import partitions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.homes import Home

pytestmark = pytest.mark.spark

FIRST = {0: "a", 1: "b/c", 2: None, 3: "", 4: "a"}


def sinking(home: Home, kind: str, folder: Path, mode: str = "mirror", **more: object) -> Driven:
    """Five rows, and a sink that takes five for many; what is returned reads the target."""
    home.settings = with_lake(home.settings, folder)
    change(home, put=FIRST)
    home.declare_sink(to=place(kind, folder), mode=mode, spark_from_rows=len(FIRST), **more)
    return Driven(home.settings, place(kind, folder), mode)


@pytest.mark.parametrize("kind", ["own catalog", "files", "partitioned files"])
def test_a_large_load_is_carried_on_by_small_runs(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    target = sinking(carrying, kind, tmp_path)
    loaded = carrying.run_sink(spark=home_spark)
    assert (loaded.error, loaded.inserted, loaded.upper) == (None, 5, carrying.upper("events"))
    assert target.rows() == carrying.user_rows("events")
    change(carrying, put={1: "B", 9: "c"}, delete=(0,))
    assert carrying.run_sink().inserted == 2
    assert target.rows() == carrying.user_rows("events")


def test_rows_of_a_group_are_in_one_file(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "BUCKET_ROWS", 2)
    target = sinking(carrying, "files", tmp_path)
    carrying.run_sink(spark=home_spark)
    found = read_manifest(str(tmp_path / "out"))
    assert (found["buckets"], len({file["bucket"] for file in found["files"]})) == (3, len(found["files"]))
    change(carrying, put={1: "B"}, delete=(0,))
    assert carrying.run_sink().error is None
    assert target.rows() == carrying.user_rows("events"), "a later run finds each row by the bucket of its key"


@pytest.mark.parametrize("kind", ["own catalog", "partitioned files"])
def test_spark_carries_every_type_as_one_process_does(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    append_wide(carrying)
    found = []
    for name in ("alone", "spark"):
        to = {**place(kind, tmp_path)}
        to |= {"path": f"{to['path']}-{name}"} if "path" in to else {"table": f"analytics.{name}"}
        carrying.declare_sink(name, "wide", mode="changes", to=to, spark_from_rows=3)
        assert carrying.run_sink(name, spark=home_spark if name == "spark" else None).inserted == 3
        found.append(Driven(carrying.settings, to, "changes").rows())
    assert repr(found[0]) == repr(found[1])


@pytest.mark.parametrize("said", ["more than one row", "no value in the key"])
def test_a_key_that_the_collection_does_not_keep_is_looked_at(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, said: str
) -> None:
    sinking(carrying, "own catalog", tmp_path, key=["name"])
    if said == "more than one row":
        change(carrying, delete=(2,), put={7: "d"})
    error = carrying.run_sink(spark=home_spark).error
    assert error is not None
    assert error.exit_code is ExitCode.REFUSED
    assert said in error.message
    assert error.sample[0] == {"name": "a" if said == "more than one row" else None}


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["own catalog", "partitioned files"])
@pytest.mark.parametrize("point", spark_load.FAIL_POINTS)
def test_a_load_that_died_is_finished_by_the_next_run(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, kind: str, point: str
) -> None:
    target = sinking(carrying, kind, tmp_path, "changes")
    report, died = surviving(lambda: carrying.run_sink(spark=home_spark), point)
    assert died
    assert report.error is None  # type: ignore[attr-defined]
    assert len(target.rows()) == len(FIRST)


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["own catalog", "files"])
def test_a_load_that_another_run_overtakes_is_refused(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    target = sinking(carrying, kind, tmp_path, "changes")
    with interrupted_at("sink.parts-written", carrying.run_sink) as failures:
        report = carrying.run_sink(spark=home_spark)
    assert not failures
    assert report.exit_code in {ExitCode.FENCED, ExitCode.TRANSIENT}
    assert len(target.rows()) == len(FIRST)
    assert carrying.run_sink().error is None


def test_a_switch_to_read_only_stops_a_load_into_a_table_that_nobody_could_claim(
    carrying: Home, home_spark: SparkSession, tmp_path: Path
) -> None:
    sinking(carrying, "own catalog", tmp_path)
    with interrupted_at("sink.parts-written", lambda: carrying.switch(Mode.READ_ONLY)):
        error = carrying.run_sink(spark=home_spark).error
    assert error is not None
    assert error.kind == "ReadOnly"
    assert not carrying.shards.iceberg.table_exists(("analytics", "copies"))
    assert not list(carrying.settings.home.rglob("tidemark-load-*")), "the files are gone, too"


@pytest.mark.crash
def test_a_command_that_is_killed_leaves_files_that_the_next_load_removes(
    carrying: Home, home_spark: SparkSession, tmp_path: Path
) -> None:
    target = sinking(carrying, "own catalog", tmp_path, "changes")

    def loads() -> int:
        return len(list(carrying.settings.home.rglob("tidemark-load-*/*.parquet")))

    assert run_real_command(carrying.settings, "sink", "run", point="sink.parts-written") == FAIL_POINT_EXIT
    assert loads() == 1
    assert carrying.run_sink(spark=home_spark).error is None
    assert len(target.rows()) == len(FIRST)
    assert loads() == 1, "only the files of the load that landed"
