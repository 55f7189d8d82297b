from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from tests.support.damage import damage_metadata
from tests.support.homes import Home
from tests.support.rows import SCHEMA
from tests.support.storage_board import show
from tidemark.iceberg.shards import Shards
from tidemark.orchestration.status_page.app import status_app
from tidemark.settings import PROJECT_ROOT, Settings
from tidemark.storage.dataflows.dataflow import News
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI


@pytest.fixture
def home(bare_home: Settings) -> Settings:
    return bare_home


@pytest.fixture
def app(home: Settings, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    for name, value in AirflowSettings.read().environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    return status_app()


@pytest.fixture
def logged_in(app: FastAPI) -> Iterator[TestClient]:
    app.dependency_overrides[get_user] = lambda: "somebody"
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    app.dependency_overrides.clear()


@pytest.fixture
def planes(home: Settings) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StringType

    schema = Schema(NestedField(1, "tailnum", StringType(), required=False))
    Shards.connect(home).create("planes", schema=schema, key=("tailnum",))


@pytest.mark.parametrize("path", ["/", "/status", "/anything"])
def test_nothing_is_shown_to_strangers(app: FastAPI, path: str) -> None:
    with TestClient(app) as client:
        assert client.get(path).status_code in {401, 404}


@pytest.mark.usefixtures("planes")
def test_collections_are_listed_with_their_frontiers(logged_in: TestClient) -> None:
    status = logged_in.get("/status").json()
    assert [(collection["name"], collection["upper"], collection["rows"]) for collection in status["collections"]] == [
        ("planes", 0, 0)
    ]
    assert "planes" in logged_in.get("/").text


@pytest.mark.usefixtures("planes")
def test_damaged_collection_is_shown_beside_the_others(logged_in: TestClient, home: Settings) -> None:
    damage_metadata(Shards.connect(home).create("ailing", schema=SCHEMA), "cut")
    ailing, planes = logged_in.get("/status").json()["collections"]
    assert (ailing["name"], ailing["error"]["kind"]) == ("ailing", "CorruptState")
    assert (planes["name"], planes["error"]) == ("planes", None)
    page = logged_in.get("/").text
    assert '<tr class="failed"><td>ailing</td>' in page
    assert "is damaged" in page
    assert "<td>planes</td>" in page


def test_empty_installation_is_no_error(logged_in: TestClient) -> None:
    nobody = {"workers": [], "objects": []}
    assert logged_in.get("/status").json() == {"collections": [], "resting": {}, "reports": {}, "storage": nobody}
    assert "none yet" in logged_in.get("/").text


def test_what_rests_is_shown_with_its_reason(logged_in: TestClient, home: Settings) -> None:
    opened = Home(home)
    opened.apply(opened.declaration("planes"))
    opened.deployment.objects.pause(["planes"], why="<b>a check</b>")
    assert logged_in.get("/status").json()["resting"]["planes"].endswith("<b>a check</b>")
    assert "&lt;b&gt;a check" in logged_in.get("/").text


def test_storage_workers_are_shown_with_how_far_they_are(logged_in: TestClient, home: Settings) -> None:
    Home(home).shards.names()
    news = News(
        upper=3,
        rounds=7,
        rows=8,
        held=5,
        waiting=9,
        lag_ms=90_000,
        behind_ms=2_000,
        error="<b>no answer</b>",
        error_ms=1,
    )
    show(home, 0, "events", dataflows={"1": {"name": "events", "started_at": 0, **news.to_json()}})
    show(home, 1, ended="its time was over")
    page = logged_in.get("/").text
    assert "<th>waiting</th><th>lag</th><th>behind</th>" in page
    assert "<td>0</td><td>running</td><td>1</td><td>host:1</td>" in page
    assert "<td>1</td><td>ended: its time was over</td>" in page
    assert "<td>events</td><td>0</td><td>0</td>" in page
    assert (
        "<td>7</td><td>8</td><td>5</td><td>9</td><td>90 s</td><td>2 s</td><td>failed</td><td>&lt;b&gt;no answer" in page
    )
    (shown,) = logged_in.get("/status").json()["storage"]["objects"]
    assert (shown["name"], shown["lag_ms"]) == ("events", 90_000)


def test_last_report_is_shown_and_escaped(logged_in: TestClient, home: Settings) -> None:
    failed = {"outcome": "refused", "inserted": 0, "retracted": 0, "error": {"message": "<script>"}}
    home.reports.mkdir()
    (home.reports / "reconcile_collections.json").write_text(json.dumps({"collections": {"planes": failed}}))
    page = logged_in.get("/").text
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_run_that_failed_as_a_whole_is_shown(logged_in: TestClient, home: Settings) -> None:
    report = {"outcome": "failed", "collections": {}, "error": {"kind": "Unreachable", "message": "no answer"}}
    home.reports.mkdir()
    (home.reports / "reconcile_collections.json").write_text(json.dumps(report))
    assert '<tr class="failed"><td>reconcile_collections</td><td>the whole run</td>' in logged_in.get("/").text
    assert "no answer" in logged_in.get("/").text


def test_broken_settings_are_explained(logged_in: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_TIDEMARK_CATALOG")
    answer = logged_in.get("/status")
    assert answer.status_code == 500
    assert "tidemark_catalog" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_plugin_is_light_because_every_task_loads_it() -> None:
    program = """
import airflow.plugins_manager, sys
before = set(sys.modules)
sys.path.insert(0, "plugins")
import tidemark_plugin
print(*sorted(name for name in set(sys.modules) - before if "." not in name))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT_ROOT
    )
    assert ended.stdout.splitlines()[-1].split() == ["tidemark_plugin"]
