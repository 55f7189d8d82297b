"""The state of every collection and the last report of every DAG as one document, at an address of long standing."""

from __future__ import annotations

import json
from typing import Any

from tidemark.errors import CorruptState
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state_reader import ShardSummary
from tidemark.orchestration.status_page.buffers import read_storage
from tidemark.orchestration.status_page.observed import Observed, Observer
from tidemark.orchestration.status_page.overview import holds_of
from tidemark.report import ErrorReport
from tidemark.settings import Settings


def show_status(observer: Observer, *, now_ms: int) -> dict[str, Any]:
    """Return one entry per collection, what rests since when and why, the last reports, and the storage workers.

    An unreadable collection has only its name and ``error``. Nothing rests while the catalog cannot be asked.
    """
    seen = observer.look()
    return {
        "collections": [_show_collection(name, state, seen, now_ms=now_ms) for name, state in seen.states.items()],
        "resting": {name: str(standing) for name, standing in seen.contents.standings.items()},
        "reports": last_reports(observer.settings),
        "storage": read_storage(observer, seen, now_ms=now_ms),
    }


def last_reports(settings: Settings) -> dict[str, Any]:
    """Return the last report of every DAG whose tasks ran on this machine."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(settings.reports.glob("[!.]*.json"))
    }


def _show_collection(name: str, found: ShardSummary | CorruptState, seen: Observed, *, now_ms: int) -> dict[str, Any]:
    if isinstance(found, CorruptState):
        return {"name": name, "error": ErrorReport.of(found).to_json()}
    return {
        "name": name,
        "kind": found.state.layout.value,
        "upper": frontier_json(found.state.upper),
        "since": frontier_json(found.state.since),
        "generation": found.state.token.generation,
        "epoch": found.state.token.epoch,
        "rows": found.rows,
        "staged": list(found.staged),
        "stale": list(found.stale),
        "holds": holds_of(name, found, seen, now_ms=now_ms),
        "error": None,
    }
