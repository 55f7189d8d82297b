"""The tasks of ``run_sinks``: one mapped task for each sink, which no failure of another one touches.

Sinks whose next run is a large first load are left for a Spark application.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow.sdk import AssetAlias, task
from airflow.sdk.exceptions import AirflowTaskTimeout

from tidemark.clock import SystemClock
from tidemark.entry_points import recording_failure
from tidemark.errors import UsageError
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.driver_or_spark import finish
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.results import results_of, show, sink_asset
from tidemark.orchestration.retry_policy import LIGHT_RETRIES, LIGHT_RETRY_DELAY, RETRY_POLICY, ending_task

SINKS = AssetAlias("tidemark_sinks")  # which sinks there are is known at run time only
FACTS = ("outcome", "lower", "upper", "inserted", "retracted", "generation")
WITH_SPARK = "load_with_spark"
LARGE = "large"  # an XCom of ``list_sinks``: names
_LABEL = "{{ task.op_kwargs['result']['name'] }}"


@task(retry_policy=RETRY_POLICY)
def list_sinks(params: Mapping[str, Any] | None = None, ti: Any = None) -> list[str]:
    """Check the stores, and return the names of the sinks to run; the XCom ``LARGE`` has those for Spark.

    The log names those that storage workers run.
    """
    with ending_task():
        settings = load_checked_settings()
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415
        from tidemark.sinks.large_loads import choose_large_loads  # noqa: PLC0415
        from tidemark.sinks.run import choose_sinks  # noqa: PLC0415
        from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

        if unknown := [name for name in params or {} if name != "sinks"]:  # Airflow takes any: all sinks would run
            raise UsageError(
                f"run_sinks has no param {', '.join(map(repr, unknown))}",
                hint='the names of sinks are in `sinks`, as in {"sinks": ["copies"]}; without it, all run',
            )
        names, clock = (params or {}).get("sinks") or [], SystemClock()
        with recording_failure(settings, "sink", names, clock=clock):
            deployment = replace(deployment_of(with_source_connections(settings)), asked_for=frozenset(names))
            chosen, _ = leave_to_workers(deployment, choose_sinks(deployment, names), names)
            large = choose_large_loads(Shards.connect(settings), deployment, chosen, clock=clock)
    ti.xcom_push(key=LARGE, value=large)
    return [applied.name for applied in chosen if applied.name not in large]


@task.short_circuit(retry_policy=RETRY_POLICY)
def check_large_loads(names: list[str]) -> list[str]:
    """Return the names, which are the arguments of ``run_sinks.py``, if an application can run; skip it without any."""
    with ending_task():
        if names:
            settings = load_checked_settings()
            with recording_failure(settings, "sink", names, clock=SystemClock()):
                check_spark(settings)
    return names


# Named after the sink: positions shift when a sink is added, names do not.
@task(map_index_template="{{ task.op_kwargs['name'] }}", outlets=[SINKS], retry_policy=RETRY_POLICY)
def run_sink(
    name: str, params: Mapping[str, Any] | None = None, ti: Any = None, outlet_events: Any = None
) -> dict[str, Any]:
    """Carry what came since the last run into the target of one sink; emit the asset event of the sink.

    A sink that fails, or takes longer than a task may, is suspended, and tried again by a later run; one that a person
    named is tried at once. One that was dropped since it was listed is skipped.
    """
    with ending_task():
        settings = load_checked_settings()
        from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
        from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
        from tidemark.collections.objects.gone import choose_present  # noqa: PLC0415
        from tidemark.collections.system.suspension import settle  # noqa: PLC0415
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415
        from tidemark.sinks.lost_runs import note_lost_runs  # noqa: PLC0415
        from tidemark.sinks.run import choose_sinks, run_sinks  # noqa: PLC0415

        named, clock = frozenset((params or {}).get("sinks") or []), SystemClock()
        deployment = replace(
            deployment_of(with_source_connections(settings)), asked_for=named, time_limits=(AirflowTaskTimeout,)
        )
        known = deployment.registry.read().sinks
        chosen, gone = choose_present(choose_sinks, deployment, [name])
        deployment = note_lost_runs(deployment, chosen, clock=clock)
        done = settle(deployment, run_sinks(Shards.connect(settings), deployment, chosen, clock=clock))
        done = with_skipped(done, gone)
    (result,) = results_of(finish(settings, done, ti=ti, among=known))
    return _show(result, outlet_events)


@task(map_index_template=_LABEL, outlets=[SINKS], retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def show_load(result: dict[str, Any], outlet_events: Any = None) -> dict[str, Any]:
    """Show what the Spark application did for one sink; fail if that failed, else emit the asset event of the sink."""
    return _show(result, outlet_events)


def _show(result: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
    name = show(result)
    if result["outcome"] == "carried":
        outlet_events[SINKS].add(sink_asset(name), extra={fact: result[fact] for fact in FACTS})
    return result
