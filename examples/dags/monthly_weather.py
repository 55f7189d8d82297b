"""### Mean temperatures of every month that is complete.

An example of a DAG downstream of Tidemark: it starts when a month of `weather_readings` is closed, which means that all
partitions of the write buffer have passed the month. Nobody triggers it, and no sensor waits.

One run computes all months that were closed since the last run: rows and mean temperature (°F) by origin. A month that
a late observation reopened is closed again, and computed again. Each result replaces the one before, so that a run may
be retried at any time.

The run reads the events of the asset, and not `triggering_asset_events`: Airflow makes one run of events that come
together, and hands over only the first of them (apache/airflow#54659). The state of the asset has the time of the last
event that was computed.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import dag, task

from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.results import closed_asset

if TYPE_CHECKING:
    from pyiceberg.table import Table

COLLECTION = "weather_readings"
CLOSED = closed_asset(COLLECTION)
COMPUTED_UNTIL = "computed_until"  # the time of the last event whose month is computed
NEVER = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger(__name__)


@dag(
    schedule=CLOSED,
    max_active_runs=1,  # runs share the state of the asset
    dagrun_timeout=timedelta(hours=1),
    default_args={"owner": "examples", "retries": 2, "execution_timeout": timedelta(minutes=10)},
    tags=["tidemark", "example"],
    doc_md=__doc__,
)
def monthly_weather() -> None:
    """Compute what is complete."""
    compute_months()


@task(inlets=[CLOSED])
def compute_months(inlet_events: Any = None, asset_state_store: Any = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Compute the months that were closed since the last run; return the statistics by month and origin."""
    from tidemark import Shards  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    state = asset_state_store[CLOSED]
    until = datetime.fromisoformat(state.get(COMPUTED_UNTIL, NEVER.isoformat()))
    events = [event for event in inlet_events[CLOSED].after(until.isoformat()) if event.timestamp > until]
    readings = Shards.connect(load_settings()).open(COLLECTION).load().table
    computed = {month: compute_month(readings, month) for month in sorted({e.extra["partition"] for e in events})}
    log.info("computed %s", computed)
    if events:  # after the work: a run that dies before computes the same months again
        state.set(COMPUTED_UNTIL, max(event.timestamp for event in events).isoformat())
    return computed


def compute_month(readings: Table, month: str) -> dict[str, dict[str, Any]]:
    """Return rows and mean temperature (°F, of the rows that have one) by origin, of a month such as ``2013-01``."""
    start = datetime.fromisoformat(f"{month}-01T00:00:00+00:00")
    end = (start + timedelta(days=31)).replace(day=1)
    in_month = f"time_hour >= '{start.isoformat()}' and time_hour < '{end.isoformat()}'"
    rows = readings.scan(row_filter=in_month, selected_fields=("origin", "temp")).to_arrow()
    by_origin = rows.group_by("origin").aggregate([([], "count_all"), ("temp", "mean")]).sort_by("origin").to_pylist()
    return {each["origin"]: {"rows": each["count_all"], "mean_temp": each["temp_mean"]} for each in by_origin}


monthly_weather()
