"""The assets by which sources start `reconcile_collections`, as they are declared when its file is parsed.

Airflow asks for the assets of a schedule when it parses the file, again and again. So they are read out of the catalog
there, in some ms, without pyiceberg; what was read last is kept in a file, for a catalog that does not answer. A task,
for which a worker parses the file as well, needs no schedule.

The assets of watched files are built here alone: Airflow takes the watchers of an asset from whichever DAG file it
parsed last.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from airflow.sdk import Asset, AssetAny, AssetOrTimeSchedule, AssetWatcher, get_parsing_context
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from tidemark_triggers import FilesTrigger  # type: ignore[import-not-found]  # Airflow puts plugins/ on the path

from tidemark.atomic_files import write_whole
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.reconcile.choosing.triggered import watch_asset
from tidemark.errors import TidemarkError
from tidemark.orchestration.connections import load_settings
from tidemark.settings import Settings

log = logging.getLogger(__name__)

KEPT: Final = "source_assets.json"  # below TIDEMARK_HOME
REFRESH_MS: Final = 300_000  # a catalog in Iceberg takes a second to be read: so often, not at each parsing


def or_when_sources_change(timetable: BaseTimetable) -> BaseTimetable:
    """Return a schedule by time, and by the events of all sources that name an asset or are watched.

    Without such a source it is ``timetable`` itself.
    """
    assets = build_assets(find_declared())
    return AssetOrTimeSchedule(timetable=timetable, assets=AssetAny(*assets)) if assets else timetable


def build_assets(declared: Mapping[str, Any]) -> list[Asset]:
    """Return the assets, in an order that is always the same, so that Airflow sees no new version of the DAG."""
    named = {(each["name"], each["uri"]) for found in declared.values() for each in found["assets"]}
    watched = [(name, found) for name, found in sorted(declared.items()) if found["paths"]]
    return [
        *_take_assets(sorted(named)),
        *(
            Asset(
                name=watch_asset(name),
                uri=f"x-tidemark://sources/{name}",
                watchers=[
                    AssetWatcher(
                        name=f"tidemark_files_of_{name}",
                        trigger=FilesTrigger(
                            collection=name, paths=found["paths"], poll_seconds=found["watch_ms"] / 1000
                        ),
                    )
                ],
            )
            for name, found in watched
        ),
    ]


def _take_assets(named: Iterable[tuple[str, str]]) -> Iterator[Asset]:
    """Yield the assets that Airflow takes: one that it refuses must not take the schedule of all others away."""
    for name, uri in named:
        try:
            yield Asset(name=name, uri=uri)
        except ValueError as error:
            log.warning("no event of the asset %r starts a run: Airflow refuses it: %s", name, error)


def find_declared() -> dict[str, Any]:
    """Return what the applied collections declare of events, by name; of those alone that declare any."""
    if get_parsing_context().dag_id is not None:  # in a worker
        return {}
    try:
        kept = Settings.load(os.environ).home / KEPT
    except TidemarkError as error:  # a task says the same, where everybody sees it
        log.warning("no declared events are known: %s", error)
        return {}
    try:
        return _read(load_settings(), kept)
    except (
        TidemarkError,
        AirflowException,
        AirflowRuntimeError,
    ) as error:  # or the DAG would be gone until the next parsing
        found = _read_kept(kept)
        log.warning("declared events are those that were read last (%s): %s", sorted(found) or "none", error)
        return found


def _read(settings: Settings, kept: Path) -> dict[str, Any]:
    clock = SystemClock()
    is_in_iceberg = Catalog.of(settings, clock=clock).truth().name == Direction.MIGRATE.truth
    if is_in_iceberg and kept.exists():
        age_ms = clock.now_ms() - kept.stat().st_mtime_ns // 1_000_000
        if 0 <= age_ms < REFRESH_MS:  # below 0 the clock was set back
            return _read_kept(kept)
    declared = deployment_of(settings).registry.read().declarations
    found = {
        name: _events_of(declaration)
        for name, declaration in declared.items()
        if declaration.kind is Kind.DIFFERENTIAL and (declaration.assets or declaration.watched_paths)
    }
    if is_in_iceberg or found != _read_kept(kept):
        try:
            write_whole(kept, json.dumps(found))
        except OSError as error:  # a home that this process cannot write
            log.warning("what is declared of events cannot be kept for a catalog that does not answer: %s", error)
    return found


def _events_of(declaration: Declaration) -> dict[str, Any]:
    return {
        "assets": [asset.model_dump() for asset in declaration.assets],
        "paths": list(declaration.watched_paths),
        "watch_ms": declaration.watch_ms,
    }


def _read_kept(kept: Path) -> dict[str, Any]:
    """Return what is kept; nothing if there is no such file, or somebody damaged it."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
