from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tidemark.errors import ConfigurationInvalid
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings, main

if TYPE_CHECKING:
    from pathlib import Path


def test_committed_settings_declare_what_the_dags_use() -> None:
    settings = AirflowSettings.read()
    assert set(settings.connections) == {"spark_default", "tidemark_catalog", "tidemark_stash", "tidemark_warehouse"}
    assert settings.pools["spark"]["slots"] >= 1


def test_committed_settings_hold_no_secret() -> None:
    for connection in AirflowSettings.read().connections.values():
        assert not connection["password"]
        assert not connection["login"]


def test_environment_form_is_what_airflow_reads() -> None:
    environment = AirflowSettings.read().environment()
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[2]"


def test_settings_can_be_printed_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    assert "AIRFLOW_CONN_TIDEMARK_CATALOG=" in capsys.readouterr().out


@pytest.mark.slow
def test_unreachable_airflow_is_said_in_one_sentence() -> None:
    command = [sys.executable, "-m", "tools.local_airflow.settings", "load", "--url", "http://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT_ROOT)
    assert ended.returncode == 69
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "airflow: [",
        "airflow: {connections: [{conn_id: x}]}",
        "airflow: {connections: [x]}",
        "airflow: {pools: [{pool_name: x, pool_slot: many}]}",
        "airflow: {pools: [{pool_name: x}]}",
        "airflow: {variables: [{variable_name: x}]}",
    ],
)
def test_malformed_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "airflow_settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationInvalid, match=str(path)):
        AirflowSettings.read(path)
