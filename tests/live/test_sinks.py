"""A real scheduler and a real PostgreSQL: a correction reaches the target because its asset starts the sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from tests.live.conftest import DECLARATIONS, RECONCILE, RUN_SECONDS, SINKS
from tests.sinks.postgres.conftest import connected
from tidemark.clock import SystemClock
from tools.local_airflow.client import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.homes import Home
    from tests.support.postgres_server import PostgresServer
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.postgres]
WITHIN_MS = 30_000  # from the commit of the correction over its asset to the row in the database
SEATS = """sinks:
  seats: {from: planes, to: {connection: pg, table: seats}, mode: mirror}
"""


@pytest.fixture(scope="module")
def database(client: AirflowClient, installation: Home, postgres: PostgresServer) -> Iterator[str]:
    """The target, which Airflow knows as the connection `pg`; the sink is declared."""
    uri = postgres.create_database("live_sinks")
    parts = urlsplit(uri)
    body = {
        "connection_id": "pg",
        "conn_type": "postgres",
        "host": parts.hostname,
        "port": parts.port,
        "schema": parts.path.removeprefix("/"),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }
    client.upsert("connections/pg", collection="connections", body=body)
    installation.settings = connected(installation.settings, uri)
    installation.declare(DECLARATIONS + SEATS)
    client.unpause(RECONCILE)
    client.unpause(SINKS)
    yield uri
    client.unpause(SINKS, paused=True)  # or every correction of a later test would start a run


def seats(database: str) -> dict[str, int]:
    with psycopg.connect(database) as connection:
        return dict(connection.execute("SELECT tailnum, seats FROM seats").fetchall())


def progress(database: str) -> int:
    """Return the time up to which the target has everything, as only the target knows."""
    with psycopg.connect(database) as connection:
        [(time,)] = connection.execute("SELECT time FROM tidemark_sinks").fetchall()
    return int(time)


def start_correction(client: AirflowClient, installation: Home, lines: list[str]) -> str:
    """Change the source and start to reconcile; sinks are not mentioned. Return the id of the run."""
    installation.write_lines("planes", "tailnum,seats", *lines)
    return client.trigger(RECONCILE, conf={"collections": ["planes"], "max_delete_ratio": 1})


def correct(client: AirflowClient, installation: Home, lines: list[str]) -> None:
    """Change the source and reconcile."""
    run_id = start_correction(client, installation, lines)
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"


def ended_runs(client: AirflowClient) -> set[str]:
    """Wait until no run of sinks is under way, of which an asset has started one; return the ids of all."""

    def look() -> list[dict[str, Any]]:
        runs = client.runs(SINKS)
        is_over = all(run["state"] in FINISHED for run in runs)
        return runs if is_over and any(run["run_type"] == "asset_triggered" for run in runs) else []

    runs = client.wait_until(look, what="the end of the runs of sinks", timeout_s=RUN_SECONDS)
    return {run["dag_run_id"] for run in runs}


def report(client: AirflowClient, run_id: str) -> dict[str, Any]:
    """Return what a run that has ended says of the sink."""
    task = client.tasks(SINKS, run_id)["run_sink[seats]"]
    found: dict[str, Any] = client.xcom(SINKS, run_id, "run_sink", map_index=task["map_index"])
    return found


def test_a_correction_starts_the_sinks_and_reaches_the_database(
    client: AirflowClient, installation: Home, database: str
) -> None:
    correct(client, installation, ["N1,1"])
    run_id = client.trigger(SINKS)
    assert client.wait(SINKS, run_id, timeout_s=RUN_SECONDS) == "success"
    earlier, loaded = ended_runs(client), progress(database)
    assert seats(database) == {"N1": 1}

    start_correction(client, installation, ["N1,10", "N2,2"])
    client.wait_until(
        lambda: seats(database) == {"N1": 10, "N2": 2}, what="the correction in the database", timeout_s=RUN_SECONDS
    )
    committed_ms = installation.upper("planes")  # by the clock of the process that committed the correction
    assert SystemClock().now_ms() - committed_ms <= WITHIN_MS
    started = {run["dag_run_id"]: run for run in client.runs(SINKS) if run["dag_run_id"] not in earlier}
    assert {run["run_type"] for run in started.values()} == {"asset_triggered"}
    assert {client.wait(SINKS, run_id, timeout_s=RUN_SECONDS) for run_id in started} == {"success"}
    reports = [report(client, run_id) for run_id in started]
    assert [each["lower"] for each in reports if each["outcome"] == "carried"] == [loaded]


def test_a_paused_sink_is_left_out_and_goes_on_where_it_was(
    client: AirflowClient, installation: Home, database: str
) -> None:
    objects = installation.deployment.objects
    before, came_to = seats(database), progress(database)
    objects.pause(["seats"], why="the database is upgraded")
    correct(client, installation, ["N1,11", "N3,3"])
    run_id = client.trigger(SINKS)
    client.wait(SINKS, run_id, timeout_s=RUN_SECONDS)
    assert client.tasks(SINKS, run_id)["run_sink[seats]"]["state"] == "skipped"
    ended_runs(client)
    assert (seats(database), progress(database)) == (before, came_to)

    objects.resume(["seats"])
    run_id = client.trigger(SINKS)
    assert client.wait(SINKS, run_id, timeout_s=RUN_SECONDS) == "success"
    assert seats(database) == {"N1": 11, "N3": 3}
    carried = report(client, run_id)
    assert (carried["lower"], carried["inserted"], carried["retracted"]) == (came_to, 2, 1), "a load has no lower"
