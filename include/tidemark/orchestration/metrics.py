"""The measures of runs, where operators look already: in Airflow's StatsD, or OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.observability import stats

from tidemark.collections.system.rules import lag_of


def send_result(result: Mapping[str, Any]) -> None:
    """Send the gauges ``tidemark.run.*`` of one object in one run, and count the run by its outcome.

    The tags are the object and the operation. ``attempts`` counts how often the run began anew, because somebody else
    changed the collection or the source meanwhile.
    """
    tags = {"object": str(result["name"]), "operation": str(result["operation"])}
    for gauge, value in measures_of(result).items():
        stats.gauge(f"tidemark.run.{gauge}", value, tags=tags)
    stats.incr("tidemark.run.ended", tags=tags | {"outcome": str(result["outcome"])})


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
