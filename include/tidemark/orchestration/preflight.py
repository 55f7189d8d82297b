"""Checks before a Spark application starts: errors show within seconds, not after the start of a JVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.iceberg.stores import check_stores
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
def prepare_maintenance(params: Mapping[str, Any] | None = None) -> list[str]:
    """Check everything and return the application's arguments."""
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    params = params or {}
    arguments = maintain_arguments(params)
    with ending_task():
        settings = load_checked_settings()
        check_spark(settings)
        shards = Shards.connect(settings)
        for name in params.get("collections") or []:
            shards.open(name)
        deployment_of(settings).modes.read()  # raises if the stash does not answer, or this deployment is fenced
    log.info("the stores answer; warehouse %s, generation %s", settings.warehouse, settings.generation)
    log.info("arguments: %s", " ".join(arguments))
    return arguments


def maintain_arguments(params: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``maintain_collections.py``: ``collections`` (None: all) and ``history_days``."""
    arguments = list(params.get("collections") or [])
    if params.get("history_days") is not None:
        arguments += ["--history-days", str(params["history_days"])]
    return arguments
