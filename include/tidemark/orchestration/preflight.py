"""Checks before a Spark application starts: errors show within seconds, not after the start of a JVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.entry_points import recording_failure
from tidemark.iceberg.stores import check_stores
from tidemark.orchestration.connections import existing_connection, load_settings, with_source_connections
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.settings import Settings
from tidemark.spark.conf import list_jars

log = logging.getLogger(__name__)
SPARK_CONNECTION = "spark_default"


def check_spark(settings: Settings) -> None:
    """Check that an application can be submitted. Raises ``ConfigurationInvalid`` if connection or jars are missing."""
    existing_connection(SPARK_CONNECTION)
    list_jars(settings)


def load_checked_settings(*, writes: bool = True) -> Settings:
    """Return the settings once the stores have answered, within seconds.

    The first step of every task that works on collections.

    Raises:
        ConfigurationInvalid: If a connection of a store is missing.
        Unreachable: If a store does not answer, or the warehouse cannot be written, within 5 seconds.
    """
    settings = load_settings()
    check_stores(settings, writes=writes)
    return settings


@task(retry_policy=RETRY_POLICY)
def prepare_reconcile(
    params: Mapping[str, Any] | None = None, data_interval_start: Any = None, data_interval_end: Any = None
) -> list[str]:
    """Check everything and return the application's arguments. A run without a logical date has no interval."""
    params = params or {}
    arguments = reconcile_arguments(params, data_interval_start, data_interval_end)
    return _prepared(params, arguments, reconciles=True)


@task(retry_policy=RETRY_POLICY)
def prepare_maintenance(params: Mapping[str, Any] | None = None) -> list[str]:
    """Check everything and return the application's arguments."""
    params = params or {}
    return _prepared(params, maintain_arguments(params))


def _prepared(params: Mapping[str, Any], arguments: list[str], *, reconciles: bool = False) -> list[str]:
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    names = params.get("collections") or []
    with ending_task():
        settings = load_checked_settings(writes=not params.get("dry_run"))
        records = reconciles and not params.get("dry_run")
        with recording_failure(settings, "reconcile", names, clock=SystemClock()) if records else nullcontext():
            check_spark(settings)
            shards = Shards.connect(settings)
            for name in names:
                shards.open(name)
            deployment_of(settings).modes.read()  # raises if the stash does not answer, or this deployment is fenced
            if reconciles:
                check_sources(settings, names)
    log.info("the stores answer; warehouse %s, generation %s", settings.warehouse, settings.generation)
    log.info("arguments: %s", " ".join(arguments))
    return arguments


def check_sources(settings: Settings, names: Sequence[str]) -> None:
    """Check the connections of the named differential collections, or of all. Raises as ``check_connections``."""
    from tidemark.collections.reconcile.run import choose_declarations  # noqa: PLC0415 -- imports pyspark
    from tidemark.collections.sources.connections import check_connections  # noqa: PLC0415

    chosen = choose_declarations(deployment_of(settings).registry.read().declarations, names)
    check_connections(chosen.values(), with_source_connections(settings))


def reconcile_arguments(params: Mapping[str, Any], start: datetime | None, end: datetime | None) -> list[str]:
    """Return the arguments of ``reconcile_collections.py``, without the report.

    ``params`` are ``collections`` (None: all), ``dry_run``, and ``allow_empty``, ``max_delete_ratio`` (None: as
    declared). The data interval ``[start, end)`` is left out if it is empty, because it names no slice then.
    """
    arguments = list(params.get("collections") or [])
    if start is not None and end is not None and start < end:
        arguments += ["--interval", start.isoformat(), end.isoformat()]
    if params.get("dry_run"):
        arguments.append("--dry-run")
    if params.get("allow_empty") is not None:
        arguments.append("--allow-empty" if params["allow_empty"] else "--no-allow-empty")
    if params.get("max_delete_ratio") is not None:
        arguments += ["--max-delete-ratio", str(params["max_delete_ratio"])]
    return arguments


def maintain_arguments(params: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``maintain_collections.py``: ``collections`` (None: all) and ``history_days``."""
    arguments = list(params.get("collections") or [])
    if params.get("history_days") is not None:
        arguments += ["--history-days", str(params["history_days"])]
    return arguments
