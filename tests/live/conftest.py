"""One real Airflow for all live tests: it takes 15 s to start, and each run 10 to 20 s, so tests share it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, settings_in
from tests.live.task_logs import complaints
from tests.support.declared import EVENTS, HEAD, PLANES
from tests.support.homes import Home
from tests.support.warm_driver.start import warm_spark
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings
from tools.local_airflow.standalone import QUICK, Standalone

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.support.postgres_server import PostgresServer
    from tests.support.warm_driver.start import WarmSpark
    from tidemark.settings import Settings
    from tools.local_airflow.client import AirflowClient

RECONCILE = "reconcile_collections"
MAINTAIN = "maintain_collections"
APPEND = "append_batches"
FLUSH = "flush_staged_batches"
SWITCH = "switch_mode"
MIGRATE = "migrate_catalog"
SINKS = "run_sinks"
WORKERS = "run_storage_workers"
INGEST = "ingest_write_buffer"
LIFECYCLE = "buffer_lifecycle"
PROMOTE = "promote_deployment"
CONSUMER = "consume_readings"
ALL_DAGS = {APPEND, CONSUMER, FLUSH, INGEST, LIFECYCLE, MAINTAIN, MIGRATE, PROMOTE, RECONCILE, SINKS, SWITCH, WORKERS}
MIGRATED = "migrated_airflow"
POLICY = Path(__file__).parent / "policy"
RUN_SECONDS = 300.0  # far more than a run takes, whatever runs beside
# By DAG, what tests change in its file: no run starts by the clock while another one is looked at, but for one append,
# which starts as soon as its DAG is unpaused.
CHANGES = {APPEND: ("0 * * * *", "0 0 1 * *"), FLUSH: ("*/10 * * * *", "0 0 1 1 *")}
CHANGES |= {SINKS: CHANGES[FLUSH], LIFECYCLE: CHANGES[FLUSH], INGEST: ("*/5 * * * *", "0 0 1 1 *")}
CHANGES |= {WORKERS: ("schedule=timedelta(minutes=50)", "schedule=None")}

AIRLINES = """  airlines:
    kind: differential
    key: [carrier]
    source: {format: csv, path: airlines.csv, options: {header: true}, schema: "carrier string, name string"}
"""
BROKEN = """  broken:
    kind: differential
    key: [id]
    source: {format: csv, path: broken.csv, options: {header: true}, schema: "id int"}
"""
WEATHER = """  weather:
    kind: differential
    source: {format: csv, path: weather.csv, options: {header: true}, schema: "origin string, temp double"}
"""
DECLARATIONS = HEAD + AIRLINES + BROKEN + EVENTS + PLANES + WEATHER


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the tasks complained about to the report of a test that failed: it cannot be asked for later."""
    report = yield
    for name, airflow in item.funcargs.items():
        if report.failed and isinstance(airflow, Standalone):
            report.sections.append((f"complaints in the logs of {name}", complaints(airflow.home, call.start)))
    return report


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("live")
    installation = Home(settings_in(folder / "home"), folder)
    installation.write_lines("airlines", "carrier,name", "AA,American", "UA,United")
    installation.write_lines("planes", "tailnum,seats", *(f"N{number},{number}" for number in range(100, 120)))
    installation.write_lines(
        "events", "day,id,value", *(f"2013-01-0{day},{id_},old" for day in range(1, 6) for id_ in (1, 2))
    )
    installation.write_lines("weather", "origin,temp", "JFK,1.5", "JFK,1.5", "LGA,")
    installation.declare(DECLARATIONS)
    return installation


@pytest.fixture(scope="session")
def dags(installation: Home) -> Path:
    """The project's DAGs with ``CHANGES``, and a downstream one of a user."""
    folder = installation.folder / "dags"
    folder.mkdir()
    for path in [*(PROJECT_ROOT / "dags").glob("*.py"), *(Path(__file__).parent / "dags").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.stem in CHANGES:
            committed, changed = CHANGES[path.stem]
            assert committed in text
            text = text.replace(committed, changed)
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmSpark]:
    """What stands in for `spark-submit` where the master is local."""
    with warm_spark(Path(tempfile.mkdtemp(prefix="warm-", dir=ROOT))) as warm:
        yield warm


@pytest.fixture(scope="session")
def migrated(postgres: PostgresServer) -> PostgresServer:
    """The server with a database of Airflow's own tables, ``MIGRATED``, which is the template of others.

    On SQLite a backfill that meets another writer is lost, and the scheduler ends over that.
    """
    environment = {**os.environ, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.create_database(MIGRATED)}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, cwd=PROJECT_ROOT, env=environment)
    return postgres


def make_airflow(home: Path, database: str, settings: Settings, warm: WarmSpark, dags: Path, **more: str) -> Standalone:
    """Return an Airflow of its own in ``home``, which is to be started; ``more`` are environment variables."""
    home.mkdir()
    environment = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        **QUICK,
        **warm.environment,
        "TIDEMARK_HOME": str(settings.home),
        "TIDEMARK_JARS": str(settings.jars),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",  # a killed task is found sooner than in 5 minutes
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "1",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60.0",  # s; a busy machine answers late, and no task is lost for it
        "AIRFLOW__CORE__MAX_TASK_RETRY_DELAY": "2",  # s; no retry that a task's own delays decide waits longer
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",  # s; nobody edits a DAG meanwhile
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",  # s; a test has a file parsed again, and goes by it
        **more,
    }
    return Standalone(home=home, environment=environment, dags=dags, policy=POLICY)


def load(client: AirflowClient) -> None:
    """Give an Airflow its connections and pools, and wait for its DAGs."""
    AirflowSettings.read().load_into(client)
    client.wait_until(
        lambda: {dag["dag_id"] for dag in client.request("GET", "dags")["dags"]} >= ALL_DAGS,
        what="the DAGs to be parsed",
        timeout_s=60,
    )


@contextmanager
def working_on(client: AirflowClient, settings: Settings) -> Iterator[None]:
    """Let an Airflow work on the stores of another home, by changing three connections."""
    committed = AirflowSettings.read()
    changed = {
        "tidemark_catalog": {"host": str(settings.home / "catalog.db")},
        "tidemark_stash": {"host": str(settings.home / "stash.db")},
        "tidemark_warehouse": {"extra": f'{{"path": "{settings.home / "warehouse"}"}}'},
    }
    AirflowSettings(
        connections={name: committed.connections[name] | change for name, change in changed.items()}
    ).load_into(client)
    try:
        yield
    finally:
        committed.load_into(client)


@pytest.fixture(scope="session")
def airflow(installation: Home, migrated: PostgresServer, dags: Path, warm: WarmSpark) -> Iterator[Standalone]:
    database = migrated.create_database("live_airflow", template=MIGRATED)
    with make_airflow(installation.folder / "airflow", database, installation.settings, warm, dags) as airflow:
        yield airflow


@pytest.fixture(scope="session")
def client(airflow: Standalone) -> Iterator[AirflowClient]:
    with airflow.client() as client:
        load(client)
        yield client
