"""The measures of runs, where operators look already: in Airflow's StatsD, or OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.observability import stats

from tidemark.collections.system.rules import lag_of
from tidemark.errors import CorruptState
from tidemark.iceberg.shard.state_reader import ShardSummary


def send_result(result: Mapping[str, Any]) -> None:
    """Send the gauges ``tidemark.run.*`` of one object in one run, and count the run by outcome and error.

    The tags are the object and the operation. ``attempts`` says how often the run began, because somebody else
    changed the collection or the source meanwhile; ``conflicts`` counts all but the first of these.
    """
    tags = {"object": str(result["name"]), "operation": str(result["operation"])}
    measures = measures_of(result)
    for gauge, value in measures.items():
        stats.gauge(f"tidemark.run.{gauge}", value, tags=tags)
    stats.incr("tidemark.run.conflicts", int(measures["attempts"]) - 1, tags=tags)
    error = {"error": str(result["error"]["kind"])} if result.get("error") else {}
    stats.incr("tidemark.run.ended", tags=tags | {"outcome": str(result["outcome"])} | error)


def send_staged(states: Mapping[str, ShardSummary | CorruptState], *, now_ms: int) -> None:
    """Send the gauges ``tidemark.staged.*`` of collections: the number of what is staged, and the age of the oldest.

    Both are 0 where nothing is staged: a server of StatsD keeps the last value. The operation is no tag, because one
    operation stages what another one publishes.
    """
    for name, state in states.items():
        if not isinstance(state, CorruptState):
            age_ms = 0 if state.staged_since_ms is None else max(0, now_ms - state.staged_since_ms)
            for gauge, value in {"batches": len(state.staged), "age_ms": age_ms}.items():
                stats.gauge(f"tidemark.staged.{gauge}", value, tags={"object": name})


def measures_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what is known of the run: its seconds, rows, attempts and, where something waited, the lag in ms."""
    details = result.get("details") or {}
    found = {
        "seconds": result.get("seconds"),
        "inserted": result.get("inserted"),
        "retracted": result.get("retracted"),
        "attempts": details.get("attempts", 1),
        "lag_ms": lag_of(details),
    }
    return {gauge: value for gauge, value in found.items() if value is not None}
