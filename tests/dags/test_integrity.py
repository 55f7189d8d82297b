from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.sensors.running_tasks import WORKING
from tidemark.orchestration.sensors.waiting import WaitingSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.catalog_migration import LONGEST_WITHOUT_LEADER, TASKS_END_WITHIN
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

DAG_FILES = sorted((PROJECT_ROOT / "dags").glob("*.py"))
DAG_IDS = [path.stem for path in DAG_FILES]
LISTS = ("list_results", "list_appended", "list_ingested", "list_persisted", "list_events")
LIGHT = ("show_", "announce_", *LISTS)  # no policy
ON_DEMAND = {"migrate_catalog", "rollback_catalog", "switch_mode", "promote_deployment"}
ALWAYS = {"run_storage_workers"}  # the next run begins before the last one ends, so that nobody waits for the end
WITHOUT_SPARK = ON_DEMAND | ALWAYS
TIMETABLES = {
    **dict.fromkeys(("flush_staged_batches", "run_sinks"), "AssetOrTimeSchedule"),
    **dict.fromkeys(ON_DEMAND, "NullTimetable"),
    **dict.fromkeys(ALWAYS, "DeltaTriggerTimetable"),
}
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
    assert dag.max_active_runs <= 4
    assert not dag.catchup
    assert dag.dagrun_timeout
    if dag.dag_id in ON_DEMAND:
        return
    assert dag.start_date is not None
    assert dag.start_date < datetime.now(tz=UTC)  # noqa: TID251 -- whether it is in the past is a matter of now


def test_every_task_is_bounded_and_retried(dag: DAG) -> None:
    for task in dag.tasks:
        assert task.execution_timeout, f"{task.task_id} may hang for ever"
        assert task.retries >= 1, f"{task.task_id} is lost with its worker"
        if not task.task_id.startswith(LIGHT):
            assert task.retry_policy is not None


def test_spark_runs_in_the_declared_pool_and_may_be_retried(dag: DAG) -> None:
    spark_tasks = [task for task in dag.tasks if isinstance(task, SparkApplicationOperator)]
    assert spark_tasks or dag.dag_id in WITHOUT_SPARK
    for task in spark_tasks:
        assert task.pool in AirflowSettings.read().pools
        assert not task.durable, "clearing a durable task does no work"


def test_runs_have_data_intervals_to_backfill(dag: DAG) -> None:
    assert type(dag.timetable).__name__ == TIMETABLES.get(dag.dag_id, "CronDataIntervalTimetable")


def test_every_dag_of_collections_waits_first_for_a_leader_of_the_catalog(dag_bag: DagBag) -> None:
    assert set(WORKING) == set(DAG_IDS) - ON_DEMAND - ALWAYS
    for dag_id in (*WORKING, *ALWAYS, "switch_mode"):
        dag = dag_bag.dags[dag_id]
        assert dag.roots == [dag.get_task("wait_until_led")]
        assert isinstance(dag.get_task("wait_until_led"), LedSensor)


def test_a_migration_waits_for_tasks_that_exist_and_do_the_work(dag_bag: DagBag) -> None:
    for dag_id, task_ids in WORKING.items():
        dag = dag_bag.dags[dag_id]
        assert set(task_ids) <= set(dag.task_ids)
        spark_tasks = {task.task_id for task in dag.tasks if isinstance(task, SparkApplicationOperator)}
        assert spark_tasks <= set(task_ids)
        assert all(dag.get_task(task_id).execution_timeout <= TASKS_END_WITHIN for task_id in task_ids)


def test_catalog_is_without_a_leader_for_a_bounded_time_that_others_wait(dag_bag: DagBag) -> None:
    for dag_id in ("migrate_catalog", "rollback_catalog"):
        dag = dag_bag.dags[dag_id]
        after = dag.get_task("fence").get_flat_relative_ids(upstream=False) - {"check_after", "lead_again"}
        under_fences = [dag.get_task(task_id) for task_id in ("fence", *after)]
        tries = [
            (task.retries + 1) * task.execution_timeout for task in under_fences if not isinstance(task, WaitingSensor)
        ]
        waits = [timedelta(seconds=task.timeout) for task in under_fences if isinstance(task, WaitingSensor)]
        assert sum([*tries, *waits], timedelta(0)) <= LONGEST_WITHOUT_LEADER
        assert {task.pool for task in under_fences} == {"catalog"}, "never behind a run of collections"
        assert dag.get_task("check_back_ends").pool == "catalog", (
            "a pool that is missing stops the run before the fence"
        )
        assert dag.get_task("lead_again").trigger_rule == "one_failed"
        assert dag.get_task("lead_again").upstream_task_ids >= {task.task_id for task in under_fences} - {"flip"}
    assert LONGEST_WITHOUT_LEADER + timedelta(minutes=10) <= LONGEST_MOVE


def test_nothing_starts_before_the_stores_were_checked(dag_bag: DagBag) -> None:
    for dag_id, spark_task, others in (
        ("reconcile_collections", "reconcile", {"list_results", "list_events"}),
        ("maintain_collections", "maintain", set()),
    ):
        dag = dag_bag.dags[dag_id]
        assert dag.get_task("prepare").downstream_task_ids == {spark_task, *others}
        assert dag.get_task(spark_task).downstream_task_ids == {"list_results"}
        assert dag.get_task("list_results").downstream_task_ids == {"show_result", "announce_changes"}


