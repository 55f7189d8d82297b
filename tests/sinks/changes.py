"""Changes of the collection `events`, by a file buffer that is ingested at once; and drops of its sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.iceberg.shards import Shards
from tidemark.sinks.removal import clear_sinks

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.settings import Settings


def drop_sink(settings: Settings, name: str = "copies") -> list[str]:
    shards, deployment, clock = Shards.connect(settings), deployment_of(settings), SystemClock()
    plans = plan_drop(shards, deployment, [name], clock=clock)
    return clear_sinks(shards, deployment, drop(shards, deployment, plans, clock=clock))


def change(home: Home, *, put: dict[int, str | None] | None = None, delete: tuple[int, ...] = ()) -> None:
    """Commit rows by id, and retractions, in one ingest."""
    home.clock.step(1_000)
    for id_, name in (put or {}).items():
        home.send(0, json.dumps({"id": id_, "name": name}).encode())
    for id_ in delete:
        home.send(0, json.dumps({"id": id_, "op": "d"}).encode())
    report = home.ingest()
    assert report.error is None, report.error
