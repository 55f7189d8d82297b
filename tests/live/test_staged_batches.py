"""Hours that are caught up with, batches that wait for the end of read-only mode, and a job that follows them."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.live.conftest import APPEND, CONSUMER, FLUSH, RUN_SECONDS, SWITCH
from tests.live.drivers import driver_of, is_executing
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode
from tidemark.collections.staged.batches import list_batches
from tidemark.iceberg.shards import Shards
from tidemark.interval import milliseconds
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home
    from tests.support.warm_driver.start import WarmSpark
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark]

MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SWITCH_TO_FLUSH_SECONDS = 10.0
DECLARATIONS = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "at timestamp, value bigint"
    source: {format: parquet, path: readings, where: "at >= '{start}' AND at < '{end}'"}
    intervals: {start: 2013-01-01, end: 2013-01-01T03:00, every: hour}
"""
SLOWLY = "slow_readings"
# Reading a row takes as many ms as the row says.
SLOW = """
  slow_readings:
    kind: append-only
    schema: "id int"
    source:
      inputs: {f: {format: csv, path: slow_readings.csv, options: {header: true}, schema: "id int, delay_ms bigint"}}
      sql: >-
        SELECT id FROM f WHERE '{start}' < '{end}' AND java_method('java.lang.Thread', 'sleep', delay_ms) IS NOT NULL
"""


def hour_range(start: int, end: int) -> list[int]:
    return [milliseconds(MIDNIGHT + hour * HOUR) for hour in (start, end)]


def values(installation: Home) -> list[int]:
    return sorted(row["value"] for row in installation.user_rows("readings"))


def append(client: AirflowClient, start: int, end: int, **conf: Any) -> str:
    given = {name: (MIDNIGHT + hour * HOUR).isoformat() for name, hour in (("start", start), ("end", end))}
    return client.trigger(APPEND, conf={"collections": ["readings"], **given, **conf})


def end_of(client: AirflowClient, dag_id: str, run_id: str) -> str:
    return client.wait(dag_id, run_id, timeout_s=RUN_SECONDS)


def waiting_run(client: AirflowClient) -> str | None:
    """A flush that waits for the end of read-only mode in the triggerer."""
    for run in client.runs(FLUSH):
        if run["state"] == "running":
            task = client.tasks(FLUSH, run["dag_run_id"])["wait_until_writable"]
            if task["state"] == "deferred":
                return str(run["dag_run_id"])
    return None


def consumed_ranges(client: AirflowClient) -> list[list[int]]:
    return [
        part
        for run in client.runs(CONSUMER)
        if run["state"] == "success"
        for part in client.xcom(CONSUMER, run["dag_run_id"], "list_ranges")
    ]


@pytest.fixture(scope="module")
def readings(client: AirflowClient, installation: Home) -> Home:
    """Ten hours of two readings each; nothing of it is stored yet."""
    (installation.folder / "readings").mkdir()
    times = [MIDNIGHT + number * HOUR / 2 for number in range(20)]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array(range(20), pa.int64())})
    parquet.write_table(rows, installation.folder / "readings" / "2013.parquet")
    installation.declare(DECLARATIONS)
    client.unpause(FLUSH)
    client.unpause(SWITCH)
    # Airflow starts the watcher of the mode when it parses a file of a DAG that is not paused.
    client.request("PUT", f"parseDagFile/{client.request('GET', f'dags/{FLUSH}')['file_token']}")
    return installation


def test_declared_hours_are_caught_up_with_by_the_first_run(client: AirflowClient, readings: Home) -> None:
    client.unpause(APPEND)
    client.wait_until(lambda: client.runs(APPEND), what="a scheduled run", timeout_s=RUN_SECONDS)
    run_id = client.runs(APPEND)[0]["dag_run_id"]
    assert end_of(client, APPEND, run_id) == "success"
    tasks = client.tasks(APPEND, run_id)
    assert (tasks["append_with_spark"]["state"], tasks["show_result[readings]"]["state"]) == ("skipped", "success")
    assert values(readings) == list(range(6))
    # Airflow leaves an event that comes while it starts a run to the next run: the flush below brings what is missing.
    client.wait_until(lambda: consumed_ranges(client), what="the downstream job", timeout_s=RUN_SECONDS)


def test_batches_wait_for_the_end_of_read_only_mode_and_come_at_once(
    client: AirflowClient, readings: Home, record_property: Callable[[str, object], None]
) -> None:
    switched = client.trigger(SWITCH, conf={"mode": "read-only", "why": "an upgrade"})
    assert end_of(client, SWITCH, switched) == "success"
    staged = append(client, 2, 8)
    assert end_of(client, APPEND, staged) == "success"
    [result] = client.xcom(APPEND, staged, "list_appended")
    assert (result["outcome"], result["details"]["staged_ranges"]) == ("staged", {"source": [hour_range(3, 8)]})
    assert values(readings) == list(range(6)), "nothing that readers see changes"
    waiting = client.wait_until(lambda: waiting_run(client), what="a flush that waits", timeout_s=RUN_SECONDS)

    switched_at = datetime.now(tz=UTC)  # noqa: TID251 -- compared with the times of a real scheduler
    switch_mode(
        Shards.connect(readings.settings), deployment_of(readings.settings), Mode.READ_WRITE, who="tests", why="done"
    )
    assert end_of(client, FLUSH, waiting) == "success"
    flush = client.tasks(FLUSH, waiting)["flush"]
    began = datetime.fromisoformat(flush["start_date"])
    ended = datetime.fromisoformat(flush["end_date"])
    record_property("flush began s after the switch", (began - switched_at).total_seconds())
    record_property("flush ended s after the switch", (ended - switched_at).total_seconds())
    assert (began - switched_at).total_seconds() < SWITCH_TO_FLUSH_SECONDS
    assert values(readings) == list(range(16))
    assert list_batches(Shards.connect(readings.settings), ["readings"]) == []
    heard = {(0, 3), (2, 3), (3, 8)}  # at least once
    client.wait_until(
        lambda: {tuple(part) for part in consumed_ranges(client)} == {tuple(hour_range(*hours)) for hours in heard},
        what="the downstream job to hear of every range",
        timeout_s=RUN_SECONDS,
    )