def test_a_replay_has_a_task_and_the_time_of_its_own(dag_bag: DagBag) -> None:
    dag = dag_bag.dags["buffer_lifecycle"]
    assert dag.get_task("persist").downstream_task_ids == {"persist_with_spark", "replay", "list_persisted"}
    assert dag.get_task("replay").execution_timeout == dag.get_task("persist_with_spark").execution_timeout
    assert dag.get_task("replay").execution_timeout > dag.get_task("persist").execution_timeout
    assert dag.params["replay_skip_lost"] is False


def test_the_workers_of_two_runs_have_slots_so_that_the_next_run_takes_over(dag_bag: DagBag) -> None:
    dag = dag_bag.dags["run_storage_workers"]
    work = dag.get_task("work")
    assert dag.max_active_runs == 2
    assert AirflowSettings.read().pools[work.pool]["slots"] >= 2 * dag.params["workers"]
    assert dag.get_task("plan_workers").downstream_task_ids == {"watch", "work"}
    assert timedelta(minutes=dag.params["minutes"]) > dag.schedule, "or nobody would work before the next run begins"
    assert dag.get_task("watch").pool != work.pool


def test_nothing_is_flushed_before_the_mode_was_looked_at(dag_bag: DagBag) -> None:
    dag = dag_bag.dags["flush_staged_batches"]
    assert dag.get_task("wait_until_led").downstream_task_ids == {"wait_until_writable"}
    assert dag.get_task("wait_until_writable").downstream_task_ids == {"list_staged"}
    assert dag.get_task("list_staged").downstream_task_ids == {"flush", "flush_with_spark", "verify_flush"}
    assert dag.get_task("verify_flush").upstream_task_ids == {"flush", "flush_with_spark", "list_staged"}
    assert dag.get_task("verify_flush").downstream_task_ids == {"show_result", "announce_changes"}


def test_nothing_is_fenced_before_a_person_approved(dag_bag: DagBag) -> None:
    copied = {
        "migrate_catalog": ["copy", "verify", "flip", "see_tombstone"],
        "rollback_catalog": ["copy_and_flip", "see_tombstone", "verify"],
    }
    for dag_id, middle in copied.items():
        dag = dag_bag.dags[dag_id]
        line = ["check_back_ends", "plan", "is_to_be_done", "approve", "wait_for_tasks", "fence", "see_fences",
                "read_tombstone", *middle, "announce", "check_after"]  # fmt: skip
        assert sorted(dag.task_ids) == sorted([*line, "lead_again"])
        for before, after in pairwise(line):
            assert after in dag.get_task(before).downstream_task_ids
        assert dag.get_task("approve").ignore_downstream_trigger_rules, "a rejection skips all that follows"
        assert dag.get_task("approve").response_timeout
        assert not {"force", "require_approval", "approved"} & set(dag.params), "no run does without"
        assert {run_type.value for run_type in dag.allowed_run_types} == {"manual"}


def test_no_dag_knows_the_times_of_anybodys_data(dag: DAG) -> None:
    assert dag.end_date is None
    assert dag.start_date in {None, datetime(2026, 1, 1, tzinfo=UTC)}, "collections declare their `intervals`"


@pytest.fixture(scope="module")
def parsed_alone() -> dict[str, tuple[float, list[str]]]:
    """By DAG file: the processor's seconds to parse it, Airflow being there already, and what heavy things it loads."""
    program = """
import json, os, runpy, sys, time
import airflow.sdk
from airflow.providers.apache.spark.operators import spark_submit
for path in sys.argv[1:]:
    child = os.fork()  # so that no file finds what another one has imported
    if child:
        assert os.waitpid(child, 0)[1] == 0, path
        continue
    start = time.process_time()
    runpy.run_path(path)
    seconds = time.process_time() - start
    heavy = [name for name in ("pyspark", "pandas", "pyiceberg", "pyarrow", "py4j") if name in sys.modules]
    print(json.dumps([path, seconds, heavy]), flush=True)
    os._exit(0)
"""
    command = [sys.executable, "-c", program, *map(str, DAG_FILES)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT_ROOT)
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    return {path: (seconds, heavy) for path, seconds, heavy in answers}


@pytest.mark.slow  # a process that loads Airflow; without one, test_layers.py follows the same imports
@pytest.mark.parametrize("path", DAG_FILES, ids=DAG_IDS)
def test_file_parses_fast_and_imports_nothing_heavy(
    path: Path, parsed_alone: dict[str, tuple[float, list[str]]]
) -> None:
    seconds, heavy = parsed_alone[str(path)]
    assert seconds < PARSE_SECONDS
    assert heavy == []


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_task_templates_need_no_logical_date(dag_id: str, dag_bag: DagBag) -> None:
    for task in dag_bag.dags[dag_id].tasks:
        templates = [getattr(task, "map_index_template", None) or ""]
        assert not any(word in template for template in templates for word in ("ds", "logical_date", "data_interval"))
