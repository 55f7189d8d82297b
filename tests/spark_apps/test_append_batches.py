"""Which interval of each collection the application appends."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from spark_apps.append_batches import main
from tests.support.hourly import Events, hours
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append import interval as appends
from tidemark.report import Report
from tidemark.spark import session

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.interval import Interval
    from tidemark.settings import Settings

HOUR = ["2013-01-01T00:00:00", "2013-01-01T01:00:00"]
LATER = ["2013-01-01T01:00:00", "2013-01-01T02:00:00"]


@pytest.fixture
def appended(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Interval]:
    """What would be appended; two collections are declared, and no Spark is started."""
    for name in ("events", "more"):
        Events(home, tmp_path, name).declare()
    asked: dict[str, Interval] = {}

    def append_all(*arguments: Any, clock: Any) -> Report:
        asked.update(arguments[4])
        return Report(operation="append", started_at=0, finished_at=clock.now_ms(), generation=1)

    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.setattr(appends, "append_all", append_all)
    monkeypatch.setattr(session, "spark_session", lambda _settings, app_name: nullcontext(app_name))
    return asked


def run(report: Path, *arguments: str) -> int:
    return main([*arguments, "--report", str(report)])


def test_each_collection_may_have_an_interval_of_its_own(appended: dict[str, Interval], tmp_path: Path) -> None:
    assert run(tmp_path / "report.json", "--interval", *HOUR, "--interval-of", "more", *LATER) == 0
    assert appended == {"events": hours(0, 1), "more": hours(1, 2)}
    appended.clear()
    assert run(tmp_path / "report.json", "more", "--interval-of", "more", *LATER) == 0
    assert appended == {"more": hours(1, 2)}


@pytest.mark.parametrize("arguments", [[], ["--interval-of", "more", *LATER]], ids=["none", "of one"])
def test_interval_that_is_missing_is_64(appended: dict[str, Interval], tmp_path: Path, arguments: list[str]) -> None:
    assert run(tmp_path / "report.json", *arguments) == 64
    assert "which interval" in json.loads((tmp_path / "report.json").read_text())["error"]["message"]
    assert appended == {}


def test_what_was_dropped_since_it_was_chosen_is_skipped(
    appended: dict[str, Interval], home: Settings, tmp_path: Path
) -> None:
    objects = deployment_of(home).objects
    objects.drop(objects.look(["events"]))
    path = tmp_path / "report.json"
    assert run(path, "events", "more", "--interval-of", "events", *HOUR, "--interval-of", "more", *LATER) == 0
    assert appended["more"] == hours(1, 2)
    assert json.loads(path.read_text())["collections"]["events"]["outcome"] == "skipped"
