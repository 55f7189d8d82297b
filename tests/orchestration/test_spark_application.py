from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tests.conftest import settings_in
from tests.orchestration.test_retry_policy import report_of
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tidemark.catalog.opening.protocol import FENCE_STASH
from tidemark.errors import FencedByEpoch, StaleState, Unreachable
from tidemark.orchestration.sensors.leader import LONGEST_MOVE
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from tests.orchestration.conftest import FakeSparkSubmit


def run(try_number: int = 1, **arguments: Any) -> Any:
    operator = SparkApplicationOperator(task_id="reconcile", application="reconcile_collections.py", **arguments)
    task_instance = SimpleNamespace(try_number=try_number, max_tries=2, dag_id="reconcile_collections")
    return operator.execute({"ti": task_instance})  # type: ignore[typeddict-item]


def test_report_is_returned_and_kept_for_the_status_page(spark_submit: FakeSparkSubmit, installation: Path) -> None:
    report = report_of(planes=None)
    spark_submit.will(report=report)
    assert run(application_args=["planes"]) == report
    assert json.loads((installation / "reports" / "reconcile_collections.json").read_text()) == report


def test_report_that_cannot_be_kept_does_not_fail_a_run_that_did_its_work(
    spark_submit: FakeSparkSubmit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDEMARK_REPORTS", str(tmp_path / "file" / "reports"))
    report = report_of(planes=None)
    spark_submit.will(report=report)
    assert run(application_args=["planes"]) == report
    assert "the status page will not show this run" in caplog.text


def test_application_gets_its_arguments_and_master(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(report=report_of())
    run(application_args=["planes", "--dry-run"])
    arguments = spark_submit.arguments
    application = arguments.index(str(PROJECT_ROOT / "spark_apps" / "reconcile_collections.py"))
    assert arguments[application + 1 : application + 3] == ["planes", "--dry-run"]
    assert arguments[arguments.index("--master") + 1] == "local[2]"
    assert "--raise-token" not in arguments
    assert "--py-files" not in arguments, "a local driver has the project itself"
    assert any("log4j2" in argument for argument in arguments), "Spark's log must be quiet"


def test_report_path_is_never_used_twice(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(report=report_of())
    paths = set()
    for _ in range(2):
        run()
        paths.add(Path(spark_submit.arguments[spark_submit.arguments.index("--report") + 1]))
    assert len(paths) == 2
    assert not any(path.parent.exists() for path in paths)


def test_later_try_fences_the_earlier_one(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(report=report_of())
    run(try_number=2)
    assert spark_submit.arguments[-1] == "--raise-token"
    run(try_number=2, fence_on_retry=False)
    assert "--raise-token" not in spark_submit.arguments


def test_a_try_without_a_leader_waits_in_the_triggerer_and_begins_anew(
    spark_submit: FakeSparkSubmit, installation: Path
) -> None:
    spark_submit.will(report=report_of())
    installation.mkdir()
    home = Home(settings_in(installation))
    home.open(ROLLBACK)
    home.die_after(MIGRATE, FENCE_STASH)
    with pytest.raises(TaskDeferred) as deferred:
        run()
    assert deferred.value.trigger.serialize()[0] == "tidemark_triggers.LedTrigger"
    assert deferred.value.timeout == LONGEST_MOVE
    assert not spark_submit.called
    run(joins_leader=False)  # the copy of the migration itself
    assert spark_submit.called
    home.open()
    resumed = SparkApplicationOperator(task_id="reconcile", application="reconcile_collections.py")
    context: Any = {"ti": SimpleNamespace(try_number=1, max_tries=2, dag_id="reconcile_collections")}
    assert deferred.value.method_name == "execute_when_led"
    assert resumed.execute_when_led(context, event={}) == report_of()


def test_unknown_connection_is_refused_before_anything_starts(spark_submit: FakeSparkSubmit) -> None:
    with pytest.raises(AirflowFailException, match=r"'spark_elsewhere' does not exist.*airflow_settings"):
        run(conn_id="spark_elsewhere")
    assert not spark_submit.called


def test_driver_on_the_cluster_is_refused(spark_submit: FakeSparkSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(AirflowFailException, match="deploy-mode client"):
        run()
    assert not spark_submit.called


def test_missing_jars_are_named(spark_submit: FakeSparkSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "nowhere"))
    with pytest.raises(AirflowFailException, match=r"nowhere.*make setup"):
        run()


def test_connections_become_settings_and_secrets_stay_out_of_arguments(
    spark_submit: FakeSparkSubmit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = {
        "conn_type": "postgres",
        "host": "db",
        "port": 5433,
        "schema": "iceberg",
        "login": "me",
        "password": "s/3?",
    }
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_CATALOG", json.dumps(catalog))
    monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_STASH", json.dumps({**catalog, "schema": "stash"}))
    monkeypatch.setenv(
        "AIRFLOW_CONN_TIDEMARK_WAREHOUSE", json.dumps({"conn_type": "generic", "extra": {"path": "/lake"}})
    )
    spark_submit.will(report=report_of())
    run(joins_leader=False)  # no server is there to be asked
    assert spark_submit.environment["TIDEMARK_CATALOG_URI"] == "postgresql://me:s%2F3%3F@db:5433/iceberg"
    assert spark_submit.environment["TIDEMARK_STASH_URI"] == "postgresql://me:s%2F3%3F@db:5433/stash"
    assert spark_submit.environment["TIDEMARK_WAREHOUSE"] == "/lake"
    assert "s%2F3" not in " ".join(spark_submit.arguments)
    assert "s%2F3" not in capsys.readouterr().out


def test_environment_wins_over_connections(spark_submit: FakeSparkSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CATALOG_URI", "sqlite:////elsewhere/catalog.db")
    monkeypatch.delenv("AIRFLOW_CONN_TIDEMARK_CATALOG")
    spark_submit.will(report=report_of())
    run()
    assert spark_submit.environment["TIDEMARK_CATALOG_URI"] == "sqlite:////elsewhere/catalog.db"


def test_executors_elsewhere_get_the_library(spark_submit: FakeSparkSubmit, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark", "host": "spark://master", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    spark_submit.will(report=report_of())
    run()
    arguments = spark_submit.arguments
    assert arguments[arguments.index("--master") + 1] == "spark://master:7077"
    archive = Path(arguments[arguments.index("--py-files") + 1])
    assert archive.exists()
    assert archive.suffix == ".zip"


def test_application_finds_the_library_and_this_python(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(report=report_of())
    run()
    assert spark_submit.environment["PYTHONPATH"].split(os.pathsep)[0] == str(PROJECT_ROOT / "include")
    assert spark_submit.environment["PYSPARK_PYTHON"]


@pytest.mark.parametrize(
    ("error", "raised"), [(Unreachable("no route"), Unreachable), (FencedByEpoch("newer attempt"), FencedByEpoch)]
)
def test_failure_of_the_run_is_typed(spark_submit: FakeSparkSubmit, error: Any, raised: type[Exception]) -> None:
    spark_submit.will(exit_with=error.exit_code, report=report_of(error))
    with pytest.raises(raised):
        run()


def test_application_that_dies_without_a_report_is_tried_again(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(exit_with=137, report=None)
    with pytest.raises(StaleState, match="137") as lost:
        run()
    assert "raises the token first" in lost.value.hint
    with pytest.raises(StaleState, match="137") as lost:
        run(fence_on_retry=False)
    assert "raises the token" not in lost.value.hint


def test_application_without_report_is_no_success(spark_submit: FakeSparkSubmit) -> None:
    spark_submit.will(exit_with=0, report=None)
    with pytest.raises(AirflowFailException, match="without a report"):
        run()
