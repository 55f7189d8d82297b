"""The operator that keeps one storage worker alive for the time of a task, and tells Airflow's metrics how it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.observability import stats

from tidemark.errors import Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.orchestration.connections import process_environment, source_connections
from tidemark.orchestration.preflight import load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, application_failure, ending_task
from tidemark.settings import Settings
from tidemark.storage.processes.supervision import LOOK_S, Supervision
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from airflow.sdk import Context

METRICS_S: Final = 10.0
GRACE_S: Final = 20.0  # for the steps in hand when the task is killed


class StorageWorkerOperator(BaseOperator):
    """Run one storage worker until its time is over, nothing is left to do, or the next run's worker took over.

    The worker is a process of its own: one that dies is started again at once, without the scheduler. Killing the task
    asks the worker to end, and kills it after 20 seconds; what it had in hand is in no ledger, and comes again.

    Args:
        worker: The index, from 0 on. (templated)
        workers: How many there are. (templated)
        minutes: The time of the worker. (templated)
        until_drained: Whether the worker ends once nothing waits any more. (templated)
    """

    template_fields = ("worker", "workers", "minutes", "until_drained")

    def __init__(self, *, worker: Any, workers: Any, minutes: Any, until_drained: Any = False, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.worker, self.workers, self.minutes, self.until_drained = worker, workers, minutes, until_drained
        self._supervision: Supervision | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        with ending_task():
            settings = load_checked_settings()
            environment = process_environment(os.environ)
            environment |= source_connections(settings, environment)
        index, until_drained = int(self.worker), str(self.until_drained).lower() == "true"
        arguments = ["--for", f"{int(self.minutes)}m", "--run", str(context["run_id"])]
        arguments += ["--until-drained"] if until_drained else []
        self._supervision = supervision = Supervision(
            settings, [index], int(self.workers), arguments, environment=environment, in_own_session=True
        )
        supervision.begin()
        measured_s = time.monotonic()
        while supervision.look():
            time.sleep(LOOK_S)
            if time.monotonic() - measured_s >= METRICS_S:
                measured_s = time.monotonic()
                send_metrics(settings, index)
        code = supervision.end(grace_s=GRACE_S)
        if code is not ExitCode.OK:
            raise application_failure(code, None, may_retry=True) or RuntimeError(code)
        return {"worker": index, "outcome": "ok"}

    def on_kill(self) -> None:
        if self._supervision is not None:
            self._supervision.end(grace_s=GRACE_S)


def send_metrics(settings: Settings, index: int) -> None:
    """Send the gauges of the objects that worker ``index`` leads; a database that is away leaves a gap."""
    try:
        objects: Iterable[Mapping[str, Any]] = read_view(settings)["objects"]
    except Unreachable:
        return
    for each in objects:
        if each["holder"] == index:
            tags = {"object": each["name"], "worker": str(index)}
            for gauge in ("lag_ms", "behind_ms", "waiting", "rows", "rounds"):
                if each[gauge] is not None:
                    stats.gauge(f"tidemark.storage.{gauge}", each[gauge], tags=tags)
