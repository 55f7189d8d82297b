from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSensorTimeout, TaskDeferred

from tests.support.clock import SteppedClock
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import set_mode
from tidemark.errors import Unreachable
from tidemark.iceberg.shards import Shards
from tidemark.orchestration.sensors.writable import WritableSensor
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT: Any = {"ti": SimpleNamespace(get_first_reschedule_date=lambda _context: None)}


@pytest.fixture
def settings(installation: Path) -> Settings:
    installation.mkdir()
    return Settings.load({"TIDEMARK_HOME": str(installation)})


def switch(settings: Settings, mode: Mode) -> None:
    deployment = deployment_of(settings, clock=SteppedClock(1_000))
    set_mode(Shards.connect(settings), deployment, mode, who="tests", why="a test")


def sensor(**arguments: Any) -> WritableSensor:
    return WritableSensor(task_id="wait", timeout=60, **arguments)


def later() -> int:
    return SystemClock().now_ms() + 30_000


@pytest.mark.parametrize("deferrable", [True, False])
def test_open_gate_needs_no_trigger(settings: Settings, *, deferrable: bool) -> None:
    for expected_since in (0, 1_000):
        seen = sensor(deferrable=deferrable).execute(CONTEXT)
        assert (seen["mode"], seen["since"]) == ("read-write", expected_since)
        switch(settings, Mode.READ_WRITE)


def test_closed_gate_is_watched_by_the_trigger(settings: Settings) -> None:
    switch(settings, Mode.READ_ONLY)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(poll_seconds=0.5).execute(CONTEXT)
    assert deferred.value.trigger.serialize() == ("tidemark_triggers.WritableTrigger", {"poll_seconds": 0.5})
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout is not None
    assert 59 < deferred.value.timeout.total_seconds() <= 60


def test_event_is_not_believed_but_looked_at_again(settings: Settings) -> None:
    switch(settings, Mode.READ_ONLY)
    with pytest.raises(TaskDeferred) as again:
        sensor().execute_complete(CONTEXT, {"mode": "read-write"}, later())
    assert again.value.timeout is not None
    assert again.value.timeout.total_seconds() <= 30, "waiting again does not make the whole wait longer"
    switch(settings, Mode.READ_WRITE)
    assert sensor().execute_complete(CONTEXT, {"mode": "read-write"}, later())["mode"] == "read-write"


def test_wait_is_bounded(settings: Settings) -> None:
    switch(settings, Mode.READ_ONLY)
    with pytest.raises(AirflowSensorTimeout, match="stayed read-only"):
        sensor().execute_complete(CONTEXT, {}, 1_000)


def test_without_a_triggerer_it_is_scheduled_again(settings: Settings) -> None:
    switch(settings, Mode.READ_ONLY)
    waiting = sensor(deferrable=False)
    assert (waiting.mode, waiting.poke_interval) == ("reschedule", 60)
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(CONTEXT)


def test_replaced_deployment_fails_at_once(settings: Settings, installation: Path) -> None:
    newer = Settings.load({"TIDEMARK_HOME": str(installation), "TIDEMARK_GENERATION": "2"})
    switch(newer, Mode.READ_WRITE)
    with pytest.raises(AirflowFailException, match=r"FencedByGeneration, exit code 77.*stop this one"):
        sensor().execute(CONTEXT)


def test_newer_deployment_waits_until_it_leads(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, installation: Path
) -> None:
    switch(settings, Mode.READ_WRITE)
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    with pytest.raises(TaskDeferred):
        sensor().execute(CONTEXT)
    switch(Settings.load({"TIDEMARK_HOME": str(installation), "TIDEMARK_GENERATION": "2"}), Mode.READ_WRITE)
    assert sensor().execute(CONTEXT)["generation"] == 2


def test_catalog_that_does_not_answer_is_asked_again_by_a_retry(settings: Settings) -> None:
    settings.catalog_path.mkdir()
    with pytest.raises(Unreachable):
        sensor().execute(CONTEXT)