def test_switch_on_the_command_line_starts_a_flush_by_itself(client: AirflowClient, readings: Home) -> None:
    def switch(mode: str, why: str) -> None:
        environment = {**os.environ, "TIDEMARK_HOME": str(readings.settings.home)}
        command = [sys.executable, "-m", "tidemark", "mode", mode, "--why", why]
        subprocess.run(command, check=True, cwd=PROJECT_ROOT, env=environment)

    def switches() -> list[str]:
        events = client.asset_events(timeout_s=RUN_SECONDS)
        payloads = [event["extra"]["payload"] for event in events if event["extra"].get("from_trigger")]
        return [payload["why"] for payload in payloads if "why" in payload]  # not that of a watcher of files

    def run_of(why: str) -> str | None:
        """The flush that the switch started which was made for this reason."""
        for run in client.runs(FLUSH):
            path = f"dags/{FLUSH}/dagRuns/{run['dag_run_id']}/upstreamAssetEvents"
            events = client.asset_events(path, timeout_s=RUN_SECONDS)
            if any(event["extra"].get("payload", {}).get("why") == why for event in events):
                return str(run["dag_run_id"])
        return None

    client.wait_until(lambda: "done" in switches(), what="the watcher's event", timeout_s=RUN_SECONDS)
    switch("read-only", "a second upgrade")
    waiting = client.wait_until(lambda: waiting_run(client), what="a flush that waits", timeout_s=RUN_SECONDS)
    client.request("PATCH", f"dags/{FLUSH}/dagRuns/{waiting}", json={"state": "failed"})  # nobody waits for the end
    assert end_of(client, APPEND, append(client, 8, 10)) == "success"
    assert values(readings) == list(range(16))

    switch("read-write", "the second upgrade is done")
    started = client.wait_until(
        lambda: run_of("the second upgrade is done"), what="the flush of the switch", timeout_s=RUN_SECONDS
    )
    assert end_of(client, FLUSH, started) == "success"
    result = client.xcom(FLUSH, started, "flush")["collections"]["readings"]
    assert (result["outcome"], result["inserted"]) == ("flushed", 4)
    assert values(readings) == list(range(20))
    assert list_batches(Shards.connect(readings.settings), ["readings"]) == []


def test_cleared_runs_repeat_nothing(client: AirflowClient, readings: Home) -> None:
    def stored() -> tuple[Any, ...]:
        shard = Shards.connect(readings.settings).open("readings").load()
        return readings.user_rows("readings"), shard.state.ledgers, shard.state.upper

    before = stored()
    flushes = [run["dag_run_id"] for run in client.runs(FLUSH)]
    flushed = next(run for run in flushes if client.tasks(FLUSH, run)["flush"]["state"] == "success")
    for dag_id, run_id in ((FLUSH, flushed), (APPEND, client.runs(APPEND)[-1]["dag_run_id"])):
        first = client.tasks(dag_id, run_id)
        client.clear(dag_id, run_id)
        assert end_of(client, dag_id, run_id) == "success"
        second = client.tasks(dag_id, run_id)
        repeated = {"wait_until_writable", "list_staged"} if dag_id == FLUSH else {"append", "list_appended"}
        for task in repeated:
            assert second[task]["state"] == "success"
            assert second[task]["try_number"] > first[task]["try_number"]
            assert second[task]["start_date"] > first[task]["start_date"]
    assert stored() == before


def test_task_that_is_marked_failed_takes_its_jvm_with_it(
    client: AirflowClient, readings: Home, warm: WarmSpark
) -> None:
    readings.write_lines(SLOWLY, "id,delay_ms", "1,600000")
    readings.declare(DECLARATIONS + SLOW)
    with warm.submitting_for_real():
        run_id = append(client, 0, 1, collections=[SLOWLY])
        driver = client.wait_until(
            lambda: driver_of(SLOWLY, "append_batches.py"), what="the driver", timeout_s=RUN_SECONDS
        )
    jvm = driver.parent()
    client.wait_until(lambda: is_executing(jvm), what="a Spark task", timeout_s=RUN_SECONDS)
    path = f"dags/{APPEND}/dagRuns/{run_id}/taskInstances/append_with_spark"
    client.request("PATCH", path, json={"new_state": "failed"})
    _, alive = psutil.wait_procs([jvm, driver], timeout=30)
    assert alive == []
    assert end_of(client, APPEND, run_id) == "failed"
    assert readings.user_rows(SLOWLY) == []

    readings.write_lines(SLOWLY, "id,delay_ms", "1,0")
    client.clear(APPEND, run_id)
    assert end_of(client, APPEND, run_id) == "success"
    assert readings.user_rows(SLOWLY) == [{"id": 1}]
