"""DAGs downstream of closed partitions, of the example and of the page: what a run computes, and when again."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.dags.monthly_weather import CLOSED, COLLECTION, compute_month
from examples.downstream_shown import FOLDER, check_computed
from tests.support.airflow_runs import migrated_database
from tests.support.homes import Home
from tidemark.errors import StaleState
from tidemark.orchestration.results import closed_asset
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings
from tools.local_airflow.standalone import list_bundles

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from tidemark.settings import Settings

MARCH = 1_362_096_000_000
OBSERVATIONS = [
    {"origin": "EWR", "time_hour": "2012-12-31T23:59:59Z", "temp": 99.0},
    {"origin": "EWR", "time_hour": "2013-01-01T00:00:00Z", "temp": 30.0},
    {"origin": "EWR", "time_hour": "2013-01-31T23:59:59Z", "temp": 33.0},
    {"origin": "EWR", "time_hour": "2013-01-31T23:00:00Z"},
    {"origin": "JFK", "time_hour": "2013-01-15T12:00:00Z", "temp": 40.5},
    {"origin": "JFK", "time_hour": "2013-02-01T00:00:00Z", "temp": 50.0},
]
JANUARY = {"EWR": {"rows": 3, "mean_temp": 31.5}, "JFK": {"rows": 1, "mean_temp": 40.5}}
FEBRUARY = {"JFK": {"rows": 1, "mean_temp": 50.0}}


def send(weather: Home, *observations: dict[str, Any]) -> None:
    weather.send(0, *(json.dumps(each).encode() for each in observations))


@pytest.fixture
def weather(home: Settings, tmp_path: Path) -> Home:
    """A small collection in months, in March."""
    opened = Home(home, tmp_path, sequencers=1, now_ms=MARCH)
    opened.declare_reader(
        COLLECTION, schema="origin string, time_hour timestamp, temp double", event_time="time_hour", partition="month"
    )
    send(opened, *OBSERVATIONS)
    opened.ingest(COLLECTION)
    return opened


def test_a_month_is_its_own_rows_by_origin(weather: Home) -> None:
    readings = weather.shard(COLLECTION).load().table
    assert compute_month(readings, "2013-01") == JANUARY
    assert compute_month(readings, "2013-02") == FEBRUARY
    assert compute_month(readings, "2013-03") == {}


def test_the_demo_sees_when_a_month_or_a_number_is_wrong() -> None:
    check_computed({"2013-01": JANUARY, "2013-02": FEBRUARY}, ["2013-01", "2013-02"], OBSERVATIONS)
    with pytest.raises(StaleState, match="to compute 2013-01, 2013-02, and computed 2013-02"):
        check_computed({"2013-02": FEBRUARY}, ["2013-01", "2013-02"], OBSERVATIONS)
    for wrong in ({"rows": 2, "mean_temp": 50.0}, {"rows": 1, "mean_temp": 50.1}):
        with pytest.raises(StaleState, match="for 2013-02"):
            check_computed({"2013-02": {"JFK": wrong}}, ["2013-02"], OBSERVATIONS)
    with pytest.raises(StaleState, match="for 2013-02"):
        check_computed({"2013-02": {}}, ["2013-02"], OBSERVATIONS)


def test_the_file_holds_the_dag() -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(FOLDER)
    assert (bag.import_errors, bag.captured_warnings) == ({}, {})
    (dag,) = bag.dags.values()
    assert (dag.dag_id, dag.timetable.asset_condition, dag.max_active_runs) == ("monthly_weather", CLOSED, 1)
    assert dag.doc_md
    assert all(task.execution_timeout and task.retries for task in dag.tasks)


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders of DAGs, by bundle, for an Airflow in this process; ``page`` has what the page shows."""
    database = Path(os.environ["AIRFLOW_HOME"], "airflow.db")
    if not database.exists():
        shutil.copy(migrated_database(), database)
    text = (PROJECT_ROOT / "docs" / "write-buffer.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "hourly_weather" in each)
    page = tmp_path / "page"
    page.mkdir()
    (page / "hourly_weather.py").write_text(block, encoding="utf-8")
    folders = {"dags-folder": PROJECT_ROOT / "dags", "examples": FOLDER, "page": page}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(list_bundles(folders)))
    return folders


@pytest.mark.slow  # Airflow's own database, and runs of a DAG
def test_each_run_computes_what_was_closed_since_the_last_one(
    weather: Home, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(weather.settings.home)}.items():
        monkeypatch.setenv(name, value)
    folder = bundles["examples"]
    assert run(folder) == {}, "no month is closed"
    close(CLOSED, "2013-01", "2013-02")
    assert run(folder) == {"2013-01": JANUARY, "2013-02": FEBRUARY}
    assert run(folder) == {}, "both are computed already"
    send(weather, {"origin": "JFK", "time_hour": "2013-01-15T13:00:00Z", "temp": 41.5})
    weather.ingest(COLLECTION)
    close(CLOSED, "2013-01")
    assert run(folder) == {"2013-01": {**JANUARY, "JFK": {"rows": 2, "mean_temp": 41.0}}}


@pytest.mark.slow  # Airflow's own database, and runs of a DAG
def test_the_dag_of_the_page_does_the_same(bundles: dict[str, Path]) -> None:
    folder = bundles["page"]
    assert run(folder) == []
    close(closed_asset("weather"), "2013-01-03T05", "2013-01-03T06")
    assert run(folder) == ["2013-01-03T05", "2013-01-03T06"]
    close(closed_asset("weather"), "2013-01-03T05")
    assert run(folder) == ["2013-01-03T05"]


def close(asset: Asset, *partitions: str) -> None:
    """Emit events of the asset, as one task does."""
    from airflow.assets.manager import asset_manager
    from airflow.utils.session import create_session

    with create_session() as session:
        for partition in partitions:
            extra = {"partition": partition, "rows": 1, "late_rows": 0}
            assert asset_manager.register_asset_change(asset=asset, extra=extra, session=session)


def run(folder: Path) -> Any:
    """Run the DAG of a folder as `airflow dags test` does, and return what the run computed."""
    from airflow.dag_processing.dagbag import DagBag

    (dag,) = DagBag(folder).dags.values()
    (task,) = dag.test().get_task_instances()
    assert task.state == "success"
    return task.xcom_pull(task.task_id)
