"""The operator that keeps one storage worker alive for the time of a task, and tells Airflow's metrics how it is."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats

from tidemark.errors import Unreachable
from tidemark.exit_codes import PASSING, ExitCode
from tidemark.orchestration.connections import process_environment, source_connections
from tidemark.orchestration.preflight import load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ApplicationLost, ending_task
from tidemark.settings import Settings
from tidemark.storage.processes.supervision import LOOK_S, Supervision
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from airflow.sdk import Context

METRICS_S: Final = 10.0
GRACE_S: Final = 20.0  # for the steps in hand when the task is killed
GAUGES: Final = ("lag_ms", "behind_ms", "waiting", "rows", "rounds")
# A worker waits for stores by itself, so that these end its start only. BUG comes after several deaths in a row.
_TRY_AGAIN: Final = PASSING | {ExitCode.BUG}


class StorageWorkerOperator(BaseOperator):
    """Run one storage worker until its time is over, nothing is left to do, or the next run's worker took over.

    The worker is a process of its own: one that dies is started again at once, without the scheduler. Killing the task
    asks the worker to end, and kills it after 20 seconds. Airflow itself kills the task after five: the worker then
    ends without it, after the step in hand. What was in hand and is in no ledger comes again.

    Args:
        worker: The index, from 0 on. (templated)
        workers: How many there are. (templated)
        minutes: The time of the worker. (templated)
        until_drained: Whether the worker ends once nothing waits any more. (templated)
        run_name: The name under which ``WorkersSensor`` finds the worker. (templated)
    """

    template_fields = ("worker", "workers", "minutes", "until_drained", "run_name")

    def __init__(
        self,
        *,
        worker: Any,
        workers: Any,
        minutes: Any,
        until_drained: Any = False,
        run_name: str = "{{ run_id }}",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.worker, self.workers, self.minutes, self.until_drained = worker, workers, minutes, until_drained
        self.run_name = run_name
        self._is_killed = False

    def execute(self, context: Context) -> None:
        index, is_until_drained = int(self.worker), str(self.until_drained).lower() == "true"
        with ending_task():
            settings = load_checked_settings()
            environment = process_environment(os.environ)
            environment |= source_connections(settings, environment)
        arguments = ["--run", self.run_name, *(["--until-drained"] if is_until_drained else [])]
        seconds = 60 * int(self.minutes)
        supervision = Supervision(
            settings, [index], int(self.workers), seconds, arguments, environment=environment, in_own_session=True
        )
        code = self._supervise(supervision, settings, index)
        if self._is_killed:
            raise ApplicationLost("the task was killed", hint="its worker ended, and another try starts it again")
        if code in _TRY_AGAIN:
            raise ApplicationLost(
                f"storage worker {index} ended with exit code {int(code)}",
                hint="the log above says why it died; the other workers have taken over what it had in hand",
            )
        if code is not ExitCode.OK:
            raise AirflowFailException(
                f"storage worker {index} ended with exit code {int(code)} ({code.name}): see the log above"
            )

    def _supervise(self, supervision: Supervision, settings: Settings, index: int) -> ExitCode:
        """Keep the worker alive until it ends by itself, or the task is killed, or its time is over."""
        measured_s = time.monotonic()
        try:
            supervision.begin()
            while not self._is_killed and supervision.look():
                time.sleep(LOOK_S)
                if time.monotonic() - measured_s >= METRICS_S:
                    measured_s = time.monotonic()
                    send_metrics(settings, index)
        finally:
            code = supervision.end(grace_s=GRACE_S)
        return code

    def on_kill(self) -> None:
        """Let ``execute`` end: it goes on after the signal, and nobody else may touch its child meanwhile."""
        self._is_killed = True


def send_metrics(settings: Settings, index: int) -> None:
    """Send the gauges of the objects that worker ``index`` leads; a database that is away leaves a gap."""
    try:
        objects = read_view(settings)["objects"]
    except Unreachable:
        return
    for each in objects:
        if each["holder"] == index:
            tags = {"object": each["name"], "worker": str(index)}
            for gauge in GAUGES:
                if each[gauge] is not None:
                    stats.gauge(f"tidemark.storage.{gauge}", each[gauge], tags=tags)
