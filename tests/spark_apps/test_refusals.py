"""What an application refuses before it starts Spark: the right exit code, a report, in seconds, without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from include.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

APPLICATIONS = sorted(path.name for path in (PROJECT_ROOT / "spark_apps").glob("*.py"))
CLOSED_PORT = "postgresql://me:secret@127.0.0.1:9/catalog"


@pytest.fixture(params=APPLICATIONS)
def application(request: pytest.FixtureRequest) -> str:
    return str(PROJECT_ROOT / "spark_apps" / request.param)


def run(application: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, application, *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT), **environment},
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


def test_unreachable_store_is_69_within_5_seconds(application: str, tmp_path: Path) -> None:
    start = time.monotonic()
    ended = run(application, "--report", str(tmp_path / "report.json"), TIDEMARK_CATALOG_URI=CLOSED_PORT)
    assert ended.returncode == 69, ended.stderr
    assert time.monotonic() - start < 15, "5 s for the store, the rest for a busy machine's imports"
    assert reported_error(tmp_path / "report.json")["kind"] == "Unreachable"
    assert "secret" not in ended.stderr + (tmp_path / "report.json").read_text()


def test_invalid_setting_is_78(application: str, tmp_path: Path) -> None:
    ended = run(application, "--report", str(tmp_path / "report.json"), TIDEMARK_GENERATION="none")
    assert ended.returncode == 78
    assert "TIDEMARK_GENERATION" in reported_error(tmp_path / "report.json")["message"]


def test_unknown_collection_is_64_before_spark_starts(application: str, tmp_path: Path) -> None:
    ended = run(application, "plane", "--report", str(tmp_path / "report.json"), TIDEMARK_HOME=str(tmp_path))
    assert ended.returncode == 64
    assert reported_error(tmp_path / "report.json")["kind"] == "UnknownCollection"
    assert "WARNING: Using incubator modules" not in ended.stderr, "that is a JVM"


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
