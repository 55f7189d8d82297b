"""The watch of storage workers reads the board: who has begun, who runs, who was replaced, and who is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tests.support.storage_board import show
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.orchestration.sensors.workers import BEGUN_WITHIN_MS, LOST_MS, WorkersSensor, see_workers

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.orchestration.sensors.waiting import Facts, Seen
    from tidemark.settings import Settings

LONG_AGO_MS = 1_000


@pytest.fixture(autouse=True)
def _catalog(home: Home) -> None:
    home.shards.names()


def see(home: Home, before: Facts | None = None, workers: int = 2) -> Seen:
    return see_workers(home.settings, "run", workers=workers, minutes=1, before=before)


def grow_old(settings: Settings, by_ms: int) -> None:
    """Let as much time pass since all that is on the board was written."""
    with closing(sqlite3.connect(settings.catalog_path, isolation_level=None)) as database:
        database.execute("UPDATE tidemark_storage SET written_ms = written_ms - ?", (by_ms,))


def test_it_tells_workers_that_run_from_ended_and_replaced_ones(home: Home) -> None:
    assert see(home).obstacle == "workers [0, 1] have not begun"
    show(home.settings, 0, run="run")
    show(home.settings, 1, run="another")
    seen = see(home)
    assert (seen.facts["running"], seen.obstacle) == ([0], "workers [0] ran and workers [1] have not begun")
    show(home.settings, 1, run="run")
    seen = see(home, seen.facts)
    assert seen.obstacle == "workers [0, 1] ran"
    show(home.settings, 1, run="another")
    seen = see(home, seen.facts)
    assert seen.obstacle == "workers [0] ran", "worker 1 was replaced"
    show(home.settings, 0, run="run", ended="its time was over")
    assert see(home, seen.facts).obstacle == ""


def test_a_worker_that_was_replaced_before_it_was_seen_is_not_waited_for(home: Home) -> None:
    show(home.settings, 0, run="run before")
    show(home.settings, 1, run="run before")
    first = see(home)
    assert first.obstacle == "workers [0, 1] have not begun"
    for index in range(2):
        show(home.settings, index, run="the next", began_ms=first.facts["first_ms"] + 1)
    assert see(home, first.facts).obstacle == ""


def test_a_worker_in_whose_place_one_is_at_work_for_longer_is_not_waited_for(home: Home) -> None:
    show(home.settings, 0, run="another", until_ms=None)
    show(home.settings, 1, run="another", until_ms=1)
    assert see(home).obstacle == "workers [1] have not begun"


def sensor(home: Home, monkeypatch: pytest.MonkeyPatch) -> WorkersSensor:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.settings.home))
    return WorkersSensor(task_id="watch", workers="1", minutes="1", run_name="run", timeout=60)


def test_it_waits_in_the_triggerer_until_all_have_ended(
    home: Home, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(home.settings, 0, run="run")
    with pytest.raises(TaskDeferred) as deferred:
        sensor(home, monkeypatch).execute(context)
    path, arguments = deferred.value.trigger.serialize()
    seen = arguments.pop("seen")
    assert path == "tidemark_triggers.WorkersTrigger"
    assert arguments == {"run": "run", "workers": 1, "minutes": 1, "poll_seconds": 5.0}
    show(home.settings, 0, run="the next")
    ended = sensor(home, monkeypatch).execute_complete(context, seen, SystemClock().now_ms() + 60_000)
    assert (ended["seen"], ended["running"]) == ([0], []), "what was seen by the trigger is known"


def test_a_worker_that_is_silent_fails_the_watch(home: Home, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    show(home.settings, 0, run="run")
    grow_old(home.settings, LOST_MS + 1_000)
    with pytest.raises(AirflowFailException, match=r"workers \[0\] are silent for two minutes"):
        sensor(home, monkeypatch).execute(context)


def test_a_worker_that_does_not_begin_fails_the_watch(
    home: Home, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(home.settings, 1, run="another")
    seen = see(home).facts
    assert seen["late"] == []
    seen["able_ms"] -= BEGUN_WITHIN_MS + 1_000
    with pytest.raises(AirflowFailException, match=r"workers \[0\] have not begun within ten minutes"):
        sensor(home, monkeypatch).execute_complete(context, seen, SystemClock().now_ms() + 60_000)


@pytest.mark.slow  # stores that are really written
def test_no_worker_is_late_while_the_deployment_is_read_only(home: Home) -> None:
    show(home.settings, 1, run="another")
    home.switch(Mode.READ_ONLY)
    seen = see(home, {"able_ms": LONG_AGO_MS})
    assert (seen.facts["late"], seen.obstacle) == ([], "workers [0, 1] have not begun")
    assert seen.facts["able_ms"] > LONG_AGO_MS, "it may take its time once writing is allowed"
    assert see(home, {"first_ms": LONG_AGO_MS}).obstacle == "", "the time of those that never began is over"
