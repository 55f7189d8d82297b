"""The state as one JSON document, under the address that it has had from the beginning; and the plugin itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.damage import damage_metadata
from tests.support.homes import Home
from tests.support.rows import SCHEMA
from tests.support.storage_board import show
from tidemark.iceberg.shards import Shards
from tidemark.settings import PROJECT_ROOT, Settings
from tidemark.storage.dataflows.dataflow import News

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture
def home(bare_home: Settings) -> Settings:
    return bare_home


@pytest.fixture
def planes(home: Settings) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StringType

    schema = Schema(NestedField(1, "tailnum", StringType(), required=False))
    Shards.connect(home).create("planes", schema=schema, key=("tailnum",))


@pytest.mark.usefixtures("planes")
def test_collections_are_listed_with_their_frontiers(logged_in: TestClient) -> None:
    status = logged_in.get("/status").json()
    assert [(collection["name"], collection["upper"], collection["rows"]) for collection in status["collections"]] == [
        ("planes", 0, 0)
    ]


@pytest.mark.usefixtures("planes")
def test_damaged_collection_is_shown_beside_the_others(logged_in: TestClient, home: Settings) -> None:
    damage_metadata(Shards.connect(home).create("ailing", schema=SCHEMA), "cut")
    ailing, planes = logged_in.get("/status").json()["collections"]
    assert (ailing["name"], ailing["error"]["kind"]) == ("ailing", "CorruptState")
    assert (planes["name"], planes["error"]) == ("planes", None)


def test_empty_installation_is_no_error(logged_in: TestClient) -> None:
    nobody = {"workers": [], "objects": []}
    assert logged_in.get("/status").json() == {"collections": [], "resting": {}, "reports": {}, "storage": nobody}
    assert logged_in.get("/api/v1/overview").json()["objects"] == []


def test_what_rests_is_shown_with_its_reason(logged_in: TestClient, home: Settings) -> None:
    opened = Home(home)
    opened.apply(opened.declaration("planes"))
    opened.deployment.objects.pause(["planes"], why="a check")
    assert logged_in.get("/status").json()["resting"]["planes"].endswith("a check")


def test_storage_workers_are_shown_with_how_far_they_are(logged_in: TestClient, home: Settings) -> None:
    Home(home).shards.names()
    news = News(upper=3, rounds=7, rows=8, held=5, waiting=9, lag_ms=90_000, behind_ms=0, error="silence", error_ms=1)
    show(home, 0, "events", dataflows={"1": {"name": "events", "started_at": 0, **news.to_json()}})
    show(home, 1, ended="its time was over")
    shown = logged_in.get("/status").json()["storage"]
    assert [worker["state"] for worker in shown["workers"]] == ["running", "ended: its time was over"]
    assert [(each["name"], each["lag_ms"]) for each in shown["objects"]] == [("events", 90_000)]
    (need,) = logged_in.get("/api/v1/overview").json()["needs"]
    assert (need["what"], need["name"], need["why"]) == ("buffer", "events", "silence")
    assert "`tidemark storage restart events`" in need["hint"]


def test_last_report_is_shown(logged_in: TestClient, home: Settings) -> None:
    report = {"collections": {"planes": {"outcome": "refused", "error": {"message": "too many"}}}}
    home.reports.mkdir()
    (home.reports / "reconcile_collections.json").write_text(json.dumps(report))
    assert logged_in.get("/status").json()["reports"] == {"reconcile_collections": report}


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
