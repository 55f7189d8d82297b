"""Checks before a Spark application starts: errors show within seconds, not after the start of a JVM."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.orchestration.connections import existing_connection, load_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.settings import Settings
from tidemark.spark.conf import list_jars

log = logging.getLogger(__name__)
SPARK_CONNECTION = "spark_default"


def check_spark(settings: Settings) -> None:
    """Check that an application can be submitted. Raises ``ConfigurationInvalid`` if connection or jars are missing."""
    existing_connection(SPARK_CONNECTION)
    list_jars(settings)


def check_stores(names: Iterable[str]) -> Settings:
    """Check that the connections exist, the jars are there, the store answers, and ``names`` are collections.

    Raises:
        ConfigurationInvalid: If a connection or the jars are missing.
        Unreachable: If the store does not answer, within 5 seconds.
        UnknownCollection: If there is no collection of one of the names; with near matches.
    """
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    settings = load_settings()
    check_spark(settings)
    shards = Shards.connect(settings)
    for name in names:
        shards.open(name)
    return settings


@task(retry_policy=RETRY_POLICY)
def prepare_reconcile(
    params: Mapping[str, Any] | None = None, data_interval_start: Any = None, data_interval_end: Any = None
) -> list[str]:
    """Check everything and return the application's arguments. A run without a logical date has no interval."""
    params = params or {}
    return _prepared(params, reconcile_arguments(params, data_interval_start, data_interval_end))


@task(retry_policy=RETRY_POLICY)
def prepare_maintenance(params: Mapping[str, Any] | None = None) -> list[str]:
    """Check everything and return the application's arguments."""
    params = params or {}
    return _prepared(params, maintain_arguments(params))


def _prepared(params: Mapping[str, Any], arguments: list[str]) -> list[str]:
    with ending_task():
        settings = check_stores(params.get("collections") or [])
        deployment_of(settings).modes.read()  # raises if the stash does not answer, or this deployment is fenced
    log.info("the store answers; warehouse %s, generation %s", settings.warehouse, settings.generation)
    log.info("arguments: %s", " ".join(arguments))
    return arguments


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
