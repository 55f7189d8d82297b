"""The tasks of ``ingest_write_buffer``: few entries are ingested at once, many are left for a Spark application."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow.sdk import task
from airflow.sdk.exceptions import AirflowTaskTimeout

from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings, with_source_connections
from tidemark.orchestration.driver_or_spark import check_left, hand_on
from tidemark.orchestration.preflight import check_spark
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

log = logging.getLogger(__name__)

WITH_SPARK, LIST = "ingest_with_spark", "list_ingested"


@task.branch(retry_policy=RETRY_POLICY)
def ingest_small(params: Mapping[str, Any] | None = None, ti: Any = None) -> list[str]:
    """Check stores and brokers, ingest collections with few waiting entries; choose Spark for the others.

    What storage workers ingest is skipped, unless a person named collections.
    """
    from tidemark.ingest.preflight import check_at_start  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    params = params or {}
    with ending_task():
        settings = load_settings()
        silent = check_at_start(settings)
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
        from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
        from tidemark.collections.system.suspension import settle  # noqa: PLC0415
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415
        from tidemark.ingest.delivery import SMALL_ENTRIES  # noqa: PLC0415
        from tidemark.ingest.parts.ingesting import Engine  # noqa: PLC0415
        from tidemark.ingest.run import choose_ingested, ingest_all  # noqa: PLC0415
        from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

        words = params.get("collections") or []  # of a person, who triggers the DAG
        deployment = deployment_of(with_source_connections(settings))
        chosen = choose_ingested(deployment, words)
        asked_for = frozenset(each.name for each in chosen if words)
        deployment = replace(deployment, asked_for=asked_for, time_limits=(AirflowTaskTimeout,))
        chosen, on_workers = leave_to_workers(deployment, chosen, words)
        engine = Engine(
            max_entries=params.get("max_entries_per_run"),
            small_entries=0 if params.get("engine") == "spark" else SMALL_ENTRIES,
        )
        shards, clock = Shards.connect(settings), SystemClock()
        done, left = ingest_all(shards, deployment, chosen, clock=clock, engine=engine, silent=silent)
        done, left = check_left(settle(deployment, done), left, partial(check_spark, settings))
    log.info("without a JVM: %s; left for Spark: %s", sorted(done.collections), left)
    done = with_skipped(done, on_workers)
    arguments = ingest_arguments(left, params)
    return hand_on(settings, done, arguments, left=left, ti=ti, tasks=[LIST, WITH_SPARK])


def ingest_arguments(names: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``ingest_write_buffer.py``, without the report."""
    arguments = [*names, *(["--retry-suspended"] if params.get("collections") else [])]
    if params.get("max_entries_per_run") is not None:
        arguments += ["--max-entries", str(params["max_entries_per_run"])]
    if params.get("engine") == "spark":
        arguments += ["--small-entries", "0"]
    return arguments
