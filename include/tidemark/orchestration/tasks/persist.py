"""The tasks of ``buffer_lifecycle``: few rows are persisted at once, many are left for a Spark application.

A run that is asked for a replay makes that, in a task of its own, in place of the pass.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow.sdk import task

from tidemark.clock import SystemClock
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.driver_or_spark import check_left, finish, hand_on, push
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.report import Report

log = logging.getLogger(__name__)

WITH_SPARK, REPLAY, LIST = "persist_with_spark", "replay", "list_persisted"


@task.branch(retry_policy=RETRY_POLICY)
def persist_small(params: Mapping[str, Any] | None = None, ti: Any = None) -> list[str]:
    """Make one pass over each collection; choose Spark for those where much is due; or leave all to a replay."""
    params = params or {}
    if params.get("replay"):
        return _leave_to_replay(params["replay"], ti)
    with ending_task():
        settings = load_checked_settings()
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415
        from tidemark.ingest.persist.persist import SMALL_ROWS, Engine, choose_persisted, persist_all  # noqa: PLC0415

        deployment = deployment_of(settings)
        chosen = choose_persisted(deployment, params.get("collections") or [])
        small = 0 if params.get("engine") == "spark" else SMALL_ROWS
        engine = Engine(everything=bool(params.get("now")), small_rows=small)
        done, left = persist_all(Shards.connect(settings), deployment, chosen, clock=SystemClock(), engine=engine)
        done, left = check_left(done, left, partial(check_spark, settings))
    for name, collection in done.collections.items():
        for decision in collection.details.get("decisions", []):
            log.info("%s: %s %s: %s", name, decision["action"], decision["partition"], decision["reason"])
    log.info("without a JVM: %s; left for Spark: %s", sorted(done.collections), left)
    arguments = persist_arguments(left, params)
    return hand_on(settings, done, arguments, left=left, ti=ti, tasks=[LIST, WITH_SPARK])


def _leave_to_replay(name: str, ti: Any) -> list[str]:
    """Choose the task that replays ``name``; a pass comes with the next run."""
    with ending_task():
        generation, now_ms = load_checked_settings().generation, SystemClock().now_ms()
    push(Report(operation="replay", started_at=now_ms, finished_at=now_ms, generation=generation), [name], ti=ti)
    return [LIST, REPLAY]


@task(task_id=REPLAY, retry_policy=RETRY_POLICY)
def replay(params: Mapping[str, Any] | None = None, ti: Any = None) -> dict[str, Any]:
    """Replay one collection as ``tidemark buffer replay`` does, and return the report."""
    params = params or {}
    with ending_task():
        settings = load_checked_settings()
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415
        from tidemark.ingest.replay.plan import Request  # noqa: PLC0415
        from tidemark.ingest.replay.replay import replay_all  # noqa: PLC0415

        request = Request.parse(
            params.get("replay_partitions") or [],
            params.get("replay_from") or [],
            skips_lost=bool(params.get("replay_skip_lost")),
        )
        deployment = deployment_of(with_source_connections(settings))
        chosen = [deployment.registry.get(params["replay"])]
        shards, who = Shards.connect(settings), f"{ti.dag_id} {ti.run_id}"
        done = replay_all(shards, deployment, chosen, request, clock=SystemClock(), who=who)
    return finish(settings, done, ti=ti)


def persist_arguments(names: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``buffer_lifecycle.py``, without the report."""
    now = ["--now"] if params.get("now") else []
    return [*names, *now, *(["--small-rows", "0"] if params.get("engine") == "spark" else [])]
