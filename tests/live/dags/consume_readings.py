"""A downstream job, as a user would write one: it runs when ranges of `readings` became visible."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag, task

from tidemark.orchestration.results import collection_asset

READINGS = collection_asset("readings")


@dag(
    schedule=[READINGS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=False,
    tags=["tests"],
)
def consume_readings() -> None:
    @task
    def list_ranges(triggering_asset_events: Any = None) -> list[list[int]]:
        events = triggering_asset_events[READINGS]
        return [part for event in events for part in event.extra["ranges"]["source"]]

    list_ranges()


consume_readings()
