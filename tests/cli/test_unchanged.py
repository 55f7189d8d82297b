"""`tidemark reconcile` where little has changed: what is equal still takes no JVM, and the rest one application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.homes import Home
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.reconcile import run as reconciling
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.exit_codes import ExitCode
from tidemark.spark import session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

NAMES = [f"tiny_{number}" for number in range(6)]


@pytest.fixture
def made(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    return Home(home, tmp_path)


def make_equal(home: Home, spark: SparkSession, *names: str) -> None:
    """Declare collections, and make them equal to their sources."""
    for name in names:
        home.write_rows(name, [(1, name)])
    home.apply(*map(home.declaration, names))
    report = reconcile_all(spark, home.deployment, [], clock=SystemClock())
    assert {each.inserted for each in report.collections.values()} == {1}


def reconcile_without_java(home: Home, *names: str) -> tuple[int, dict[str, Any]]:
    """Run the command in a process that can start no JVM; return its exit code, and the collections of its report."""
    environ = {**os.environ, "JAVA_HOME": str(home.folder / "no-java")}
    command = [sys.executable, "-m", "tidemark", "reconcile", *names, "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout).get("collections", {}) if done.stdout else {}


def test_what_has_not_changed_is_reconciled_without_a_jvm(made: Home, home_spark: SparkSession) -> None:
    make_equal(made, home_spark, "tiny")
    code, done = reconcile_without_java(made, "tiny")
    assert (code, done["tiny"]["outcome"], done["tiny"]["strategy"]) == (ExitCode.OK, "unchanged", SAME_SOURCE)
    made.write_rows("tiny", [(1, "other")])
    assert reconcile_without_java(made, "tiny")[0] != ExitCode.OK, "no JVM could have started"


def test_one_application_computes_what_has_changed_and_nothing_else(
    made: Home, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    computed: list[list[str]] = []
    spark_session = session.spark_session

    @contextmanager
    def starting(*arguments: Any, **more: Any) -> Iterator[SparkSession]:
        started.append("an application")
        with spark_session(*arguments, **more) as spark:
            yield spark

    def computing(spark: SparkSession, deployment: Any, names: list[str], **more: Any) -> Any:
        computed.append(list(names))
        return reconcile_all(spark, deployment, names, **more)

    monkeypatch.setattr(session, "spark_session", starting)
    monkeypatch.setattr(reconciling, "reconcile_all", computing)
    make_equal(made, home_spark, *NAMES)
    changed = ["tiny_1", "tiny_4"]
    for name in changed:
        made.write_rows(name, [(1, "other")])
    assert app(["reconcile", "--json"]) == ExitCode.OK
    done = json.loads(capsys.readouterr().out)["collections"]
    assert (started, computed) == (["an application"], [changed])
    assert {name for name, each in done.items() if each["strategy"] == SAME_SOURCE} == set(NAMES) - set(changed)
    assert {name: each["inserted"] for name, each in done.items() if each["inserted"]} == dict.fromkeys(changed, 1)
