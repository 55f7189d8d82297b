"""The tasks of ``append_batches``: append at once what needs no JVM, leave the rest for a Spark application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.entry_points import parse_time
from tidemark.errors import UsageError
from tidemark.interval import Interval, time_text
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.driver_or_spark import check_left, hand_on
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

log = logging.getLogger(__name__)

WITH_SPARK, LIST = "append_with_spark", "list_appended"
BACKFILL = "backfill"  # a type of run


@task.branch(retry_policy=RETRY_POLICY)
def append_small_batches(
    params: Mapping[str, Any] | None = None,
    data_interval_start: Any = None,
    data_interval_end: Any = None,
    dag_run: Any = None,
    ti: Any = None,
) -> list[str]:
    """Append the missing batches that are due and need no JVM; choose the Spark application for the rest.

    A run that names its interval, and a run of a backfill, appends what this interval lacks; any other run also what
    the declared intervals before it lack.
    """
    from tidemark.collections.append.due import due_intervals  # noqa: PLC0415 -- heavy
    from tidemark.collections.append.forward import check_before_spark  # noqa: PLC0415
    from tidemark.collections.append.interval import append_small, choose_appended  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    params = params or {}
    clock = SystemClock()
    with ending_task():
        interval = wanted_interval(params, data_interval_start, data_interval_end)
        settings = load_checked_settings()
        shards = Shards.connect(settings)
        deployment = deployment_of(with_source_connections(settings))
        chosen = choose_appended(deployment, params.get("collections") or [])
        if params.get("start") or getattr(dag_run, "run_type", "") == BACKFILL:
            due = dict.fromkeys((declaration.name for declaration in chosen), interval)
        else:
            due = due_intervals(shards, deployment, chosen, interval, names_all=ti.try_number > 1)
        chosen = [declaration for declaration in chosen if declaration.name in due]
        all_with_spark = params.get("engine") == "spark"
        done, left = append_small(shards, deployment, [] if all_with_spark else chosen, due, clock=clock)
        if all_with_spark:
            left = [declaration.name for declaration in chosen]

        def check() -> None:
            check_spark(settings)
            check_before_spark([declaration for declaration in chosen if declaration.name in left], deployment)

        done, left = check_left(done, left, check)
    log.info("interval %s; without a JVM: %s; left for Spark: %s", interval, sorted(done.collections), left)
    for name, due_interval in due.items():
        log.info("%s: due is %s", name, due_interval)
    arguments = append_arguments({name: due[name] for name in left})
    return hand_on(settings, done, arguments, left=left, ti=ti, tasks=[LIST, WITH_SPARK])


def wanted_interval(params: Mapping[str, Any], start: datetime | None, end: datetime | None) -> Interval:
    """Return the interval that a run appends: ``start`` and ``end`` in its params, in ISO form, else its data interval.

    Both intervals include their start, not their end.

    Raises ``UsageError`` if neither names an interval, or it is empty or reversed.
    """
    given = [params.get("start"), params.get("end")]
    if all(given):
        return Interval(*(parse_time(str(text)) for text in given))
    if any(given):
        raise UsageError("only one of `start` and `end` is given", hint="give both, or none for the data interval")
    if start is None or end is None or start >= end:
        raise UsageError(
            "this run has no data interval", hint="trigger it with `start` and `end`, or with a logical date"
        )
    return Interval(parse_time(start.isoformat()), parse_time(end.isoformat()))


def append_arguments(due: Mapping[str, Interval]) -> list[str]:
    """Return the arguments of ``append_batches.py``, without the report; ``due`` is the interval of each collection."""
    arguments = list(due)
    for name, interval in due.items():
        arguments += ["--interval-of", name, time_text(interval.start_ms), time_text(interval.end_ms)]
    return arguments
