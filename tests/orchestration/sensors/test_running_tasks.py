"""What stands before the fence of a migration: running tasks may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from tidemark.orchestration.sensors.running_tasks import WORKING, NothingRunsSensor

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What Airflow answers: the number of running tasks by DAG."""
    counts: dict[str, int] = {}

    def count(dag_id: str, *, task_ids: list[str], states: list[str]) -> int:
        assert (tuple(task_ids), states) == (WORKING[dag_id], ["running"])
        return counts.get(dag_id, 0)

    answer: Callable[..., int] = staticmethod(count)
    monkeypatch.setattr(RuntimeTaskInstance, "get_ti_count", answer)
    return counts


def test_it_waits_while_a_task_runs(running: dict[str, int], context: Any, caplog: pytest.LogCaptureFixture) -> None:
    running["reconcile_collections"] = 1
    waiting = NothingRunsSensor(task_id="wait_for_tasks", timeout=60)
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(context)
    assert waiting.last_obstacle == "tasks ran (1 of reconcile_collections)"
    running.clear()
    assert waiting.execute(context) == {"running": {}}


def test_a_run_may_do_without(running: dict[str, int], context: Any) -> None:
    running["reconcile_collections"] = 1
    context["params"]["wait_for_tasks"] = False
    assert NothingRunsSensor(task_id="wait_for_tasks", timeout=60).execute(context) == {}
