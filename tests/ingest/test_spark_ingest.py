"""Much that waits is ingested by Spark: partitions in parallel, with the same rows, counts and bad rows as without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.isolation import NeedsSpark
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest.ingest import ingest
from tidemark.ingest.partitions.state import Partitions
from tidemark.ingest.parts.ingesting import Engine
from tidemark.interval import Unit
from tidemark.report import Outcome
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.homes import Home

BAD_LINE = b'{"id":"x"}'
UNKNOWN = (("content-type", b"application/x-new"),)


def with_spark(spark: SparkSession) -> dict[str, Any]:
    return {"start_spark": lambda: spark, "small_entries": 0, "part_numbers": 4}


def counts(details: dict[str, Any]) -> list[tuple[int, ...]]:
    measured = details["sequencers"].values()
    return [(each["requests_ok"], each["requests_client_error"], each["rows"], each["read_bytes"]) for each in measured]


@pytest.mark.spark
def test_spark_ingests_batches_as_one_process_does(home_spark: SparkSession, ingesting: Home) -> None:
    ingesting.declare_writer()
    for name in ("small", "large"):
        ingesting.declare_reader(name, schema="id int, name string")
    ingesting.send_rows(0, 2)
    for start in (10, 2**40, 20):
        rows = pa.table({"id": pa.array([start, start + 1], pa.int64()), "name": ["a", "b"]})
        batch = BatchName("p", Range(start, start + 2))
        append_rows(ingesting.shard("gate"), batch, rows, deployment=ingesting.deployment, clock=ingesting.clock)
    ingesting.send_rows(1, 3)
    small, large = ingesting.ingest("small"), ingesting.ingest("large", **with_spark(home_spark))
    assert (large.outcome, large.inserted, large.rows_source) == (Outcome.APPENDED, 9, 11)
    assert large.details["ranges"] == small.details["ranges"]
    assert counts(large.details) == counts(small.details)
    assert ingesting.rows("large")[0].keys() == ingesting.rows("small")[0].keys()
    assert Counter(map(repr, ingesting.rows("large"))) == Counter(map(repr, ingesting.rows("small")))
    assert ingesting.bad("large") == ingesting.bad("small")
    assert ingesting.ingest("large", **with_spark(home_spark)).outcome is Outcome.UNCHANGED


@pytest.mark.spark
def test_spark_ingests_as_one_process_does(home_spark: SparkSession, ingesting: Home) -> None:
    ingesting.declare_reader("small")
    ingesting.declare_reader(
        "large", schema="id bigint, name string, at timestamp, n decimal(9,2), more struct<a: int>"
    )
    ingesting.send_rows(0, 9)
    ingesting.send(0, BAD_LINE, b'{"id":9,"at":"2013-01-01T05:00:00Z","n":"1.25","more":{"a":1}}')
    ingesting.send_rows(1, 3)
    ingesting.send(1, None, headers=UNKNOWN)
    small, large = ingesting.ingest("small"), ingesting.ingest("large", **with_spark(home_spark))
    assert (large.outcome, large.inserted, large.rows_source) == (Outcome.APPENDED, 13, 15)
    assert counts(large.details) == counts(small.details)
    assert ingesting.ids("large") == ingesting.ids("small")
    assert ingesting.bad("large") == ingesting.bad("small")
    assert ingesting.rows("large_quarantine")[0].keys() == ingesting.rows("small_quarantine")[0].keys()
    assert ingesting.ledgers("large") == {"0": "0:11", "1": "0:4"}
    (row,) = [row for row in ingesting.rows("large") if row["at"]]
    assert (str(row["at"]), str(row["n"]), row["more"]) == ("2013-01-01 05:00:00+00:00", "1.25", {"a": 1})
    assert ingesting.ingest("large", **with_spark(home_spark)).outcome is Outcome.UNCHANGED
    assert ingesting.branches() == set()


@pytest.mark.spark
def test_spark_judges_event_times_as_one_process_does(home_spark: SparkSession, ingesting: Home) -> None:
    rules = {"event_time": "at", "partition": "hour", "lifecycle": {"late_arrive_window": "1s", "late": "quarantine"}}
    names = ("small", "large")
    for name in names:
        ingesting.declare_reader(name, schema="id bigint, at timestamp", **rules)

    def send(sequencer_id: int, *times: str) -> None:
        for at in times:
            ingesting.send(sequencer_id, f'{{"id":{ingesting.sent},"at":"{at}"}}'.encode())
            ingesting.sent += 1

    def ingest_both() -> None:
        ingesting.clock.step(5_000_000)
        small, large = ingesting.ingest("small"), ingesting.ingest("large", **with_spark(home_spark))
        told = ("closed", "late_rows", "watermark", "quarantined")
        assert [small.details.get(each) for each in told] == [large.details.get(each) for each in told]

    send(0, *(f"1970-01-01T00:{minute:02}:30.5" for minute in range(9)), "1970-01-01T01:10:00", "1970-01-01T09:00:00")
    send(1, "1969-12-31T23:59:59.9995", "1970-01-01T01:00:01")
    ingesting.send(1, b'{"id":100}')
    ingest_both()
    send(0, "1970-01-01T01:50:00", "1970-01-01T00:01:00")
    send(1, "1970-01-01T01:50:00")
    ingest_both()
    states = [Partitions.parse(ingesting.shard(name).load().table.properties, "at", Unit.HOUR) for name in names]
    assert states[0].state.partitions.keys() >= {"1969-12-31T23", "1970-01-01T00", "1970-01-01T01"}
    assert [each.state for each in states] == [states[0].state] * 2
    assert sorted(reason for _, _, reason, _ in ingesting.bad("small"))[-1] == "late"
    assert ingesting.bad("large") == ingesting.bad("small")
    assert ingesting.ids("large") == ingesting.ids("small")


@pytest.mark.spark
def test_spark_stages_a_batch_for_each_partition(home_spark: SparkSession, ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 5)
    ingesting.send(1, BAD_LINE, b'{"id":5}')
    ingesting.switch(Mode.READ_ONLY)
    assert ingesting.ingest(**with_spark(home_spark)).outcome is Outcome.STAGED
    assert ingesting.ids() == []
    ingesting.switch(Mode.READ_WRITE)
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert (ingesting.ids(), ingesting.ledgers()) == (list(range(6)), {"0": "0:5", "1": "0:2"})
    assert ingesting.bad() == [(1, 0, "row-unreadable", BAD_LINE)]


@pytest.mark.spark
def test_what_goes_between_the_plan_and_sparks_tasks_is_planned_again(
    home_spark: SparkSession, ingesting: Home
) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 1)
    ingesting.ingest()
    ingesting.send_rows(0, 6)

    def start_spark() -> SparkSession:
        ingesting.buffer.logs[0].expire(4)  # once the plan is made: a task finds the next three gone
        return home_spark

    engine = {**with_spark(home_spark), "start_spark": start_spark}
    failed = ingesting.ingest(**engine)
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("NoLongerExists", ExitCode.INPUT_MISSING)
    assert ingesting.ids() == [0]


def test_much_is_left_for_spark(ingesting: Home) -> None:
    declaration = ingesting.declare_reader()
    ingesting.send_rows(0, 3)
    deployment = deployment_of(ingesting.settings)
    with pytest.raises(NeedsSpark):
        ingest(
            ingesting.shards, declaration, deployment=deployment, clock=ingesting.clock, engine=Engine(small_entries=2)
        )
    assert ingesting.ids() == []


@pytest.mark.crash
@pytest.mark.spark
def test_killed_application_is_done_once(ingesting: Home) -> None:
    """One real kill, at whatever instruction it comes once Spark has staged something; the rest needs no JVM."""
    ingesting.declare_reader()
    ingesting.send_rows(0, 40)
    ingesting.send_rows(1, 40)
    report = ingesting.folder / "report.json"
    program = [sys.executable, str(PROJECT_ROOT / "spark_apps" / "ingest_write_buffer.py"), "--small-entries", "0"]
    environ = {
        **os.environ,
        "PYTHONPATH": str(PROJECT_ROOT / "include"),
        "TIDEMARK_HOME": str(ingesting.settings.home),
        "TIDEMARK_JARS": str(ingesting.settings.jars),
    }
    process = subprocess.Popen(
        [*program, "--report", str(report)], env=environ, start_new_session=True, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while not ingesting.branches() and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert ingesting.ids() in ([], list(range(80)))
    again = ingesting.ingest_all()
    assert again.exit_code == ExitCode.OK
    assert ingesting.ids() == list(range(80))
    assert ingesting.ledgers() == {"0": "0:40", "1": "0:40"}
    ingesting.send_rows(0, 1)
    ingesting.ingest_all()
    assert ingesting.branches() == set()
