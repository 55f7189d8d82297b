"""The sensor that waits until a deployment is ready to lead: it tells why not, and does not wait if it is forced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from tidemark.clock import SystemClock
from tidemark.collections.system.recorder import record_run
from tidemark.orchestration.sensors.caught_up import CaughtUpSensor

if TYPE_CHECKING:
    from tests.support.homes import Home


@pytest.fixture
def new(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Deployment 2 beside deployment 1, which leads."""
    home.declare_reader()
    home.send_rows(0, 1)
    home.clock.step(SystemClock().now_ms() - 120_000 - home.clock.now_ms())
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    return home.of_generation(2)


def sensor(**arguments: Any) -> CaughtUpSensor:
    return CaughtUpSensor(task_id="wait_until_caught_up", timeout=60, **arguments)


def test_it_waits_until_the_runs_of_the_deployment_went_well(new: Home, context: Any) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(poll_seconds=0.5).execute(context)
    assert deferred.value.trigger.serialize() == ("tidemark_triggers.CaughtUpTrigger", {"poll_seconds": 0.5})
    with pytest.raises(AirflowSensorTimeout, match="events: no run of this deployment has looked at it yet"):
        sensor().execute_complete(context, {}, 0)
    record_run(new.deployment, new.ingest_all(), clock=new.clock)
    assert sensor().execute_complete(context, {}, 0)["state"] == "ready-to-promote"


def test_whoever_forces_it_does_not_wait(new: Home, context: Any) -> None:
    assert sensor(force="True").execute(context)["state"] == "initializing"
    assert new.branches() == set()


def test_a_deployment_that_was_replaced_fails_at_once(new: Home, context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new.open()
    monkeypatch.setenv("TIDEMARK_GENERATION", "1")
    with pytest.raises(AirflowFailException, match="FencedByGeneration"):
        sensor().execute(context)
