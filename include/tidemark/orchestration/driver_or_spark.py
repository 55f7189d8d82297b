"""For runs that do small work at once, without a JVM, and leave the rest for a task of its own, mostly with Spark.

A branch task does the small work and returns the result of ``hand_on``; the Spark application gets
``SPARK_ARGUMENTS``; ``list_both`` joins the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from airflow.sdk import TriggerRule, task

from tidemark.clock import SystemClock
from tidemark.entry_points import record
from tidemark.errors import TidemarkError
from tidemark.orchestration.results import results_of
from tidemark.orchestration.retry_policy import LIGHT_RETRIES, LIGHT_RETRY_DELAY, ApplicationLost, application_failure
from tidemark.orchestration.spark_application import keep_last_report
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report
from tidemark.settings import Settings

REPORT, LEFT, SPARK_ARGUMENTS = "report", "left", "spark_arguments"  # the XComs of the branch task


def check_left(done: Report, left: Sequence[str], check: Callable[[], None]) -> tuple[Report, list[str]]:
    """Return the report, and the collections that are left for an application, if ``check`` finds that it can run.

    If it cannot, these failed with the error of ``check``, and none are left: so the small work, which is done, is told
    all the same.
    """
    if not left:
        return done, []
    try:
        check()
    except TidemarkError as error:
        failed = CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(error))
        return replace(done, collections={**done.collections, **dict.fromkeys(left, failed)}), []
    return done, list(left)


def hand_on(
    settings: Settings,
    done: Report,
    spark_arguments: Sequence[str],
    *,
    left: Sequence[str],
    ti: Any,
    tasks: list[str],
    records: bool = True,
) -> list[str]:
    """Record and keep the report of the small work, push XComs, and choose the next tasks.

    The XComs are the report, the collections that are left for the application, and its arguments.

    ``spark_arguments`` are the application's arguments, without ``--report``. ``tasks`` are the task that lists the
    results, and the one that runs the application, if any are ``left``. Nothing is recorded, in the collections of the
    system, of work that only plans (not ``records``).

    Raises ``AirflowException`` if the small work failed; the retry policy decides whether the task is tried again.
    """
    report = done.to_json()
    if records:
        record(settings, done, clock=SystemClock())
    may_retry = ti.try_number <= ti.max_tries
    if failure := application_failure(done.exit_code, report, may_retry=may_retry, others_wait=bool(left)):
        raise failure
    if done.collections:
        keep_last_report(settings, ti.dag_id, report)
    push(done, left, ti=ti)
    ti.xcom_push(key=SPARK_ARGUMENTS, value=list(spark_arguments))
    return tasks if left else tasks[:1]


def finish(settings: Settings, done: Report, *, ti: Any, among: Collection[str] | None = None) -> dict[str, Any]:
    """Record and keep the report of a task that does all the work itself, and return the report.

    ``among`` is as in ``keep_last_report``. Raises ``AirflowException`` if the work failed, as ``hand_on``.
    """
    record(settings, done, clock=SystemClock())
    report = done.to_json()
    keep_last_report(settings, ti.dag_id, report, among=among)
    if failure := application_failure(done.exit_code, report, may_retry=ti.try_number <= ti.max_tries):
        raise failure
    return report


def push(done: Report, left: Sequence[str], *, ti: Any) -> None:
    """Push what ``list_both`` gets of a branch task: its report, and the names that another task works on."""
    ti.xcom_push(key=REPORT, value=done.to_json())
    ti.xcom_push(key=LEFT, value=list(left))


# ALL_DONE: however the other task ended, no later run tells what the branch task did. Without that report, this fails.
@task(trigger_rule=TriggerRule.ALL_DONE, retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def list_both(
    report: dict[str, Any], left: list[str], other_reports: Sequence[dict[str, Any] | None]
) -> list[dict[str, Any]]:
    """Split the reports by collection; where the other task failed, so did each collection that was ``left`` for it.

    ``other_reports`` has one for each task that may follow the branch task, None if that was skipped, or failed.
    """
    others = [given for given in other_reports if given]
    results = [result for given in (report, *others) for result in results_of(given)]
    if left and not others:
        error = ErrorReport(kind=ApplicationLost.__name__, message="the task that works on it failed: see its log")
        failed = CollectionReport(outcome=Outcome.FAILED, error=error).to_json()
        results += results_of({**report, "collections": dict.fromkeys(left, failed)})
    return sorted(results, key=lambda result: result["name"])
