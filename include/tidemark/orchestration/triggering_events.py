"""The events that started a run, as collections know them, and the tasks that show them in the graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow.sdk import Asset, task

from tidemark.collections.reconcile.choosing.triggered import LONGEST_TOLD, SourceEvent
from tidemark.orchestration.retry_policy import LIGHT_RETRIES, LIGHT_RETRY_DELAY

log = logging.getLogger(__name__)

LIST: Final = "list_events"
MOST_SHOWN: Final = 50  # tasks of one run
_BY_ASSETS = "asset_triggered"


def is_started_by_events(dag_run: Any) -> bool:
    """Say whether assets started the run, not the clock, a person or a backfill."""
    run_type = getattr(dag_run, "run_type", None)
    return getattr(run_type, "value", run_type) == _BY_ASSETS


def read_events(triggering: Mapping[Any, Sequence[Any]] | None) -> list[SourceEvent]:
    """Return the events that Airflow hands to a run, oldest first, each once.

    Of several events of one asset that come together it may hand on only some: what is read is never decided by them.
    """
    found = [event for asset, events in (triggering or {}).items() if isinstance(asset, Asset) for event in events]
    ordered = sorted(found, key=lambda event: event.timestamp)
    return list(dict.fromkeys(SourceEvent(event.asset.name, _words_of(event)) for event in ordered))


def _words_of(event: Any) -> str:
    """Say what a watcher saw, or which task told it; an event of neither came through Airflow's interface."""
    payload = (event.extra or {}).get("payload")
    if isinstance(payload, dict) and payload.get("seen"):
        return str(payload["seen"])[:LONGEST_TOLD]
    return f"{event.source_dag_id}.{event.source_task_id}, run {event.source_run_id}" if event.source_dag_id else ""


@task(task_id=LIST, retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def list_events(triggering_asset_events: Any = None) -> list[str]:
    """Return the events that started the run, in words; left out of all other runs."""
    return [str(event) for event in read_events(triggering_asset_events)[:MOST_SHOWN]]


@task(map_index_template="{{ task.op_kwargs['event'] }}", retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def show_event(event: str) -> str:
    """Show one event that started the run."""
    log.info("this run was started by %s", event)
    return event
