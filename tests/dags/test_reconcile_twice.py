"""The whole DAG in this process, with a real spark-submit: what is right already is left untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.declared import declare
from tidemark.iceberg.shards import Shards
from tidemark.settings import PROJECT_ROOT, Settings
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

DECLARATION = """
version: 1
collections:
  planes:
    kind: differential
    key: [tailnum]
    source: {format: csv, path: planes.csv, options: {header: true}, schema: "tailnum string, seats int"}
"""


@pytest.fixture
def declared(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "planes.csv").write_text("tailnum,seats\nN1,100\nN2,\n")
    (tmp_path / "collections.yaml").write_text(DECLARATION)
    environment = {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(home.home)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    declare(home, tmp_path / "collections.yaml")
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, cwd=PROJECT_ROOT, env=os.environ)
    return home


def run_dag() -> dict[str, Any]:
    """Run the DAG as `airflow dags test` does, without a logical date, and return its report."""
    from airflow.dag_processing.dagbag import DagBag

    run = DagBag(PROJECT_ROOT / "dags").dags["reconcile_collections"].test(logical_date=None)
    assert {instance.state for instance in run.get_task_instances()} == {"success"}
    instance = run.get_task_instance("reconcile")
    report: dict[str, Any] = instance.xcom_pull("reconcile")
    return report["collections"]


def test_second_run_changes_nothing(declared: Settings) -> None:
    shard = Shards.connect(declared).open("planes")
    first = run_dag()["planes"]
    assert (first["outcome"], first["inserted"]) == ("corrected", 2)
    files = data_files(declared)
    second = run_dag()["planes"]
    assert (second["outcome"], second["inserted"], second["retracted"]) == ("unchanged", 0, 0)
    assert second["upper"] > first["upper"], "a run that changes nothing still moves the frontier"
    assert shard.load().state.upper == second["upper"]
    assert data_files(declared) == files


def data_files(settings: Settings) -> set[str]:
    table = Shards.connect(settings).iceberg.load_table(("collections", "planes"))
    return {task.file.file_path for task in table.scan().plan_files()}
