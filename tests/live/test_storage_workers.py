"""A real scheduler keeps storage workers alive: the next run takes over without a gap, and a killed worker is back."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.conftest import RUN_SECONDS, WORKERS
from tests.live.task_logs import said
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_airflow.client import AirflowClient
    from tools.local_airflow.standalone import Standalone

pytestmark = pytest.mark.live

NAME = "arrivals"
LONGEST_GAP_MS = 8_000  # between two commits, while a worker is killed and tasks start; 3 s and less were seen


class Sending(threading.Thread):
    """Sends rows to both sequencers of a file buffer all the time, until it is told to stop."""

    def __init__(self, home: Home) -> None:
        super().__init__(daemon=True)
        self.home, self.ends = home, threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.1):
            for sequencer_id in range(2):
                self.home.send_rows(sequencer_id, 5)

    def finish(self) -> None:
        self.ends.set()
        self.join()


@pytest.fixture
def declared(installation: Home, tmp_path: Path) -> Iterator[Home]:
    """A collection of its own, in the one installation."""
    found = Home(installation.settings, tmp_path)
    found.clock = SystemClock()  # type: ignore[assignment]  # the workers have this one
    assert found.buffer.logs, "made now: workers may come before the first row"
    found.declare_reader(NAME, source={"every": "1s"})
    yield found
    objects = found.deployment.objects
    objects.drop(objects.look([NAME]))


def processes(home: Home) -> dict[int, int]:
    """Return the numbers of the processes of the workers that run, by index."""
    return {
        each["worker"]: int(each["process"].rpartition(":")[2])
        for each in read_view(home.settings)["workers"]
        if each["state"] == "running"
    }


def task_states(client: AirflowClient, run_id: str) -> dict[str, str]:
    return {task: str(instance["state"]) for task, instance in client.tasks(WORKERS, run_id).items()}


def commit_times_ms(home: Home) -> list[int]:
    """Return when rows were committed, which comes after the commit of the empty collection."""
    return [entry.timestamp_ms for entry in home.shard(NAME).load().table.metadata.snapshot_log][1:]


def begin(client: AirflowClient, home: Home, **conf: Any) -> tuple[str, dict[int, int]]:
    """Trigger a run, and wait until its workers have come, whoever ran before; return its id and their processes."""
    before = processes(home)

    def look() -> dict[int, int]:
        found = processes(home)
        return found if len(found) == 2 and not {*found.values()} & {*before.values()} else {}

    run_id = client.trigger(WORKERS, conf={"workers": 2, "minutes": 5, **conf})
    return run_id, client.wait_until(look, what="the workers of the run", timeout_s=RUN_SECONDS)


def test_runs_hand_over_without_a_gap_and_a_killed_worker_is_back(
    client: AirflowClient, airflow: Standalone, declared: Home
) -> None:
    client.unpause(WORKERS)
    sending = Sending(declared)
    sending.start()
    try:
        first, before = begin(client, declared)
        client.wait_until(lambda: declared.ids(NAME), what="the first rows", timeout_s=60)
        client.wait_until(
            lambda: task_states(client, first)["watch"] == "deferred", what="the watch in the triggerer", timeout_s=60
        )
        os.kill(before[1], signal.SIGKILL)
        killed_ms = declared.clock.now_ms()
        client.wait_until(
            lambda: {*processes(declared)} == {0, 1} and processes(declared)[1] != before[1],
            what="the worker that was killed",
            timeout_s=60,
        )
        second, _ = begin(client, declared)
        handed_over_ms = declared.clock.now_ms()
        assert client.wait(WORKERS, first, timeout_s=RUN_SECONDS) == "success"
        assert task_states(client, first) == {
            "wait_until_led": "success", "plan_workers": "success", "watch": "success",
            "work[0]": "success", "work[1]": "success",
        }  # fmt: skip
        told = said(airflow.home, WORKERS, first, "work")
        assert "storage worker 1 died (-9)" in told
        assert all(f"storage worker {index}: a successor took over" in told for index in range(2))
    finally:
        sending.finish()

    last, _ = begin(client, declared, until_drained=True)
    for run_id in (second, last):
        assert client.wait(WORKERS, run_id, timeout_s=RUN_SECONDS) == "success"
    assert declared.ids(NAME) == list(range(declared.sent))
    assert not declared.shard(NAME).load().staged_branches
    times = commit_times_ms(declared)
    assert times[0] < killed_ms < handed_over_ms < times[-1]
    assert max(later - earlier for earlier, later in pairwise(times)) <= LONGEST_GAP_MS
    states = {each["state"] for each in read_view(declared.settings)["workers"]}
    assert states == {"ended: nothing was left to do"}
