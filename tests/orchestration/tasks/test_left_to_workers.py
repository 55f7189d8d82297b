"""What live storage workers run, the scheduled tasks, the applications and the command line leave to them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spark_apps.ingest_write_buffer import main as ingest_with_spark
from spark_apps.run_sinks import main as run_sinks_with_spark
from tests.support.homes import Home
from tests.support.storage_board import show
from tidemark.cli.app import app
from tidemark.collections.deployment import Mode
from tidemark.orchestration.driver_or_spark import REPORT
from tidemark.orchestration.tasks.ingest import LIST, ingest_small
from tidemark.orchestration.tasks.sinks import list_sinks
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def served(installation: Path, tmp_path: Path) -> Home:
    """Two ingestions with two rows that wait for each, and two sinks; a live worker runs `events` and `copies`."""
    installation.mkdir()
    made = Home(Settings.load({"TIDEMARK_HOME": str(installation)}), tmp_path, now_ms=1_000_000)
    made.switch(Mode.READ_WRITE)
    for name in ("events", "others"):
        made.declare_reader(name)
    for name in ("copies", "reports"):
        made.declare_sink(name, to={"path": str(tmp_path / name)}, mode="changes")
    made.send_rows(0, 2)
    show(made.settings, 0, "events", "copies")
    return made


def run_task(task: Any, **params: Any) -> tuple[Any, dict[str, Any]]:
    """Run a task as Airflow does; return its result, and the XComs that it pushed."""
    pushed: dict[str, Any] = {}
    task_instance = SimpleNamespace(
        dag_id="a_dag", try_number=1, max_tries=2, xcom_push=lambda key, value: pushed.update({key: value})
    )
    return task.function(params=params, ti=task_instance), pushed


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {name: result["outcome"] for name, result in sorted(report["collections"].items())}


def test_the_task_of_ingests_skips_what_workers_ingest(served: Home) -> None:
    chosen, pushed = run_task(ingest_small)
    assert (chosen, outcomes(pushed[REPORT])) == ([LIST], {"events": "skipped", "others": "appended"})
    assert "a storage worker runs it" in pushed[REPORT]["collections"]["events"]["details"]["skipped_because"]
    assert (served.ids("events"), served.ids("others")) == ([], [0, 1])
    kept = json.loads((served.settings.reports / "a_dag.json").read_text())
    assert outcomes(kept) == {"events": "skipped", "others": "appended"}, "the status page says so"
    _, pushed = run_task(ingest_small, collections=["events"])
    assert (outcomes(pushed[REPORT]), served.ids("events")) == ({"events": "appended"}, [0, 1])


def test_the_task_of_ingests_stages_all_while_the_workers_wait_for_the_mode(served: Home) -> None:
    served.switch(Mode.READ_ONLY)
    _, pushed = run_task(ingest_small)
    assert outcomes(pushed[REPORT]) == {"events": "staged", "others": "staged"}


def test_the_task_of_sinks_lists_what_no_worker_runs(served: Home) -> None:
    assert run_task(list_sinks)[0] == ["reports"]
    assert run_task(list_sinks, sinks=["copies"])[0] == ["copies"]
    show(served.settings, 0)
    assert run_task(list_sinks)[0] == ["copies", "reports"]


def test_the_command_line_leaves_it_to_workers_unless_it_is_named(
    served: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> dict[str, str]:
        capsys.readouterr()
        assert app([*arguments, "--json"]) == 0
        return outcomes(json.loads(capsys.readouterr().out))

    assert run("buffer", "ingest") == {"events": "skipped", "others": "appended"}
    assert run("buffer", "ingest", "events") == {"events": "appended"}
    assert run("sink", "run") == {"copies": "skipped", "reports": "carried"}
    assert run("sink", "run", "copies") == {"copies": "carried"}
    assert served.ids("events") == [0, 1]


def test_applications_without_names_leave_it_to_workers(served: Home) -> None:
    def run(main: Any, *names: str) -> dict[str, str]:
        path = served.folder / "report.json"
        assert main([*names, "--report", str(path)]) == 0
        return outcomes(json.loads(path.read_text()))

    assert run(ingest_with_spark) == {"events": "skipped", "others": "appended"}
    assert run(ingest_with_spark, "events") == {"events": "appended"}
    assert run(run_sinks_with_spark) == {"copies": "skipped", "reports": "carried"}
    assert run(run_sinks_with_spark, "copies") == {"copies": "carried"}
