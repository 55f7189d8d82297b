"""Reads the state of every collection and the last report of every DAG, without a JVM."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import Clock, SystemClock
from tidemark.collections.holds import list_holds, may_be_of_sink, read_sink_holds
from tidemark.errors import CorruptState, TidemarkError
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state_reader import ShardSummary, read_states
from tidemark.report import ErrorReport
from tidemark.settings import Settings

log = logging.getLogger(__name__)


def collections_status(settings: Settings, *, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return one entry per collection, in order of name; an unreadable collection has only its name and ``error``.

    Raises ``Unreachable`` if the catalog does not answer.
    """
    states = read_states(settings)
    sink_holds = _read_sink_holds(settings, states)
    now_ms = (clock or SystemClock()).now_ms()
    return [
        {"name": name, "error": ErrorReport.of(seen).to_json()}
        if isinstance(seen, CorruptState)
        else {
            "name": name,
            "kind": seen.state.layout.value,
            "upper": frontier_json(seen.state.upper),
            "since": frontier_json(seen.state.since),
            "generation": seen.state.token.generation,
            "epoch": seen.state.token.epoch,
            "rows": seen.rows,
            "staged": list(seen.staged),
            "stale": list(seen.stale),
            "holds": [
                held.to_json()
                for held in list_holds(name, seen.state, seen.oldest_ms, now_ms=now_ms, sink_holds=sink_holds)
            ],
            "error": None,
        }
        for name, seen in states.items()
    ]


def resting_objects(settings: Settings) -> dict[str, str]:
    """Return the objects that runs leave out, with since when and why; none while the catalog cannot be asked."""
    try:
        return {name: str(standing) for name, standing in deployment_of(settings).objects.read().items()}
    except TidemarkError as error:  # a deployment that stands by still shows the collections
        log.warning("what is paused or suspended is not shown: %s", error)
        return {}


def _read_sink_holds(
    settings: Settings, states: Mapping[str, ShardSummary | CorruptState]
) -> Mapping[tuple[str, str], int]:
    """Return what ``read_sink_holds`` says; nothing while the catalog cannot be read, for example as it is moved."""
    readable = (seen for seen in states.values() if not isinstance(seen, CorruptState))
    if not any(may_be_of_sink(reader) for seen in readable for reader in seen.state.holds):
        return {}
    try:
        return read_sink_holds(deployment_of(settings).registry)
    except TidemarkError:
        return {}


def last_reports(settings: Settings) -> dict[str, Any]:
    """Return the last report of every DAG whose tasks ran on this machine."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(settings.reports.glob("[!.]*.json"))
    }
