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
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.reconcile.choosing.triggered import (
    SourceEvent,
    event_assets,
    find_concerned,
    tell_events,
    write_events,
)
from tidemark.entry_points import recording_failure
from tidemark.interval import Interval, instant, milliseconds
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.driver_or_spark import check_left, hand_on
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.triggering_events import LIST as LIST_EVENTS
from tidemark.orchestration.triggering_events import is_started_by_events, read_events

log = logging.getLogger(__name__)

LIST: Final = "list_results"
GUARDS: Final = ("allow_empty", "max_delete_ratio")  # the params that set a guard for one run
WITH_SPARK: Final = "reconcile"
IS_SMALL: Final = "is_small"  # the XCom that says whether the application reads little
MOST_PASSED: Final = 100  # of events, to the application: the system limits how long an argument is


@task.branch(retry_policy=RETRY_POLICY)
def prepare_reconcile(
    params: Mapping[str, Any] | None = None,
    *,
    data_interval_start: Any = None,
    data_interval_end: Any = None,
    ti: Any = None,
    dag_run: Any = None,
    triggering_asset_events: Any = None,
) -> list[str]:
    """Check stores and connections, leave out what has not changed, and choose Spark for the rest, if there is any.

    A run without a logical date has no interval. One that events have started is about the collections whose sources
    these say have changed, and those above.
    """
    params = params or {}
    names, dry_run = params.get("collections") or [], bool(params.get("dry_run"))
    interval = interval_of(data_interval_start, data_interval_end)
    with ending_task():
        settings = load_checked_settings(writes=not dry_run)
        from tidemark.collections.reconcile.choosing.choice import choose_declarations  # noqa: PLC0415 -- not needed to parse
        from tidemark.collections.reconcile.choosing.same_source import reconcile_unchanged  # noqa: PLC0415
        from tidemark.collections.reconcile.choosing.size import is_small  # noqa: PLC0415
        from tidemark.collections.sources.connections import check_connections  # noqa: PLC0415
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415

        clock = SystemClock()
        with nullcontext() if dry_run else recording_failure(settings, "reconcile", names, clock=clock):
            deployment = deployment_of(with_source_connections(settings))
            deployment.modes.read()  # raises if the stash does not answer, or this deployment is fenced
            declared = deployment.registry.read().declarations
            events, concerned = (
                choose_by_events(declared, triggering_asset_events) if is_started_by_events(dag_run) else ([], None)
            )
            chosen = (
                choose_declarations(declared, names)
                if concerned is None
                else {name: declared[name] for name in concerned}
            )
            check_connections(chosen.values(), deployment.settings)
        # What guards say is seen by a comparison alone.
        full = bool(params.get("full")) or any(params.get(guard) is not None for guard in GUARDS)
        done, left = reconcile_unchanged(deployment, chosen, interval=interval, dry_run=dry_run, full=full, clock=clock)
        done, left = check_left(done, left, partial(check_spark, settings))
        done = tell_events(done, concerned or {})
        waiting = [chosen[name] for name in left]
        small = bool(left) and is_small(Shards.connect(settings), deployment.settings, waiting, interval=interval)
    ti.xcom_push(key=IS_SMALL, value=small)
    log.info("equal to their sources still: %s; left for Spark: %s", sorted(done.collections), left)
    arguments = reconcile_arguments(left, params, interval, events=events)
    following = hand_on(settings, done, arguments, left=left, ti=ti, tasks=[LIST, WITH_SPARK], records=not dry_run)
    return [*following, *([LIST_EVENTS] if events else [])]


def choose_by_events(
    declared: Mapping[str, Declaration], triggering: Any
) -> tuple[list[SourceEvent], dict[str, tuple[SourceEvent, ...]]]:
    """Return the events that started a run, and the collections that they are about, inputs first, with their events.

    A run without an event that Airflow still knows is about all collections that any event could be about. What is
    cut by the data interval of a run is left to the clock.
    """
    events = read_events(triggering)
    if not events:
        log.warning("Airflow does not say which events started this run: it is about all that events may be about")
        known = {asset for declaration in declared.values() for asset in event_assets(declaration)}
        events = [SourceEvent(asset, "or another one, Airflow does not say which") for asset in sorted(known)]
    concerned = find_concerned(declared, events)
    for event in events:
        about = [name for name, found in concerned.items() if event in found]
        log.info("started by %s, which is about: %s", event, ", ".join(about) or "nothing: no source names it any more")
    if cut := [name for name in concerned if declared[name].needs_interval]:
        log.info("left to the clock, since a run by events has no data interval: %s", ", ".join(cut))
    return events, {name: found for name, found in concerned.items() if name not in cut}


def interval_of(start: datetime | None, end: datetime | None) -> Interval | None:
    """Return the data interval ``[start, end)`` of a run; None if it is empty, because it names no slice then."""
    if start is None or end is None or start >= end:
        return None
    bounds = (datetime.fromisoformat(bound.isoformat()) for bound in (start, end))  # pendulum's cannot be divided
    return Interval(*map(milliseconds, bounds))


def reconcile_arguments(
    names: Sequence[str], params: Mapping[str, Any], interval: Interval | None, *, events: Sequence[SourceEvent] = ()
) -> list[str]:
    """Return the arguments of ``reconcile_collections.py``, without the report.

    ``params`` are ``dry_run``, ``full``, and ``allow_empty``, ``max_delete_ratio`` (None: as declared). ``events`` are
    those that started the run.
    """
    arguments = list(names)
    if events:
        arguments += ["--triggered-by", write_events(events[:MOST_PASSED])]
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
