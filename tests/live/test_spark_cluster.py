"""The same DAG on a Spark standalone cluster and PostgreSQL: only connections change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import pytest

from tests.conftest import settings_in
from tests.live.conftest import DECLARATIONS, RECONCILE, RUN_SECONDS
from tests.live.spark_cluster import running_cluster
from tests.support.homes import Home
from tidemark.orchestration.spark_application import library_archive
from tidemark.settings import PROJECT_ROOT
from tidemark.spark.conf import submit_conf
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.postgres_server import PostgresServer
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.cluster, pytest.mark.postgres, pytest.mark.spark]


@pytest.fixture(scope="module")
def master_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as port:
        yield port


@pytest.fixture(scope="module")
def production(client: AirflowClient, installation: Home, postgres: PostgresServer, master_port: int) -> Iterator[Home]:
    """The same sources, but another catalog, stash, warehouse and Spark, by changing four connections."""
    uri = postgres.create_database("live_catalog")
    warehouse = installation.folder / "lake"
    settings = settings_in(
        installation.folder / "home",
        TIDEMARK_CATALOG_URI=uri,
        TIDEMARK_STASH_URI=uri,
        TIDEMARK_WAREHOUSE=warehouse.as_uri(),
    )
    parts = urlsplit(uri)
    committed = AirflowSettings.read()
    database = {
        "conn_type": "postgres",
        "host": parts.hostname,
        "port": parts.port,
        "schema": parts.path.removeprefix("/"),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }
    changed = {
        "spark_default": {"host": "spark://127.0.0.1", "port": master_port},
        "tidemark_catalog": database,
        "tidemark_stash": database,
        "tidemark_warehouse": {"extra": f'{{"path": "{warehouse}"}}'},
    }
    AirflowSettings(
        connections={name: committed.connections[name] | change for name, change in changed.items()}
    ).load_into(client)
    production = Home(settings, installation.folder)
    production.declare(DECLARATIONS)
    yield production
    committed.load_into(client)


def test_same_dag_runs_on_the_cluster(client: AirflowClient, production: Home) -> None:
    for name in ("airlines", "planes", "weather"):
        assert production.user_rows(name) == [], "a new catalog is empty"
    client.unpause(RECONCILE)
    run_id = client.trigger(RECONCILE, conf={"collections": ["airlines", "weather"]})
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"
    assert [row["carrier"] for row in production.user_rows("airlines")] == ["AA", "UA"]
    assert len(production.user_rows("weather")) == 3
    again = client.trigger(RECONCILE, conf={"collections": ["airlines", "weather"], "full": True})
    assert client.wait(RECONCILE, again, timeout_s=RUN_SECONDS) == "success"
    assert {result["outcome"] for result in client.xcom(RECONCILE, again, "list_results")} == {"unchanged"}


def test_no_secret_shows_in_logs_or_pages(client: AirflowClient, production: Home) -> None:
    uri = production.settings.catalog_uri
    for path in (production.folder / "airflow" / "logs").rglob("*.log"):
        text = path.read_text(errors="replace")
        assert uri.password not in text, f"{path.name} shows the password"
        assert quote(uri.password, safe="") not in text
    run_id = str(client.runs(RECONCILE)[-1]["dag_run_id"])
    rendered = client.tasks(RECONCILE, run_id)["reconcile"]["rendered_fields"]
    assert uri.password not in str(rendered)


def test_library_reaches_the_executors(production: Home, master_port: int, tmp_path: Path) -> None:
    archive = library_archive(tmp_path)
    conf = [word for item in submit_conf(production.settings).items() for word in ("--conf", "=".join(item))]
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        "--master", f"spark://127.0.0.1:{master_port}", *conf, "--py-files", str(archive),
        str(PROJECT_ROOT / "tests" / "live" / "executor_probe.py"), str(tmp_path / "places"),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    places = (tmp_path / "places").read_text().splitlines()
    assert len(places) == 4
    assert all(archive.name in place for place in places), "from the archive, not from this machine's project"
