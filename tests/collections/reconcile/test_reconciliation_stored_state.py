"""What runs take for granted holds after other tools' tidying, after columns came and went, and while sources move."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Add, Drop
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.formats.json_files import JsonSource
from tidemark.collections.sources.formats.source import open_source
from tidemark.collections.sources.opened_source import Opening
from tidemark.errors import SourceMoved
from tidemark.iceberg.reading.spark import changes, read
from tidemark.iceberg.shard.digest_file import bound_file, read_digest, write_digest
from tidemark.interval import Interval
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


def test_delete_files_that_a_rewrite_left_behind_do_not_hide_the_rows(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = installation.declaration("c")
    installation.write_rows("c", [(n, "a") for n in range(20)])
    installation.apply(declaration)
    installation.reconcile(home_spark, declaration)
    installation.write_rows("c", [(n, "b") for n in range(20)])
    installation.reconcile(home_spark, declaration)
    name = installation.shard("c").spark_name
    options = "map('rewrite-all', 'true')"
    home_spark.sql(f"CALL tidemark.system.rewrite_data_files(table => '{name}', options => {options})").collect()
    head = installation.shard("c").load()
    assert head.foreign is None
    assert head.row_count == 20
    wanted: list[tuple[object, ...]] = [(n, "c" if n < 5 else "b") for n in range(20)]
    installation.write_rows("c", wanted)
    report = installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == wanted
    assert (report.inserted, report.retracted) == (5, 5)


def test_column_that_was_dropped_and_added_again_is_filled_from_the_source(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = installation.declaration("c")
    installation.write_rows("c", [(1, "a"), (2, "b")])
    installation.apply(declaration)
    installation.reconcile(home_spark, declaration)
    shard = installation.shard("c")
    alter_columns(shard, [Drop("c", "v")])
    alter_columns(shard, [Add("c", parse_columns("v string")[0])])
    assert installation.tuples("c") == [(1, None), (2, None)]
    installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(1, "a"), (2, "b")]


def test_digest_of_other_rows_is_doubted_after_two_attempts(installation: Home, home_spark: SparkSession) -> None:
    declaration = installation.declaration("c")
    installation.write_rows("c", [(1, "a")])
    installation.apply(declaration)
    installation.reconcile(home_spark, declaration)
    older = read_digest(installation.shard("c").load())
    assert older is not None
    installation.write_rows("c", [(1, "a"), (2, "b")])
    installation.reconcile(home_spark, declaration)
    head = installation.shard("c").load()
    bound = bound_file(head)
    assert bound is not None
    name = PurePath(bound.statistics_path).stem.removeprefix("tidemark-digest-")
    assert write_digest(head.table, name, older).statistics_path == bound.statistics_path
    report = installation.reconcile(home_spark, declaration)
    assert (report.outcome, report.details["attempts"]) == (Outcome.UNCHANGED, 3)
    assert "is in doubt" in str(report.details["compared_because"])
    assert "attempts" not in installation.reconcile(home_spark, declaration).details, "the digest was made anew"


def test_source_that_is_cut_by_the_interval_is_cut_at_the_bounds_of_the_slice(
    home: Settings, tmp_path: Path, home_spark: SparkSession
) -> None:
    installation = Home(home, tmp_path, "k int, at timestamp")
    source = {
        "format": "csv", "path": str(tmp_path / "c.csv"), "options": {"header": True}, "schema": installation.schema,
        "where": "at >= '{start}' AND at < '{end}'",
    }  # fmt: skip
    declaration = installation.declaration("c", key=["k", "at"], scope={"column": "at", "every": "day"}, source=source)
    installation.write_rows("c", [(1, "1970-01-01 01:00:00"), (2, "1970-01-01 13:00:00")])
    installation.apply(declaration)
    reconcile_all(home_spark, deployment_of(home), ["c"], interval=Interval(0, 24 * HOUR_MS))
    report = reconcile_all(home_spark, deployment_of(home), ["c"], interval=Interval(12 * HOUR_MS, 18 * HOUR_MS))
    assert report.collections["c"].outcome is Outcome.UNCHANGED
    times = [datetime(1970, 1, 1, hour, tzinfo=UTC) for hour in (1, 13)]
    assert installation.tuples("c") == [(1, times[0]), (2, times[1])]


def test_file_that_is_replaced_while_the_source_is_copied_makes_the_copy_void(
    installation: Home, home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.json").write_text('{"v": "old"}\n')
    source = JsonSource(format="json", path=str(folder), columns_text="v string")
    opened = open_source(source, Opening(home_spark, installation.shards, home), collection="c")
    (folder / "b.json").unlink()
    (folder / "b.json").write_text('{"v": "new"}\n')  # of the same size: Spark would read it as if it were the old one
    with pytest.raises(SourceMoved):
        opened.materialise(str(tmp_path / "copy"))


def test_columns_of_any_name_are_read_now_earlier_and_as_changes(
    home: Settings, tmp_path: Path, home_spark: SparkSession
) -> None:
    installation = Home(home, tmp_path, "`a.b` int, `x``y 'z` string, `Ü` int")
    declaration = installation.declaration("c", key=["a.b"])
    installation.write_rows("c", [(1, "p", 1)])
    installation.apply(declaration)
    first = installation.reconcile(home_spark, declaration)
    installation.write_rows("c", [(1, "q", 1)])
    installation.reconcile(home_spark, declaration)
    shard = installation.shard("c")
    assert [tuple(row) for row in read(home_spark, shard).collect()] == [(1, "q", 1)]
    earlier = read(home_spark, shard, int(str(first.upper)) - 1, with_time=True)
    assert [tuple(row)[:3] for row in earlier.collect()] == [(1, "p", 1)]
    told = {(row[1], row[-1]) for row in changes(home_spark, shard, int(str(first.upper))).collect()}
    assert told == {("p", -1), ("q", 1)}
