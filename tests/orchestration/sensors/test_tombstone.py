from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSensorTimeout, TaskDeferred

from tests.support.homes import Home
from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import ANNOUNCE, PROTOCOL, SET_TOMBSTONE
from tidemark.clock import SystemClock
from tidemark.errors import NotPossible, Unreachable
from tidemark.orchestration.sensors.leader import LedSensor
from tidemark.orchestration.sensors.tombstone import TombstoneSensor
from tidemark.orchestration.sensors.tombstone_reader import SeenTombstone, check_transition

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT: Any = {"ti": SimpleNamespace(get_first_reschedule_date=lambda _context: None)}


def sensor(*, wanted: bool = True, **arguments: Any) -> TombstoneSensor:
    return TombstoneSensor(task_id="wait", wanted=wanted, timeout=60, **arguments)


def later() -> int:
    return SystemClock().now_ms() + 30_000


def deferred(waiting: TombstoneSensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        waiting.execute(CONTEXT)
    return caught.value


@pytest.mark.parametrize("deferrable", [True, False])
def test_open_gate_needs_no_trigger_and_tells_the_epoch(home: Home, *, deferrable: bool) -> None:
    epoch = home.open(Direction.MIGRATE)
    seen = sensor(deferrable=deferrable).execute(CONTEXT)
    assert seen == {"tombstone": True, "epoch": epoch, "truth": "persist"}
    epoch = home.open(Direction.ROLLBACK)
    assert sensor(wanted=False, deferrable=deferrable).execute(CONTEXT)["epoch"] == epoch


def test_unset_is_not_false(home: Home) -> None:
    """The stash is the truth in both cases, but only one of them comes after a migration."""
    epoch = home.open(Direction.ROLLBACK)
    waiting = deferred(sensor(wanted=False, poll_seconds=0.5))
    assert waiting.trigger.serialize() == (
        "tidemark_triggers.TombstoneTrigger",
        {"wanted": False, "seen": {"tombstone": None, "epoch": epoch, "truth": "stash"}, "poll_seconds": 0.5},
    )
    assert waiting.method_name == "execute_complete"
    assert waiting.timeout is not None
    assert 59 < waiting.timeout.total_seconds() <= 60


@pytest.mark.parametrize("deferrable", [True, False])
def test_unset_is_as_good_as_false_after_a_rollback(home: Home, *, deferrable: bool) -> None:
    epoch = home.open(Direction.ROLLBACK)
    seen = sensor(wanted=False, or_unset=True, deferrable=deferrable).execute(CONTEXT)
    assert seen == {"tombstone": None, "epoch": epoch, "truth": "stash"}


def test_it_gates_what_comes_between_the_flip_and_the_announcement(home: Home) -> None:
    home.open(Direction.ROLLBACK)
    steps = PROTOCOL[Direction.MIGRATE]
    copied = home.run_steps(steps[: steps.index(SET_TOMBSTONE)], Opening(direction=Direction.MIGRATE))
    led = LedSensor(task_id="wait_until_led")
    deferred(sensor())
    flipped = home.run_steps([SET_TOMBSTONE], copied)
    assert sensor().execute(CONTEXT)["truth"] == "persist"
    with pytest.raises(TaskDeferred):
        led.execute(CONTEXT)
    home.run_steps([ANNOUNCE], flipped).close()
    assert led.execute(CONTEXT) == {"truth": "persist", "epoch": flipped.truth.epoch, "is_led": True}


def test_a_stash_that_was_never_opened_is_not_waited_for(home: Home) -> None:
    with pytest.raises(AirflowFailException, match=r"Uninitialized, exit code 76: the stash was never opened"):
        sensor().execute(CONTEXT)


def test_event_is_not_believed_but_looked_at_again(home: Home) -> None:
    home.open(Direction.ROLLBACK)
    kwargs = deferred(sensor()).kwargs
    assert kwargs is not None
    event = {"tombstone": True, "epoch": 9, "truth": "persist"}
    with pytest.raises(TaskDeferred) as again:
        sensor().execute_complete(CONTEXT, event, later(), kwargs["seen"])
    assert again.value.timeout is not None
    assert again.value.timeout.total_seconds() <= 30, "waiting again does not make the whole wait longer"
    epoch = home.open(Direction.MIGRATE)
    assert sensor().execute_complete(CONTEXT, event, later(), kwargs["seen"])["epoch"] == epoch


def test_wait_is_bounded(home: Home) -> None:
    home.open(Direction.ROLLBACK)
    with pytest.raises(AirflowSensorTimeout, match="stayed None"):
        sensor().execute_complete(CONTEXT, {}, 1_000, {"tombstone": None, "epoch": 2, "truth": "stash"})


def test_without_a_triggerer_it_is_scheduled_again(home: Home) -> None:
    home.open(Direction.ROLLBACK)
    waiting = sensor(deferrable=False)
    assert (waiting.mode, waiting.poke_interval) == ("reschedule", 60)
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(CONTEXT)


def test_a_stash_that_was_restored_meanwhile_fails_at_once(home: Home) -> None:
    home.open(Direction.ROLLBACK)
    for facts in ({"tombstone": None, "epoch": 99}, {"tombstone": True, "epoch": 1}, {"tombstone": False, "epoch": 1}):
        with pytest.raises(AirflowFailException, match=r"NotPossible, exit code 76.*restored"):
            sensor().execute_complete(CONTEXT, {}, later(), {**facts, "truth": "stash"})


@pytest.mark.parametrize("before", [None, False, True])
@pytest.mark.parametrize("after", [None, False, True])
@pytest.mark.parametrize("epochs", [-1, 0, 1])
def test_what_no_open_does_is_told_from_what_takes_time(
    *, before: bool | None, after: bool | None, epochs: int
) -> None:
    seen, now = SeenTombstone(before, 5), SeenTombstone(after, 5 + epochs)
    if epochs < 0 or (after is None and before is not None):
        with pytest.raises(NotPossible, match="went from epoch 5"):
            check_transition(seen, now)
    else:
        check_transition(seen, now)


def test_replaced_deployment_fails_at_once(home: Home) -> None:
    home.of_generation(2).open(Direction.ROLLBACK)
    with pytest.raises(AirflowFailException, match=r"FencedByGeneration, exit code 77.*stop this one"):
        sensor().execute(CONTEXT)


def test_stash_that_does_not_answer_is_asked_again_by_a_retry(home: Home, installation: Path) -> None:
    (installation / "stash.db").mkdir()
    with pytest.raises(Unreachable):
        sensor().execute(CONTEXT)
