"""One sink in its task: time that runs out, a drop meanwhile, Spark that is missing, and the report that is kept."""

from __future__ import annotations

import json
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.timeout import timeout

from tests.sinks.changes import change
from tests.support.dying import interrupted_at
from tests.support.homes import Home
from tidemark.collections.deployment import Mode
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.collections.system.status_table import ObjectStatus, read_status_table
from tidemark.orchestration.spark_application import keep_last_report
from tidemark.orchestration.tasks.sinks import SINKS, check_large_loads, list_sinks, run_sink
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def sinking(installation: Path, tmp_path: Path) -> Home:
    """Two sinks of three rows; the first writes into the folder `out`."""
    installation.mkdir()
    made = Home(Settings.load({"TIDEMARK_HOME": str(installation)}), tmp_path, now_ms=1_000_000)
    made.switch(Mode.READ_WRITE)
    made.declare_latest()
    change(made, put={0: "a", 1: "b", 2: None})
    for name, folder in (("copies", "out"), ("others", "other")):
        made.declare_sink(name, to={"path": str(tmp_path / folder)})
    return made


class Emitted(dict[Any, Any]):
    """What a task emits by asset alias; the rest of the context is Airflow's."""

    def __missing__(self, alias: Any) -> Any:
        events: list[Any] = []
        self[alias] = SimpleNamespace(events=events, add=lambda asset, extra: events.append((asset.name, extra)))
        return self[alias]


def run(name: str, **params: Any) -> tuple[dict[str, Any], list[Any]]:
    emitted = Emitted()
    task_instance = SimpleNamespace(dag_id="run_sinks", try_number=1, max_tries=2)
    result = run_sink.function(name=name, params=params, ti=task_instance, outlet_events=emitted)
    return result, emitted[SINKS].events


def drop_sink(home: Home, name: str) -> None:
    deployment = home.deployment
    drop(home.shards, deployment, plan_drop(home.shards, deployment, [name], clock=home.clock), clock=home.clock)


def shown(home: Home, name: str = "copies") -> ObjectStatus:
    (status,) = read_status_table(home.deployment, [name])
    return status


def reported(home: Home) -> dict[str, str]:
    kept = json.loads((home.settings.reports / "run_sinks.json").read_text())
    return {name: result["outcome"] for name, result in kept["collections"].items()}


def test_a_run_that_takes_longer_than_its_task_may_suspends_the_sink(sinking: Home) -> None:
    def stand_still() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # the rest of the time that the task has
        time.sleep(60)

    with (
        pytest.raises(AirflowFailException, match=r"OutOfTime: the time limit ended the run"),
        timeout(3_600),
        interrupted_at("sink.claimed", stand_still),
    ):
        run("copies")
    status = shown(sinking)
    assert status.status == "suspended"
    assert (status.reason or "").startswith("OutOfTime: ")
    assert reported(sinking) == {"copies": "failed"}
    with pytest.raises(AirflowSkipException, match="suspended since"):
        run("copies")
    result, _ = run("copies", sinks=["copies"])
    assert (result["outcome"], result["inserted"]) == ("carried", 3), "it goes on where it was"
    assert shown(sinking).status == "running"


def test_the_last_report_has_the_last_result_of_each_sink_that_is_there(sinking: Home) -> None:
    result, events = run("copies")
    assert (result["outcome"], [name for name, _ in events]) == ("carried", ["tidemark_sink_copies"])
    run("others")
    assert reported(sinking) == {"copies": "carried", "others": "carried"}
    assert run("copies")[1] == []
    assert reported(sinking) == {"copies": "unchanged", "others": "carried"}
    large = {"operation": "sink", "collections": {"others": {"outcome": "failed"}}}
    keep_last_report(sinking.settings, "run_sinks", large)  # of the application
    assert reported(sinking) == {"copies": "unchanged", "others": "failed"}
    drop_sink(sinking, "others")
    run("copies")
    assert reported(sinking) == {"copies": "unchanged"}


def test_a_sink_that_was_dropped_since_it_was_listed_is_skipped(sinking: Home) -> None:
    drop_sink(sinking, "copies")
    with pytest.raises(AirflowSkipException, match=r"copies: 'copies' was dropped 1970-.*, after it was chosen to run"):
        run("copies")
    assert run("others")[0]["outcome"] == "carried"
    with pytest.raises(AirflowFailException, match="UnknownSink"):
        run("never")


def test_a_run_with_another_param_runs_nothing(sinking: Home) -> None:
    pushed: dict[str, Any] = {}
    task_instance = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    with pytest.raises(AirflowFailException, match="run_sinks has no param 'collections'"):
        list_sinks.function(params={"sinks": None, "collections": ["copies"]}, ti=task_instance)
    assert list_sinks.function(params={"sinks": ["copies"]}, ti=task_instance) == ["copies"]
    assert list_sinks.function(params={"sinks": None}, ti=task_instance) == ["copies", "others"]
    assert pushed == {"large": []}


def test_that_spark_is_missing_is_a_failure_of_the_large_loads_alone(
    sinking: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(sinking.folder / "nowhere"))
    with pytest.raises(AirflowFailException, match="ConfigurationInvalid"):
        check_large_loads.function(names=["copies"])
    assert (shown(sinking).status, shown(sinking, "others").status) == ("stalled", None)
