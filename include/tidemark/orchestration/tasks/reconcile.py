"""The first task of ``reconcile_collections``: what is equal to its source still needs no Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.entry_points import recording_failure
from tidemark.interval import Interval, instant, milliseconds
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.driver_or_spark import check_left, hand_on
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

log = logging.getLogger(__name__)

LIST: Final = "list_results"
GUARDS: Final = ("allow_empty", "max_delete_ratio")  # the params that set a guard for one run
WITH_SPARK: Final = "reconcile"
IS_SMALL: Final = "is_small"  # the XCom that says whether the application reads little


@task.branch(retry_policy=RETRY_POLICY)
def prepare_reconcile(
    params: Mapping[str, Any] | None = None,
    data_interval_start: Any = None,
    data_interval_end: Any = None,
    ti: Any = None,
) -> list[str]:
    """Check stores and connections, leave out what has not changed, and choose Spark for the rest, if there is any.

    A run without a logical date has no interval.
    """
    params = params or {}
    names, dry_run = params.get("collections") or [], bool(params.get("dry_run"))
    interval = interval_of(data_interval_start, data_interval_end)
    with ending_task():
        settings = load_checked_settings(writes=not dry_run)
        from tidemark.collections.reconcile.choice import choose_declarations  # noqa: PLC0415 -- not needed to parse
        from tidemark.collections.reconcile.same_source import reconcile_unchanged  # noqa: PLC0415
        from tidemark.collections.reconcile.size import is_small  # noqa: PLC0415
        from tidemark.collections.sources.connections import check_connections  # noqa: PLC0415
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415

        clock = SystemClock()
        with nullcontext() if dry_run else recording_failure(settings, "reconcile", names, clock=clock):
            deployment = deployment_of(with_source_connections(settings))
            deployment.modes.read()  # raises if the stash does not answer, or this deployment is fenced
            chosen = choose_declarations(deployment.registry.read().declarations, names)
            check_connections(chosen.values(), deployment.settings)
        # What guards say is seen by a comparison alone.
        full = bool(params.get("full")) or any(params.get(guard) is not None for guard in GUARDS)
        done, left = reconcile_unchanged(deployment, chosen, interval=interval, dry_run=dry_run, full=full, clock=clock)
        done, left = check_left(done, left, partial(check_spark, settings))
        waiting = [chosen[name] for name in left]
        small = is_small(Shards.connect(settings), deployment.settings, waiting, interval=interval)
    ti.xcom_push(key=IS_SMALL, value=small)
    log.info("equal to their sources still: %s; left for Spark: %s", sorted(done.collections), left)
    arguments = reconcile_arguments(left, params, interval)
    return hand_on(settings, done, arguments, left=left, ti=ti, tasks=[LIST, WITH_SPARK], records=not dry_run)


def interval_of(start: datetime | None, end: datetime | None) -> Interval | None:
    """Return the data interval ``[start, end)`` of a run; None if it is empty, because it names no slice then."""
    if start is None or end is None or start >= end:
        return None
    bounds = (datetime.fromisoformat(bound.isoformat()) for bound in (start, end))  # pendulum's cannot be divided
    return Interval(*map(milliseconds, bounds))


def reconcile_arguments(names: Sequence[str], params: Mapping[str, Any], interval: Interval | None) -> list[str]:
    """Return the arguments of ``reconcile_collections.py``, without the report.

    ``params`` are ``dry_run``, ``full``, and ``allow_empty``, ``max_delete_ratio`` (None: as declared).
    """
    arguments = list(names)
    if interval is not None:
        arguments += ["--interval", *(instant(bound).isoformat() for bound in (interval.start_ms, interval.end_ms))]
    if params.get("dry_run"):
        arguments.append("--dry-run")
    if params.get("full"):
        arguments.append("--full")
    if params.get("allow_empty") is not None:
        arguments.append("--allow-empty" if params["allow_empty"] else "--no-allow-empty")
    if params.get("max_delete_ratio") is not None:
        arguments += ["--max-delete-ratio", str(params["max_delete_ratio"])]
    return arguments
