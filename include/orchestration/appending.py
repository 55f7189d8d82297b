"""The tasks of ``append_batches``: what needs no JVM is appended at once, the rest is left for a Spark application."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, task

from include.catalog.deployment import deployment_of
from include.clock import SystemClock
from include.errors import TidemarkError
from include.orchestration.environment import existing_connection, load_settings
from include.orchestration.failures import RETRY_POLICY, application_failure, as_task_failure
from include.orchestration.preflight import SPARK_CONNECTION
from include.orchestration.results import results_of
from include.orchestration.run_arguments import append_arguments, wanted_interval
from include.orchestration.spark_application import keep_last_report
from include.spark_conf import list_jars

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

REPORT, SPARK_ARGUMENTS = "report", "spark_arguments"  # what `append` hands on, by key
WITH_SPARK, LIST = "append_with_spark", "list_appended"


@task.branch(retry_policy=RETRY_POLICY)
def append_small_batches(
    params: Mapping[str, Any] | None = None,
    data_interval_start: Any = None,
    data_interval_end: Any = None,
    ti: Any = None,
) -> list[str]:
    """Append what is missing of the interval and needs no JVM; choose the Spark application for the rest."""
    from include.collections.append_run import append_small, choose_appended  # noqa: PLC0415 -- heavy
    from include.persist.shards import Shards  # noqa: PLC0415

    params = params or {}
    clock = SystemClock()
    try:
        interval = wanted_interval(params, data_interval_start, data_interval_end)
        settings = load_settings()
        shards = Shards.connect(settings)
        deployment = deployment_of(settings)
        chosen = choose_appended(deployment, params.get("collections") or [])
        if params.get("engine") == "spark":
            done, left = append_small(shards, deployment, [], interval, clock=clock)[0], [each.name for each in chosen]
        else:
            done, left = append_small(shards, deployment, chosen, interval, clock=clock)
        if left:
            existing_connection(SPARK_CONNECTION)
            list_jars(settings)
    except TidemarkError as error:
        raise as_task_failure(error) from error
    report = done.to_json()
    log.info("interval %s; without a JVM: %s; left for Spark: %s", interval, sorted(done.collections), left)
    if failure := application_failure(done.exit_code, report, may_retry=ti.try_number <= ti.max_tries):
        raise failure
    if done.collections:
        keep_last_report(settings, ti.dag_id, report)
    ti.xcom_push(key=REPORT, value=report)
    ti.xcom_push(key=SPARK_ARGUMENTS, value=append_arguments(left, interval))
    return [LIST, WITH_SPARK] if left else [LIST]


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, retries=0)
def list_appended(report: dict[str, Any], spark_report: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Split both reports by collection."""
    reports = [each for each in (report, spark_report) if each]
    return sorted((result for each in reports for result in results_of(each)), key=lambda result: result["name"])
