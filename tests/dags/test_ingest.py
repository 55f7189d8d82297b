"""The DAG in this process, with a real spark-submit: few entries without Spark, then some with it, each row once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.dags.test_append_and_flush import run_dag
from tests.support.declared import declare
from tidemark.iceberg.shards import Shards
from tidemark.orchestration.tasks.ingest import ingest_arguments
from tidemark.settings import PROJECT_ROOT, Settings
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from pathlib import Path

DECLARATION = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "id bigint"
    source: {buffer: readings_log}
"""


@pytest.fixture
def declared(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """`readings` reads a buffer whose address is an Airflow connection."""
    (tmp_path / "collections.yaml").write_text(DECLARATION)
    address = json.dumps({"conn_type": "fs", "extra": {"path": str(tmp_path / "buffer")}})
    environment = {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(home.home)}
    for name, value in (environment | {"AIRFLOW_CONN_READINGS_LOG": address}).items():
        monkeypatch.setenv(name, value)
    declare(home, tmp_path / "collections.yaml")
    open_folder(tmp_path / "buffer", sequencers=2)
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, cwd=PROJECT_ROOT, env=os.environ)
    return home


def write(folder: Path, *ids: int) -> None:
    logs = open_folder(folder).logs
    for number in ids:
        logs[number % 2].append(encode_message(Message(json.dumps({"id": number}).encode(), (), 1_000)))


def ids(settings: Settings) -> list[int]:
    table = Shards.connect(settings).iceberg.load_table(("collections", "readings"))
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@pytest.mark.spark
def test_entries_are_ingested_with_and_without_spark(declared: Settings, tmp_path: Path) -> None:
    write(tmp_path / "buffer", 0, 1, 2)
    small = run_dag("ingest_write_buffer")
    assert {name: state for name, (state, _) in small.items() if state != "success"} == {"ingest_with_spark": "skipped"}
    assert (small["show_result0"][1]["outcome"], small["show_result0"][1]["inserted"]) == ("appended", 3)
    write(tmp_path / "buffer", 3, 4)
    large = run_dag("ingest_write_buffer", engine="spark", max_entries_per_run=1)
    assert {state for state, _ in large.values()} == {"success"}
    shown = large["show_result0"][1]
    assert (shown["outcome"], shown["inserted"], shown["operation"]) == ("appended", 1, "ingest")
    assert sum(each["sequence_number_lag"] for each in shown["details"]["sequencers"].values()) <= 1
    run_dag("ingest_write_buffer")
    assert ids(declared) == [0, 1, 2, 3, 4]


def test_params_become_arguments() -> None:
    assert ingest_arguments(["a"], {}) == ["a"]
    params = {"max_entries_per_run": 7, "engine": "spark"}
    assert ingest_arguments(["a", "b"], params) == ["a", "b", "--max-entries", "7", "--small-entries", "0"]
