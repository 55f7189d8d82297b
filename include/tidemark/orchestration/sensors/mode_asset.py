"""The asset that has an event for every switch of the mode, and the task that makes one from Airflow's interface.

The asset is built here alone: Airflow takes the watchers of an asset from whichever DAG file it parsed last, so that a
second definition without the watcher would switch it off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetWatcher, task
from tidemark_triggers import CURSOR, ModeSwitchTrigger  # type: ignore[import-not-found]  # Airflow puts plugins/ on the path

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode
from tidemark.orchestration.connections import load_settings, with_source_connections
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.sensors.mode import SeenMode, see_mode

log = logging.getLogger(__name__)

MODE = Asset(
    name="tidemark_mode",
    uri="x-tidemark://mode",
    watchers=[AssetWatcher(name="tidemark_mode_switches", trigger=ModeSwitchTrigger())],
)


@task(outlets=[MODE], retry_policy=RETRY_POLICY)
def switch_deployment(
    params: Mapping[str, Any] | None = None,
    dag_run: Any = None,
    outlet_events: Any = None,
    asset_state_store: Any = None,
) -> dict[str, Any]:
    """Switch the mode as ``tidemark mode`` does, and announce it; if the mode holds already, change nothing."""
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415 -- heavy, and not needed to parse a DAG
    from tidemark.sinks.fencing import fence_sinks  # noqa: PLC0415

    params = params or {}
    user = getattr(dag_run, "triggering_user_name", None)
    with ending_task():
        settings = with_source_connections(load_settings())
        who = f"{user or 'somebody'}, through Airflow"
        deployment, wanted = deployment_of(settings, who=who), Mode(params["mode"])
        switch_mode(Shards.connect(settings), deployment, wanted, who=who, why=str(params.get("why") or ""))
        if wanted is Mode.READ_ONLY:
            for why_not in fence_sinks(deployment):
                log.warning("%s", why_not)
        seen = see_mode(settings)
    log.info("deployment %s is %s", seen.generation, seen.mode)
    return announce_switch(seen, outlet_events, asset_state_store)


def announce_switch(seen: SeenMode, outlet_events: Any, asset_state_store: Any) -> dict[str, Any]:
    """Put the mode into the event of the asset, which the task must have as an outlet; return its facts."""
    if asset_state_store is not None:  # so that the watcher need not announce it again
        asset_state_store[MODE].set(CURSOR, seen.since_ms)
    outlet_events[MODE].extra = seen.facts
    return seen.facts
