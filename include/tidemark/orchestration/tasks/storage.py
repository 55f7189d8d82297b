"""The task of ``run_storage_workers`` that looks whether there is anything for workers to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import task

from tidemark.errors import UsageError
from tidemark.orchestration.preflight import load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

log = logging.getLogger(__name__)
PARAMS = ("workers", "minutes", "until_drained")


@task.short_circuit(retry_policy=RETRY_POLICY)
def plan_workers(params: Mapping[str, Any] | None = None) -> list[int]:
    """Check the stores, and return the indexes of the workers; none, which skips the rest, if no object wants any."""
    params = params or {}
    with ending_task():
        if unknown := [name for name in params if name not in PARAMS]:  # Airflow takes any, and nobody would see it
            raise UsageError(
                f"run_storage_workers has no param {', '.join(map(repr, unknown))}",
                hint=f"there are {', '.join(PARAMS)}",
            )
        settings = load_checked_settings()
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
        from tidemark.storage.running import find_paced  # noqa: PLC0415

        paced = find_paced(deployment_of(settings).registry.read())
    if not paced:
        log.info("no collection and no sink declares `every`: scheduled runs do all the work")
        return []
    log.info("objects for workers: %s", ", ".join(paced))
    return list(range(params.get("workers") or 2))
