"""The operator keeps a real worker alive, and takes it along when it ends; no scheduler is needed for that."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own
import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.conftest import settings_in
from tests.support.crash import start
from tests.support.homes import Home
from tests.support.storage_board import show
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.orchestration.retry_policy import ApplicationLost
from tidemark.orchestration.storage_worker import GRACE_S, StorageWorkerOperator, send_metrics
from tidemark.storage.dataflows.dataflow import News
from tidemark.storage.processes import supervision
from tidemark.storage.view import read_view
from tools.local_airflow.client import AirflowClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.orchestration.conftest import StatsdServer
    from tests.support.crash import Started

LOST_EXIT, ONE_MINUTE = 3, 1
wait_until = AirflowClient.wait_until


@pytest.fixture
def declared(installation: Path, tmp_path: Path) -> Home:
    installation.mkdir()
    found = Home(settings_in(installation), tmp_path)
    found.clock = SystemClock()  # type: ignore[assignment]  # the worker has this one
    found.declare_reader(source={"every": "1s"})
    found.send_rows(0, 1)
    return found


def operator(*, minutes: int = ONE_MINUTE, until_drained: bool = False) -> StorageWorkerOperator:
    return StorageWorkerOperator(
        task_id="work", worker=0, workers=1, minutes=minutes, until_drained=until_drained, run_name="run"
    )


def run_task() -> None:
    """Be the process of a task: Airflow's handler of SIGTERM calls ``on_kill``, and what was at work goes on."""
    work = operator(minutes=10)
    signal.signal(signal.SIGTERM, lambda _number, _frame: work.on_kill())
    try:
        work.execute({})
    except ApplicationLost:
        sys.exit(LOST_EXIT)


def worker_at_work(home: Home, *, but: int = 0) -> psutil.Process:
    """Wait for a worker that leads rounds, another one than the process ``but``; return its process."""

    def look() -> psutil.Process | None:
        view = read_view(home.settings)
        pids = [int(each["process"].rpartition(":")[2]) for each in view["workers"] if each["state"] == "running"]
        return psutil.Process(pids[0]) if view["objects"] and pids not in ([], [but]) else None

    found: psutil.Process = wait_until(look, what="a worker at work", timeout_s=60)
    return found


@pytest.fixture
def task(declared: Home) -> Iterator[Started]:
    started = start("", run_task)
    yield started
    started.signal(signal.SIGKILL)


@pytest.mark.slow  # processes that load the library
def test_a_worker_that_is_killed_is_back_and_the_end_of_the_task_is_its_end(declared: Home, task: Started) -> None:
    first = worker_at_work(declared)
    first.kill()
    second = worker_at_work(declared, but=first.pid)
    assert second.pid != first.pid
    declared.send_rows(1, 2)
    wait_until(lambda: declared.ids() == [0, 1, 2], what="the rows", timeout_s=30)

    task.signal(signal.SIGTERM)
    second.wait(GRACE_S)
    assert task.exit_code() == LOST_EXIT, "another try starts it again, on a machine that stays"
    (worker,) = read_view(declared.settings)["workers"]
    assert worker["state"] == "ended: it was asked to stop"


@pytest.mark.slow
def test_a_task_that_is_killed_leaves_no_worker(declared: Home, task: Started) -> None:
    worker = worker_at_work(declared)
    task.signal(signal.SIGKILL)
    worker.wait(GRACE_S)
    assert not declared.branches()


@pytest.mark.slow
def test_a_worker_that_never_comes_to_work_ends_the_task_which_is_tried_again(
    declared: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "MOST_DEATHS", 2)  # or the test would last 15 s longer
    monkeypatch.setenv("TIDEMARK_FAIL_POINT", "worker.joined")
    with pytest.raises(ApplicationLost, match="storage worker 0 ended with exit code 75"):
        operator().execute({})
    assert read_view(declared.settings)["workers"] == []


@pytest.mark.slow
def test_a_worker_of_an_older_deployment_ends_the_task_for_good(declared: Home) -> None:
    declared.of_generation(2).switch(Mode.READ_WRITE)
    with pytest.raises(AirflowFailException, match=r"exit code 77 \(FENCED\)"):
        operator().execute({})


def test_gauges_tell_how_the_objects_are_that_a_worker_leads(declared: Home, statsd: StatsdServer) -> None:
    news = News(upper=3, rounds=7, rows=8, waiting=9, lag_ms=10, behind_ms=11)
    dataflows = {"1": {"name": "events", "started_at": 0, **news.to_json()}}
    show(declared.settings, 0, "events", dataflows=dataflows)
    send_metrics(declared.settings, 0)
    of_events = {"rounds": 7, "rows": 8, "waiting": 9, "lag_ms": 10, "behind_ms": 11}
    assert statsd.received() == {
        f"tidemark.storage.{gauge},object=events,worker=0": f"{value}|g" for gauge, value in of_events.items()
    }
    send_metrics(declared.settings, 1)
    assert statsd.received() == {}, "each object is told once, by its leader"


def test_a_database_that_is_away_leaves_a_gap(declared: Home, statsd: StatsdServer) -> None:
    away = declared.settings.catalog_path.with_suffix(".away")
    declared.settings.catalog_path.rename(away)
    declared.settings.catalog_path.mkdir()
    send_metrics(declared.settings, 0)
    assert statsd.received() == {}
