"""Both DAGs in this process, with a Spark application each: a batch is staged, flushed, verified, and shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.airflow_runs import states
from tests.support.declared import HEAD, PLANES
from tests.support.events import switch
from tidemark.collections.mode import Mode
from tidemark.iceberg.commit.writer import Writer

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags

pytestmark = pytest.mark.spark

RANGE = {"source": [[1_356_998_400_000, 1_357_002_000_000]]}
HOUR = {"start": "2013-01-01T00:00:00", "end": "2013-01-01T01:00:00"}
DECLARATION = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "at timestamp, value bigint"
    source: {format: parquet, path: readings.parquet, where: "at >= '{start}' AND at < '{end}'"}
"""


def test_batch_is_staged_and_flushed_by_spark_applications(dags: Dags) -> None:
    times = [datetime(2013, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 30, 59)]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array([1, 2, 3], pa.int64())})
    parquet.write_table(rows, dags.home.folder / "readings.parquet")
    dags.home.declare(DECLARATION)

    switch(dags.home.settings, Mode.READ_ONLY)
    appended = dags.run("append_batches", engine="spark", **HOUR)
    others = {name: state for name, state in states(appended).items() if state != "success"}
    assert others == {"announce_changes": "skipped"}
    assert appended["append_with_spark"][1]["collections"]["readings"]["outcome"] == "staged"
    assert dags.home.user_rows("readings") == []

    switch(dags.home.settings, Mode.READ_WRITE)
    flushed = dags.run("flush_staged_batches", engine="spark")
    assert {name: state for name, state in states(flushed).items() if state != "success"} == {"flush": "skipped"}
    shown = flushed["show_result0"][1]
    assert (shown["name"], shown["outcome"], shown["inserted"]) == ("readings", "flushed", 3)
    assert shown["details"] == {"ranges": RANGE}
    assert len(dags.home.user_rows("readings")) == 3

    again = states(dags.run("flush_staged_batches"))
    assert {name for name, state in again.items() if state == "success"} == {
        "wait_until_led",
        "wait_until_writable",
        "list_staged",
    }
    skipped = dags.run("append_batches", **HOUR)
    assert (skipped["append_with_spark"][0], skipped["show_result0"][1]["outcome"]) == ("skipped", "skipped")
    assert len(dags.home.user_rows("readings")) == 3
    dags.home.deployment.objects.pause(["readings"], why="a new source")
    assert dags.run("append_batches", **HOUR)["show_result0"][0] == "skipped", "not green, which means that rows came"


def test_corrections_that_are_stale_are_reconciled_by_the_run_that_flushes(dags: Dags) -> None:
    dags.home.write_lines("planes", "tailnum,seats", "N1,100", "N2,200")
    dags.home.declare(HEAD + PLANES)
    switch(dags.home.settings, Mode.READ_ONLY)
    staged = dags.run("reconcile_collections")
    assert staged["show_result0"][1]["outcome"] == "staged"
    switch(dags.home.settings, Mode.READ_WRITE)
    shard = dags.home.shard("planes")
    Writer.join(shard, 1).advance(lower=0, new_upper=1, outdates_staged=True)

    flushed = dags.run("flush_staged_batches")
    assert {name: state for name, state in states(flushed).items() if state != "success"} == {"flush": "skipped"}
    shown = flushed["show_result0"][1]
    assert (shown["name"], shown["outcome"], shown["inserted"]) == ("planes", "flushed", 2)
    assert shown["details"] == {"reconciled": ["tidemark reconcile planes"]}
    assert (dags.home.tuples("planes"), dags.home.branches()) == ([("N1", 100), ("N2", 200)], set())
