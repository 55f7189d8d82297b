"""The first task of a reconcile: arguments, and what is left for Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pendulum
import pytest

from tests.orchestration.test_triggering_events import event, handed
from tests.support.declared import EVENTS, HEAD, PLANES
from tests.support.homes import Home
from tidemark.orchestration.tasks.reconcile import interval_of, prepare_reconcile, reconcile_arguments
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)


def test_scheduled_run_names_what_is_left_and_its_interval() -> None:
    arguments = reconcile_arguments(["planes"], {"collections": None, "dry_run": False}, interval_of(START, END))
    assert arguments == ["planes", "--interval", "2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"]


def test_an_interval_of_airflow_is_one_of_pendulum() -> None:
    assert interval_of(pendulum.instance(START), pendulum.instance(END)) == interval_of(START, END)


def test_run_without_a_logical_date_has_no_interval() -> None:
    assert interval_of(None, None) is None
    assert interval_of(START, START) is None, "an empty interval names no slice"


def test_params_become_options() -> None:
    params = {"collections": ["a"], "dry_run": True, "full": True, "allow_empty": False, "max_delete_ratio": 0.9}
    assert reconcile_arguments(["planes"], params, None) == [
        "planes", "--dry-run", "--full", "--no-allow-empty", "--max-delete-ratio", "0.9",
    ]  # fmt: skip


TOTALS = """  totals:
    kind: differential
    schema: "seats bigint"
    source: {inputs: {p: {collection: planes}}, sql: "SELECT sum(seats) AS seats FROM p"}
"""


class TaskInstance(SimpleNamespace):
    """What a task gets as `ti`; keeps what is pushed."""

    def __init__(self) -> None:
        super().__init__(dag_id="reconcile_collections", try_number=1, max_tries=2, pushed={})

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture
def home(installation: Path, tmp_path: Path) -> Home:
    installation.mkdir()
    home = Home(Settings.load({"TIDEMARK_HOME": str(installation)}), tmp_path)
    home.declare(HEAD + EVENTS + PLANES.replace("options", "asset: fleet, options") + TOTALS)
    return home


def prepare(*assets: str) -> tuple[list[str], dict[str, Any]]:
    """Prepare a run that events of these assets have started; return the tasks that follow, and what is handed on."""
    task_instance = TaskInstance()
    events = handed(*(event(asset) for asset in assets))
    following = prepare_reconcile.function(
        params={}, ti=task_instance, dag_run=SimpleNamespace(run_type="asset_triggered"), triggering_asset_events=events
    )
    return following, task_instance.pushed


@pytest.mark.slow  # stores that are really written
def test_a_run_by_events_leaves_only_what_these_are_about_for_spark(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(home.registry.read().declarations) == {"events", "planes", "totals"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    following, pushed = prepare("fleet")
    assert following == ["list_results", "reconcile", "list_events"]
    assert pushed["left"] == ["planes", "totals"]
    assert pushed["spark_arguments"] == ["planes", "totals", "--triggered-by", '[{"asset": "fleet", "seen": ""}]']
    assert pushed["report"]["collections"] == {}


@pytest.mark.slow  # stores that are really written
def test_a_run_by_an_event_that_no_source_names_ends_well_with_nothing_done(home: Home) -> None:
    assert home.registry.read().declarations
    following, pushed = prepare("somebody_elses")
    assert following == ["list_results", "list_events"]
    assert (pushed["left"], pushed["report"]["collections"], pushed["report"]["outcome"]) == ([], {}, "ok")


@pytest.mark.slow  # stores that are really written
def test_a_paused_collection_is_skipped_by_a_run_by_events_with_the_event_in_its_report(home: Home) -> None:
    home.deployment.objects.pause(["planes"], why="a repair")
    _, pushed = prepare("fleet")
    done = pushed["report"]["collections"]
    assert {name: result["outcome"] for name, result in done.items()} == {"planes": "skipped", "totals": "skipped"}
    assert done["totals"]["details"]["triggered_by"] == ["fleet"]
