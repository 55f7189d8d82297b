"""The sensor that waits until no task works on collections, before a migration fences them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

# By DAG: the tasks that a fence would make start over. Storage workers, of which some always run, join by themselves.
WORKING: Final[Mapping[str, tuple[str, ...]]] = {
    "append_batches": ("append", "append_with_spark"),
    "buffer_lifecycle": ("persist", "persist_with_spark", "replay"),
    "flush_staged_batches": ("flush", "flush_with_spark"),
    "ingest_write_buffer": ("ingest", "ingest_with_spark"),
    "maintain_collections": ("maintain",),
    "reconcile_collections": ("reconcile",),
    "run_sinks": ("run_sink", "load_with_spark"),
}


def see_running() -> Seen:
    """Ask Airflow how many of the tasks of ``WORKING`` run now; the facts are the numbers by DAG."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: PLC0415 -- not to parse a DAG

    counts = {
        dag_id: RuntimeTaskInstance.get_ti_count(dag_id, task_ids=list(task_ids), states=["running"])
        for dag_id, task_ids in WORKING.items()
    }
    running = {dag_id: count for dag_id, count in counts.items() if count}
    named = ", ".join(f"{count} of {dag_id}" for dag_id, count in running.items())
    return Seen({"running": running}, f"tasks ran ({named})" if running else "")


class NothingRunsSensor(WaitingSensor):
    """Wait until no task works on collections, unless the run was triggered without ``wait_for_tasks``.

    Politeness only: a task that begins afterwards is fenced, and starts over. The sensor looks once a minute and takes
    no slot in between; only workers can ask Airflow, so there is no trigger.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(deferrable=False, **kwargs)

    def execute(self, context: Context) -> Facts:
        if not context["params"].get("wait_for_tasks", True):
            return {}
        return super().execute(context)

    def look(self, before: Facts | None) -> Seen:
        return see_running()
