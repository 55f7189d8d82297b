"""The tasks of ``flush_staged_batches``: list what is staged, flush it, without a JVM where that will do, verify."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, XComArg, task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.entry_points import recording_failure
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.ledger import Ledger, with_forwarded
from tidemark.orchestration.connections import load_settings, with_source_connections
from tidemark.orchestration.driver_or_spark import finish
from tidemark.orchestration.metrics import send_staged
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.results import tell_results
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.sensors.mode import see_mode
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.verify_flush import FlushedCollection, StagedCollection, verify
from tidemark.report import SKIPPED_BECAUSE
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.collections.staged.batches import QueuedBatch
    from tidemark.iceberg.shards import Shards

log = logging.getLogger(__name__)

PLAN, NAMES = "plan", "names"  # the XComs of `list_staged`
WITHOUT_JVM, WITH_SPARK = "flush", "flush_with_spark"


@task.branch(retry_policy=RETRY_POLICY)
def list_staged(params: Mapping[str, Any] | None = None, ti: Any = None) -> list[str]:
    """List what is this deployment's to publish, and choose the task that flushes it; nothing: stop here.

    With Spark go large batches, and corrections that do not fit the contents any more: Spark reconciles their slices.
    ``verify_flush`` compares the result with this list: a later try of the flush no longer sees the batches that an
    earlier try published before it died.
    """
    from tidemark.collections.isolation import find_resting  # noqa: PLC0415 -- heavy, and not needed to parse a DAG
    from tidemark.collections.staged.flush import TOTAL_BYTES  # noqa: PLC0415
    from tidemark.iceberg.shard.state_reader import read_states  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    params = params or {}
    with ending_task():
        settings = load_checked_settings()
        if not (seen := see_mode(settings)).is_writable:
            log.info("the deployment is read-only again; the run of that switch waits for its end: %s", seen.facts)
            return []
        send_staged(read_states(settings), now_ms=SystemClock().now_ms())
        shards = Shards.connect(settings)
        plan = staged_now(shards, settings, params.get("collections") or [])
        for name, resting in find_resting(deployment_of(settings), SystemClock()).items():
            if plan.pop(name, None) is not None:
                log.info("%s: what is staged waits: %s", name, resting.details[SKIPPED_BECAUSE])
        size_bytes = sum(waiting.size_bytes for waiting in plan.values())
        stale = [name for name, waiting in plan.items() if waiting.corrections and _has_stale(shards, settings, name)]
        with_spark = params.get("engine") == "spark" or size_bytes > TOTAL_BYTES or bool(stale)
        if plan and with_spark:
            with recording_failure(settings, "flush", sorted(plan), clock=SystemClock()):
                check_spark(settings)
    for name, waiting in plan.items():
        what = "corrections, some are stale" if name in stale else waiting.ranges or "corrections"
        log.info("%s: %s batches, %s rows, %s", name, waiting.batches, waiting.rows, what)
    if not plan:
        log.info("nothing is staged")
        return []
    ti.xcom_push(key=PLAN, value={name: waiting.to_json() for name, waiting in plan.items()})
    ti.xcom_push(key=NAMES, value=sorted(plan))
    return [WITH_SPARK if with_spark else WITHOUT_JVM]


def staged_now(shards: Shards, settings: Settings, names: Iterable[str]) -> dict[str, StagedCollection]:
    """Return what a flush by this deployment publishes, by collection."""
    from tidemark.collections.staged.batches import RECONCILE, choose_own, list_batches  # noqa: PLC0415
    from tidemark.iceberg.shard.state_reader import ShardSummary, read_states  # noqa: PLC0415

    seen = read_states(settings)  # before the list: what vanishes from the list without a commit is lost
    found: dict[str, list[QueuedBatch]] = {}
    for batch in choose_own(list_batches(shards, names), deployment_of(settings)):
        found.setdefault(batch.collection, []).append(batch)
    return {
        name: StagedCollection(
            ranges=_ranges(batches),
            in_buffer=_ranges(batch for batch in batches if batch.is_ingested),
            batches=len(batches),
            rows=sum(batch.rows for batch in batches),
            size_bytes=sum(batch.size_bytes for batch in batches),
            corrections={batch.branch: batch.snapshot_id for batch in batches if batch.name.producer == RECONCILE},
            upper=frontier_json(state.state.upper) if isinstance(state := seen.get(name), ShardSummary) else None,
        )
        for name, batches in found.items()
    }


def _has_stale(shards: Shards, settings: Settings, name: str) -> bool:
    """Tell whether a flush would leave corrections staged."""
    from tidemark.collections.staged.batches import own_corrections  # noqa: PLC0415
    from tidemark.collections.staged.corrections import audit_corrections  # noqa: PLC0415

    head = shards.open(name).load()
    return bool(audit_corrections(head, own_corrections(head, deployment_of(settings))).stale)


def _ranges(batches: Iterable[QueuedBatch]) -> dict[str, list[list[int]]]:
    from tidemark.collections.staged.batches import RECONCILE  # noqa: PLC0415

    ledgers: dict[str, Ledger] = {}
    for batch in batches:
        if (producer := batch.name.producer) != RECONCILE:
            # If two staged batches overlap, the flush publishes one, and reports the other.
            ledgers[producer] = ledgers.get(producer, Ledger()).add_free([batch.name.range])
    return {producer: [list(part) for part in ledger.ranges] for producer, ledger in ledgers.items()}


@task(retry_policy=RETRY_POLICY)
def flush_without_jvm(names: list[str], ti: Any = None) -> dict[str, Any]:
    """Flush as ``tidemark flush`` does, and return the report."""
    from tidemark.collections.staged.flush import flush_all  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    with ending_task():
        settings = load_checked_settings()
        deployment = deployment_of(with_source_connections(settings))  # what is staged may go to a buffer
        done = flush_all(Shards.connect(settings), deployment, names, clock=SystemClock())
    return finish(settings, done, ti=ti)


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, retry_policy=RETRY_POLICY)
def verify_flush(
    plan: dict[str, Any], report: dict[str, Any] | None, spark_report: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Compare what was staged with the ledgers, and with what is staged still; one or two results per collection."""
    from tidemark.iceberg.shard.state_reader import read_state  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    reported = (report or spark_report or {}).get("collections", {})
    with ending_task():
        settings = load_settings()
        left = staged_now(Shards.connect(settings), settings, sorted(plan))
        results = []
        for name, planned in sorted(plan.items()):
            state = read_state(settings, name).state
            ledgers = with_forwarded(state.ledgers)
            seen = FlushedCollection(upper=state.upper, ledgers=ledgers, still=left.get(name))
            results += verify(
                name, StagedCollection.parse(planned), reported.get(name), seen, generation=settings.generation
            )
    return results


def flush_staged() -> tuple[Any, Any]:
    """Add the tasks to the present DAG that list, flush, verify and show what is staged; return the first and the last.

    Large batches, and corrections that are stale, go to a Spark application.
    """
    # A task that gets an output of another one gets the value, not an ``XComArg``: hence ``Any``.
    staged: Any = list_staged()
    names: Any = XComArg(staged.operator, key=NAMES)
    flushed: Any = flush_without_jvm.override(task_id=WITHOUT_JVM)(names)
    with_spark: Any = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="flush_staged_batches.py",
        application_args=names,
        fence_on_retry=False,  # the flush itself raises the token in its commit
        pool="spark",
        execution_timeout=timedelta(hours=2),
    )
    plan: Any = XComArg(staged.operator, key=PLAN)
    results: Any = verify_flush(plan, flushed, with_spark.output)
    return staged, tell_results(results)
