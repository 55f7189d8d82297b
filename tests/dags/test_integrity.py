from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from include.orchestration.airflow_settings import AirflowSettings
from include.orchestration.spark_application import SparkApplicationOperator
from include.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

DAG_FILES = sorted((PROJECT_ROOT / "dags").glob("*.py"))
DAG_IDS = [path.stem for path in DAG_FILES]
PARSE_SECONDS = 0.5


@pytest.fixture(scope="module")
def dag_bag() -> DagBag:
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(PROJECT_ROOT / "dags")


@pytest.fixture(params=DAG_IDS)
def dag(request: pytest.FixtureRequest, dag_bag: DagBag) -> DAG:
    return dag_bag.dags[request.param]


def test_every_file_imports_and_holds_the_dag_it_is_named_after(dag_bag: DagBag) -> None:
    assert dag_bag.import_errors == {}
    assert dag_bag.captured_warnings == {}
    assert sorted(dag_bag.dags) == DAG_IDS


def test_dag_is_described_and_bounded(dag: DAG) -> None:
    assert dag.doc_md
    assert "tidemark" in dag.tags
    assert dag.owner == "tidemark"
    assert dag.max_active_runs == 1
    assert not dag.catchup
    assert dag.dagrun_timeout
    assert dag.start_date is not None
    assert dag.start_date < datetime.now(tz=UTC)  # noqa: TID251 -- whether it is in the past is a matter of now


def test_every_task_is_bounded(dag: DAG) -> None:
    for task in dag.tasks:
        assert task.execution_timeout, f"{task.task_id} may hang for ever"


def test_spark_runs_in_the_declared_pool_and_may_be_retried(dag: DAG) -> None:
    spark_tasks = [task for task in dag.tasks if isinstance(task, SparkApplicationOperator)]
    assert spark_tasks
    for task in spark_tasks:
        assert task.pool in AirflowSettings.read().pools
        assert task.retries >= 1
        assert task.retry_policy is not None
        assert not task.durable, "clearing a durable task does no work"


def test_runs_have_data_intervals_to_backfill(dag: DAG) -> None:
    assert type(dag.timetable).__name__ == "CronDataIntervalTimetable"


def test_nothing_starts_before_the_stores_were_checked(dag_bag: DagBag) -> None:
    for dag_id, spark_task in (("reconcile_collections", "reconcile"), ("maintain_collections", "maintain")):
        dag = dag_bag.dags[dag_id]
        assert dag.get_task("prepare").downstream_task_ids == {spark_task}
        assert dag.get_task(spark_task).downstream_task_ids == {"list_results"}
        assert dag.get_task("list_results").downstream_task_ids == {"show_result"}


@pytest.mark.parametrize("path", DAG_FILES, ids=DAG_IDS)
def test_file_parses_fast_and_imports_nothing_heavy(path: object) -> None:
    program = f"""
import json, sys, time
import airflow.sdk
from airflow.providers.apache.spark.operators import spark_submit
start = time.perf_counter()
import runpy
runpy.run_path({str(path)!r})
heavy = [name for name in ("pyspark", "pandas", "pyiceberg", "pyarrow", "py4j") if name in sys.modules]
print(json.dumps([time.perf_counter() - start, heavy]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT_ROOT
    )
    seconds, heavy = json.loads(ended.stdout.splitlines()[-1])
    assert seconds < PARSE_SECONDS
    assert heavy == []


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_task_templates_need_no_logical_date(dag_id: str, dag_bag: DagBag) -> None:
    for task in dag_bag.dags[dag_id].tasks:
        templates = [getattr(task, "map_index_template", None) or ""]
        assert not any(word in template for template in templates for word in ("ds", "logical_date", "data_interval"))
