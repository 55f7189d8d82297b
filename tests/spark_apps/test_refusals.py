"""What an application refuses before it starts Spark: the right exit code, a report, in seconds, without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.silent_server import PATIENCE_S, silent_server
from tidemark.settings import PROJECT_ROOT

pytestmark = pytest.mark.slow  # a process each
APPLICATIONS = sorted(path.name for path in (PROJECT_ROOT / "spark_apps").glob("*.py"))
OF_COLLECTIONS = [name for name in APPLICATIONS if name != "copy_catalog.py"]
NEEDED = {"copy_catalog.py": ["migrate", "--fences", "{}"]}
CATALOG = "postgresql://me:secret@127.0.0.1:{port}/catalog"
CLOSED_PORT = 9


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest) -> str:
    return str(PROJECT_ROOT / "spark_apps" / request.param)


def run(application: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    needed = NEEDED.get(Path(application).name, [])
    return subprocess.run(
        [sys.executable, application, *needed, *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "include"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def reported_error(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["outcome"] == "failed"
    error: dict[str, Any] = report["error"]
    return error


def test_usage_error_is_64(application: str) -> None:
    ended = run(application, "--no-such-option")
    assert ended.returncode == 64
    assert "Traceback" not in ended.stderr


def test_unreachable_store_is_69_within_5_seconds(tmp_path: Path) -> None:
    def start(name: str, store: str, port: int) -> None:
        report = tmp_path / f"{name}-{store}-{port}.json"
        uri = {store: CATALOG.format(port=port)}
        ended = run(str(PROJECT_ROOT / "spark_apps" / name), "--report", str(report), **uri)
        assert ended.returncode == 69, ended.stderr
        assert reported_error(report)["kind"] == "Unreachable"
        assert "secret" not in ended.stderr + report.read_text()

    with silent_server() as server, ThreadPoolExecutor() as threads:
        asked = [(name, "TIDEMARK_CATALOG_URI") for name in APPLICATIONS]
        asked += [(name, "TIDEMARK_STASH_URI") for name in OF_COLLECTIONS]
        started = [threads.submit(start, *each, port) for port in (server.port, CLOSED_PORT) for each in asked]
        for each in started:
            each.result()
        waits_s = server.waits_s(len(asked))
        assert len(waits_s) == len(asked), "each asks once"
        assert max(waits_s) < PATIENCE_S


def test_warehouse_that_cannot_be_written_is_69(application: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = tmp_path / "report.json"
    home, warehouse = str(tmp_path / "home"), str(tmp_path / "file" / "warehouse")
    ended = run(application, "--report", str(report), TIDEMARK_HOME=home, TIDEMARK_WAREHOUSE=warehouse)
    assert ended.returncode == 69, ended.stderr
    assert "the warehouse" in reported_error(report)["message"]


def test_invalid_setting_is_78(application: str, tmp_path: Path) -> None:
    ended = run(application, "--report", str(tmp_path / "report.json"), TIDEMARK_GENERATION="none")
    assert ended.returncode == 78
    assert "TIDEMARK_GENERATION" in reported_error(tmp_path / "report.json")["message"]


@pytest.mark.parametrize("application", OF_COLLECTIONS, indirect=True)
def test_unknown_collection_is_64_before_spark_starts(application: str, tmp_path: Path) -> None:
    ended = run(application, "plane", "--report", str(tmp_path / "report.json"), TIDEMARK_HOME=str(tmp_path))
    assert ended.returncode == 64
    expected = "UnknownSink" if application.endswith("run_sinks.py") else "UnknownCollection"
    assert reported_error(tmp_path / "report.json")["kind"] == expected
    assert "WARNING: Using incubator modules" not in ended.stderr, "that is a JVM"


def test_fences_that_are_none_are_64(tmp_path: Path) -> None:
    application = str(PROJECT_ROOT / "spark_apps" / "copy_catalog.py")
    ended = run(application, "--report", str(tmp_path / "report.json"), TIDEMARK_HOME=str(tmp_path))
    assert ended.returncode == 64
    assert reported_error(tmp_path / "report.json")["kind"] == "UsageError"


def test_interval_that_is_none_is_64(tmp_path: Path) -> None:
    application = str(PROJECT_ROOT / "spark_apps" / "reconcile_collections.py")
    ended = run(application, "--interval", "2013-01-02", "2013-01-01", "--report", str(tmp_path / "report.json"))
    assert ended.returncode == 64
    assert reported_error(tmp_path / "report.json")["kind"] == "UsageError"


def test_bug_is_70_with_its_traceback(application: str, tmp_path: Path) -> None:
    unwritable = tmp_path / "file"
    unwritable.touch()
    ended = run(application, "--report", str(unwritable / "report.json"), TIDEMARK_GENERATION="none")
    assert ended.returncode == 70
    assert "Traceback" in ended.stderr
