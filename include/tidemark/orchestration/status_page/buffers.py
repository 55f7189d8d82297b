"""Write buffers: how far each collection that reads one has come, and what storage workers do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.collections.deployment import StatusKind
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import TidemarkError
from tidemark.ingest.progress import count_waiting_batches, find_writers, read_progress
from tidemark.orchestration.status_page.history import Key
from tidemark.orchestration.status_page.observed import Observed, Observer
from tidemark.report import ErrorReport
from tidemark.settings import Settings
from tidemark.storage.definitions import object_id
from tidemark.storage.view import read_view, with_declared
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.registry import open_reader

_MOST_RUNS = 720  # of a collection: a month of hourly ones


def show_buffers(observer: Observer, *, now_ms: int) -> dict[str, Any]:
    """Return each buffer that a declaration names, or why it cannot be read; and the view of storage workers.

    ``lags`` are the lags at the ends of the last runs and now, by collection and sequencer.
    """
    seen = observer.look()
    places = sorted(set(_places(seen)))
    settings = _with_connections(observer.settings, places)
    buffers = [_show_buffer(place, settings, seen, now_ms=now_ms) for place in places]
    lags = {
        name: _lags(seen, (name, known.id))
        for name, known in seen.contents.objects.items()
        if known.kind is StatusKind.INGESTION
    }
    for each in (progress for buffer in buffers for progress in buffer["progress"]):
        lags.setdefault(each["collection"], {}).setdefault(str(each["sequencer"]), []).append((now_ms, each["lag_ms"]))
    return {"buffers": buffers, "lags": lags, "storage": read_storage(observer, seen, now_ms=now_ms)}


def read_storage(observer: Observer, seen: Observed, *, now_ms: int) -> dict[str, Any]:
    """Return the view of storage workers, with all objects that declare ``every``."""
    contents = seen.contents
    paced = {
        name: object_id(contents.objects[name]) if name in contents.objects else None for name in contents.applied.paced
    }
    return with_declared(read_view(observer.settings), paced, contents.standings, now_ms=now_ms)


def _places(seen: Observed) -> Iterable[str]:
    for declaration in seen.contents.applied.declarations.values():
        if isinstance(declaration.source, BufferSource):
            yield declaration.source.buffer
        if declaration.writes_to is not None:
            yield declaration.writes_to


def _show_buffer(place: str, settings: Settings, seen: Observed, *, now_ms: int) -> dict[str, Any]:
    declared = seen.contents.applied.declarations.values()
    try:
        connection = find_connection(place, settings.connections)
        with open_reader(connection) as reader:
            progress = read_progress(settings, declared, reader, connection, now_ms=now_ms)
            batches = count_waiting_batches(settings, declared, reader, connection)
            writers = find_writers(declared, connection, settings.connections)
    except TidemarkError as error:
        return {"name": place, "error": ErrorReport.of(error).to_json(), "progress": [], "writers": []}
    return {
        "name": place,
        "error": None,
        "progress": [{**each.to_json(), "waiting_batches": batches.get(each.collection, 0)} for each in progress],
        "writers": writers,
    }


def _lags(seen: Observed, key: Key) -> dict[str, list[tuple[int, int]]]:
    """Return when each sequencer was how late, by the number of the sequencer."""
    found: dict[str, list[tuple[int, int]]] = {}
    for run in seen.history.runs(key)[-_MOST_RUNS:]:
        for sequencer, lag_ms in json.loads(run["sequencer_lags"] or "{}").items():
            found.setdefault(sequencer, []).append((run["measured_at"], lag_ms))
    return found


def _with_connections(settings: Settings, places: Iterable[str]) -> Settings:
    """Return the settings with the connections of the buffers that have a name, as Airflow knows them."""
    found: dict[str, str] = {}
    for name in (place for place in places if ":" not in place):
        with suppress(AirflowNotFoundException):
            found[f"AIRFLOW_CONN_{name.upper()}"] = BaseHook.get_connection(name).as_json()
    connections: Mapping[str, str] = {**found, **settings.connections}
    return replace(settings, connections=connections)
