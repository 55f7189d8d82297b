"""A real scheduler and a real PostgreSQL: a correction reaches the target because its asset starts the sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from tests.live.conftest import DECLARATIONS, RECONCILE, RUN_SECONDS, SINKS
from tests.sinks.postgres.conftest import connected
from tidemark.clock import SystemClock

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


def start_correction(client: AirflowClient, installation: Home, lines: list[str]) -> str:
    """Change the source and start to reconcile; sinks are not mentioned. Return the id of the run."""
    installation.write_lines("planes", "tailnum,seats", *lines)
    return client.trigger(RECONCILE, conf={"collections": ["planes"], "max_delete_ratio": 1})


def correct(client: AirflowClient, installation: Home, lines: list[str]) -> None:
    """Change the source and reconcile."""
    run_id = start_correction(client, installation, lines)
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"


def test_a_correction_starts_the_sinks_and_reaches_the_database(
    client: AirflowClient, installation: Home, database: str
) -> None:
    correct(client, installation, ["N1,1"])
    run_id = client.trigger(SINKS)
    assert client.wait(SINKS, run_id, timeout_s=RUN_SECONDS) == "success"
    assert seats(database) == {"N1": 1}

    start_correction(client, installation, ["N1,10", "N2,2"])
    client.wait_until(
        lambda: seats(database) == {"N1": 10, "N2": 2}, what="the correction in the database", timeout_s=RUN_SECONDS
    )
    committed_ms = installation.upper("planes")  # by the clock of the process that committed the correction
    assert SystemClock().now_ms() - committed_ms <= WITHIN_MS
    started = [run for run in client.runs(SINKS) if run["run_type"] == "asset_triggered"]
    assert started, "nobody triggered that run"


def test_a_paused_sink_is_left_out_and_goes_on_where_it_was(
    client: AirflowClient, installation: Home, database: str
) -> None:
    objects = installation.deployment.objects
    before = seats(database)
    objects.pause(["seats"], why="the database is upgraded")
    correct(client, installation, ["N1,11", "N3,3"])
    run_id = client.trigger(SINKS)
    client.wait(SINKS, run_id, timeout_s=RUN_SECONDS)
    assert client.tasks(SINKS, run_id)["run_sink[seats]"]["state"] == "skipped"
    assert seats(database) == before

    objects.resume(["seats"])
    assert client.wait(SINKS, client.trigger(SINKS), timeout_s=RUN_SECONDS) == "success"
    assert seats(database) == {"N1": 11, "N3": 3}
