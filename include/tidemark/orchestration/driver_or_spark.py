"""For runs that do small work at once, without a JVM, and leave the rest for a Spark application.

A branch task does the small work and returns the result of ``hand_on``; the Spark application gets
``SPARK_ARGUMENTS``; ``list_both`` joins both reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import TriggerRule, task

from tidemark.clock import SystemClock
from tidemark.entry_points import record
from tidemark.orchestration.results import results_of
from tidemark.orchestration.retry_policy import LIGHT_RETRIES, LIGHT_RETRY_DELAY, application_failure
from tidemark.orchestration.spark_application import keep_last_report
from tidemark.report import Report
from tidemark.settings import Settings

REPORT, SPARK_ARGUMENTS = "report", "spark_arguments"  # the XComs of the branch task


def hand_on(
    settings: Settings, done: Report, spark_arguments: Sequence[str], *, ti: Any, with_spark: bool, tasks: Sequence[str]
) -> list[str]:
    """Record and keep the report of the small work, push XComs, and choose the next tasks.

    The XComs are the report, and the arguments of the application.

    ``spark_arguments`` are the application's arguments, without ``--report``. ``with_spark`` says whether work is left
    for the application. ``tasks`` are the task that lists the results, and the one that runs the application.

    Raises ``AirflowException`` if the small work failed; the retry policy decides whether the task is tried again.
    """
    report = done.to_json()
    record(settings, done, clock=SystemClock())
    if failure := application_failure(done.exit_code, report, may_retry=ti.try_number <= ti.max_tries):
        raise failure
    if done.collections:
        keep_last_report(settings, ti.dag_id, report)
    ti.xcom_push(key=REPORT, value=report)
    ti.xcom_push(key=SPARK_ARGUMENTS, value=list(spark_arguments))
    return list(tasks if with_spark else tasks[:1])


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def list_both(report: dict[str, Any], spark_report: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Split both reports by collection."""
    reports = [given for given in (report, spark_report) if given]
    return sorted((result for given in reports for result in results_of(given)), key=lambda result: result["name"])
