"""The first task of every DAG of collections: a catalog that is moved makes it wait, and not fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSensorTimeout, TaskDeferred

from tests.support.homes import MIGRATE, ROLLBACK
from tidemark.catalog.opening.protocol import FENCE_PERSIST, FENCE_STASH, SET_TOMBSTONE, WRITE_STASH
from tidemark.clock import SystemClock
from tidemark.errors import Unreachable
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.homes import Home
    from tidemark.catalog.opening.opening import Direction, Step


def sensor(**arguments: Any) -> LedSensor:
    return LedSensor(task_id="wait_until_led", **arguments)


@pytest.mark.parametrize("deferrable", [True, False])
def test_led_catalog_needs_no_trigger(home: Home, context: Any, *, deferrable: bool) -> None:
    nobody = {"truth": "stash", "epoch": None, "is_led": True}
    assert sensor(deferrable=deferrable).execute(context) == nobody, "the first task opens it"
    epoch = home.open(MIGRATE)
    seen = sensor(deferrable=deferrable).execute(context)
    assert seen == {"truth": "persist", "epoch": epoch, "is_led": True}


@pytest.mark.parametrize(
    ("direction", "step"),
    [(MIGRATE, FENCE_STASH), (MIGRATE, SET_TOMBSTONE), (ROLLBACK, FENCE_PERSIST), (ROLLBACK, WRITE_STASH)],
)
def test_catalog_that_is_moved_is_watched_by_the_trigger(
    home: Home, context: Any, direction: Direction, step: Step
) -> None:
    home.open(ROLLBACK if direction is MIGRATE else MIGRATE)
    home.die_after(direction, step)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(poll_seconds=0.5).execute(context)
    assert deferred.value.trigger.serialize() == ("tidemark_triggers.LedTrigger", {"poll_seconds": 0.5})
    assert deferred.value.timeout is not None
    assert timedelta(0) < deferred.value.timeout <= LONGEST_MOVE
    with pytest.raises(TaskDeferred):  # the event is not believed
        sensor().execute_complete(context, {"is_led": True}, SystemClock().now_ms() + 30_000)
    home.open()
    assert sensor().execute_complete(context, {}, SystemClock().now_ms())["is_led"]


def test_without_a_triggerer_it_is_scheduled_again(home: Home, context: Any) -> None:
    home.open(ROLLBACK)
    home.die_after(MIGRATE, FENCE_STASH)
    with pytest.raises(AirflowRescheduleException):
        sensor(deferrable=False).execute(context)


def test_end_of_the_wait_says_what_was_seen_last(home: Home, context: Any) -> None:
    epoch = home.open(ROLLBACK)
    home.die_after(MIGRATE, FENCE_STASH)
    message = f"nobody led the catalog, whose truth is the stash at epoch {epoch + 1}, for 60 s"
    # Airflow forgets the arguments of a deferral whose time is up.
    timed_out = {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
    with pytest.raises(AirflowSensorTimeout, match=message):
        sensor(timeout=60).resume_execution(TRIGGER_FAIL_REPR, timed_out, context)
    an_hour_ago = datetime.now(tz=UTC) - timedelta(hours=1)  # noqa: TID251 -- Airflow compares it with its own clock
    context["ti"] = SimpleNamespace(get_first_reschedule_date=lambda _context: an_hour_ago)
    with pytest.raises(AirflowSensorTimeout, match=message):
        sensor(timeout=60, deferrable=False).execute(context)
    home.open()
    assert sensor(timeout=60).resume_execution(TRIGGER_FAIL_REPR, timed_out, context)["is_led"], "late is not never"


def test_replaced_deployment_fails_at_once(home: Home, context: Any) -> None:
    home.of_generation(2).open(ROLLBACK)
    with pytest.raises(AirflowFailException, match=r"FencedByGeneration, exit code 77"):
        sensor().execute(context)


def test_stash_that_does_not_answer_is_asked_again_by_a_retry(home: Home, context: Any, installation: Path) -> None:
    (installation / "stash.db").mkdir()
    with pytest.raises(Unreachable):
        sensor().execute(context)
