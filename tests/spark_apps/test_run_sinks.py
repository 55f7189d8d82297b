"""Sinks that the DAG chose for the application, and that are dropped, or damaged, when it begins, without a JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spark_apps.run_sinks import main
from tests.support.homes import Home
from tidemark.catalog.items.kinds import SINK, NamedKey, SinkValue
from tidemark.collections.deployment import Mode
from tidemark.collections.system.status_table import read_status_table
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def place(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    made = Home(home, tmp_path, now_ms=1_000_000)
    made.switch(Mode.READ_WRITE)
    made.declare_latest()
    for name in ("copies", "others"):
        made.declare_sink(name, to={"path": str(tmp_path / name)})
    return made


def run(place: Home, *names: str) -> tuple[int, dict[str, Any]]:
    path = place.folder / "report.json"
    code = main([*names, "--report", str(path)])
    report: dict[str, Any] = json.loads(path.read_text())
    return code, report


def test_a_dropped_sink_is_skipped_and_one_that_never_was_is_an_error(place: Home) -> None:
    place.deployment.objects.drop(place.deployment.objects.look(["copies"]))
    code, report = run(place, "copies", "others")
    assert code == ExitCode.OK
    outcomes = {name: result["outcome"] for name, result in report["collections"].items()}
    assert outcomes == {"copies": "skipped", "others": "unchanged"}
    assert report["collections"]["copies"]["details"]["skipped_because"].startswith("'copies' was dropped ")
    code, report = run(place, "copies")
    assert (code, list(report["collections"])) == (ExitCode.OK, ["copies"]), "none is not all"
    code, report = run(place, "copies", "never")
    assert (code, report["error"]["kind"]) == (ExitCode.USAGE, "UnknownSink")


def test_a_run_that_ends_before_its_first_sink_is_a_failure_of_those_that_it_is_for(place: Home) -> None:
    with place.catalog.join() as handle:
        damaged = SinkValue(id=9, collection="events", definition={})
        handle.transact(lambda transaction: transaction.put(SINK, NamedKey(name="damaged"), damaged))
    code, report = run(place, "copies")
    assert (code, report["error"]["kind"]) == (ExitCode.NOT_POSSIBLE, "CorruptState")
    with place.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.put(SINK, NamedKey(name="damaged"), None))
    statuses = {each.name: each.status for each in read_status_table(place.deployment, ["copies", "others"])}
    assert statuses == {"copies": "stalled", "others": None}
