"""Collections that the DAG chose for an application, and that are dropped when it begins; no Spark is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spark_apps import append_batches, buffer_lifecycle, ingest_write_buffer
from tests.support.homes import Home
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

APPLICATIONS: dict[str, tuple[Any, list[str]]] = {
    "append": (append_batches, ["--interval", "2013-01-01", "2013-01-02"]),
    "persist": (buffer_lifecycle, []),
    "ingest": (ingest_write_buffer, []),
}


@pytest.mark.parametrize("operation", list(APPLICATIONS))
def test_a_dropped_collection_is_skipped_and_one_that_never_was_is_an_error(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    application, more = APPLICATIONS[operation]
    place, path = Home(home, tmp_path), tmp_path / "report.json"
    place.switch(Mode.READ_WRITE)
    place.declare_reader()
    place.deployment.objects.drop(place.deployment.objects.look(["events"]))

    def run(*names: str) -> tuple[int, dict[str, Any]]:
        code = application.main([*names, *more, "--report", str(path)])
        return code, json.loads(path.read_text())

    code, report = run("events")
    assert (code, report["operation"]) == (ExitCode.OK, operation)
    assert report["collections"]["events"]["outcome"] == "skipped"
    assert "'events' was dropped " in report["collections"]["events"]["details"]["skipped_because"]
    code, report = run("events", "never")
    assert (code, report["error"]["kind"]) == (ExitCode.USAGE, "UnknownCollection")
