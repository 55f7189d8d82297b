"""A collection in hours that reads a file buffer, and rows with event times, in minutes after 05:00."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidemark.ingest.partitions.state import Partitions
from tidemark.interval import Unit, time_text

if TYPE_CHECKING:
    from tests.support.homes import Home

MINUTE_MS = 60_000
FIVE = 1_357_189_200_000  # 2013-01-03T05
RULES = {"late_arrive_window": "5m", "max_ahead": "1h"}


def declare(ingesting: Home, **lifecycle: object) -> None:
    ingesting.declare_reader(
        schema="id bigint, at timestamp", event_time="at", partition="hour", lifecycle={**RULES, **lifecycle}
    )


def at(ingesting: Home, minute: int) -> None:
    """Set the clock to a minute after 05:00."""
    ingesting.clock.step(FIVE + minute * MINUTE_MS - ingesting.clock.now_ms())


def send(ingesting: Home, sequencer_id: int, *minutes: int) -> None:
    """Send a row for each event time."""
    for minute in minutes:
        text = time_text(FIVE + minute * MINUTE_MS)
        ingesting.send(sequencer_id, json.dumps({"id": ingesting.sent, "at": text}).encode())
        ingesting.sent += 1


def partitions_by(ingesting: Home, unit: Unit = Unit.HOUR) -> Partitions:
    return Partitions.parse(ingesting.shard().load().table.properties, "at", unit)
