"""A newer deployment reconciles read-only beside a living leader; once it leads, everything equals its source."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conftest import settings_in
from tests.live.conftest import FLUSH, RECONCILE, RUN_SECONDS
from tests.support.airflow_runs import migrated_database
from tests.support.declared import EVENTS, HEAD, PLANES
from tests.support.homes import Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import set_mode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.reading.invariant import check_invariant
from tools.local_airflow.settings import AirflowSettings
from tools.local_airflow.standalone import Standalone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.warm_driver.start import WarmSpark
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark]

DAYS = [date(2026, 1, day) for day in (1, 2, 3)]
SEATS = PLANES.replace("planes", "seats")
OLD, NEW = 1, 2


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Three collections that the old deployment leads, stored as they once were in their sources."""
    folder = tmp_path_factory.mktemp("upgraded")
    home = Home(settings_in(folder / "home"), folder)
    write_sources(home, "old", 100)
    home.declare(HEAD + EVENTS + PLANES + SEATS)
    switch(home, OLD)
    for name in ("events", "planes", "seats"):
        publish_as_leader(home, name, source_of(name, "old", 100))
    return home


@pytest.fixture(scope="module")
def client(upgraded: Home, dags: Path, warm: WarmSpark) -> Iterator[AirflowClient]:
    """An Airflow of the new deployment."""
    airflow_home = upgraded.folder / "airflow"
    airflow_home.mkdir()
    shutil.copy(migrated_database(), airflow_home)
    environment = {
        **warm.environment,
        "TIDEMARK_HOME": str(upgraded.settings.home),
        "TIDEMARK_JARS": str(upgraded.settings.jars),
        "TIDEMARK_GENERATION": str(NEW),
        "AIRFLOW__CORE__MAX_TASK_RETRY_DELAY": "2",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60.0",
    }
    with Standalone(home=airflow_home, environment=environment, dags=dags) as airflow, airflow.client() as client:
        AirflowSettings.read().load_into(client)
        client.wait_until(
            lambda: {dag["dag_id"] for dag in client.request("GET", "dags")["dags"]} >= {FLUSH, RECONCILE},
            what="the DAGs to be parsed",
            timeout_s=60,
        )
        yield client


def write_sources(home: Home, value: str, seats: int) -> None:
    for name in ("events", "planes", "seats"):
        rows = source_of(name, value, seats)
        home.write_lines(name, ",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows))


def source_of(name: str, value: str, seats: int) -> list[dict[str, Any]]:
    if name == "events":
        return [{"day": day, "id": id_, "value": value} for day in DAYS for id_ in (1, 2)]
    return [{"tailnum": f"N{number}", "seats": seats + number} for number in range(5)]


def switch(home: Home, generation: int) -> None:
    settings = replace(home.settings, generation=generation)
    set_mode(home.shards, deployment_of(settings), Mode.READ_WRITE, who="tests", why="an upgrade")


def publish_as_leader(home: Home, name: str, rows: list[dict[str, Any]]) -> None:
    """Add rows as the old deployment, which goes on beside the new one."""
    shard = home.shard(name)
    table, upper = shard.load().table, home.upper(name)
    stamped = pa.Table.from_pylist([{**row, "_time": upper, "_diff": 1} for row in rows], schema=arrow_schema(table))
    batch = Batch(added=write_rows(table, stamped))
    Writer.lead(shard, OLD).publish(batch, lower=upper, new_upper=upper + 1)


def leave_alone_as_leader(home: Home, name: str) -> None:
    """Commit whatever leaves the contents alone."""
    upper = home.upper(name)
    writer = Writer.raise_token(home.shard(name), OLD)
    writer.advance(lower=upper, new_upper=upper + 1)
    compact(writer)


def test_what_is_staged_beside_a_leader_equals_the_sources_once_it_is_flushed(
    client: AirflowClient, upgraded: Home
) -> None:
    write_sources(upgraded, "new", 200)
    client.unpause(RECONCILE)
    scheduled = client.wait_until(lambda: client.runs(RECONCILE), what="a scheduled run", timeout_s=60)[0]["dag_run_id"]
    assert client.wait(RECONCILE, scheduled, timeout_s=RUN_SECONDS) == "success", "it is about yesterday alone"
    for day in DAYS:
        run_id = client.trigger(
            RECONCILE,
            conf={"collections": ["events"]},
            logical_date=datetime(day.year, day.month, day.day + 1, tzinfo=UTC),  # whose run is about the day before
        )
        assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"
        assert client.xcom(RECONCILE, run_id, "reconcile")["collections"]["events"]["outcome"] == "staged"
        leave_alone_as_leader(upgraded, "events")
    run_id = client.trigger(RECONCILE, conf={"collections": ["planes", "seats"]})
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"
    leave_alone_as_leader(upgraded, "planes")
    publish_as_leader(upgraded, "seats", [{"tailnum": "N9", "seats": 9}])  # what was staged for it is stale
    assert {row["value"] for row in upgraded.user_rows("events")} == {"old"}
    days = {branch for branch in upgraded.branches() if not branch.endswith("all")}
    assert len(days) == len(DAYS)

    client.unpause(FLUSH)
    switch(upgraded, NEW)
    run_id = client.trigger(FLUSH)  # beside the run that the switch starts
    assert client.wait(FLUSH, run_id, timeout_s=RUN_SECONDS) == "success"
    client.wait_until(lambda: not upgraded.branches(), what="the flush", timeout_s=RUN_SECONDS)
    for name in ("events", "planes", "seats"):
        wanted = sorted(source_of(name, "new", 200), key=repr)
        assert upgraded.user_rows(name) == wanted
        assert check_invariant(upgraded.shard(name)).holds
    client.wait_until(
        lambda: all(run["state"] == "success" for run in client.runs(FLUSH)),
        what="the end of both flushes",
        timeout_s=RUN_SECONDS,
    )
    with_spark = [client.tasks(FLUSH, run["dag_run_id"])["flush_with_spark"]["state"] for run in client.runs(FLUSH)]
    assert "success" in with_spark, "the stale one was reconciled by the run that flushed"
