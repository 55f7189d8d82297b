"""An open in several processes, as the tasks of a workflow are: killed, cleared, run twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    PROTOCOL,
    READ_PERSIST,
    READ_STASH,
    READ_TOMBSTONE,
    SET_TOMBSTONE,
    WRITE_PERSIST,
    WRITE_STASH,
)
from tidemark.catalog.opening.resume import Fences, resume
from tidemark.errors import FencedByEpoch, StaleState, UsageError

pytestmark = pytest.mark.slow  # stores that are really written, again and again

TASKS = {
    MIGRATE: [(READ_TOMBSTONE, READ_STASH, WRITE_PERSIST), (READ_TOMBSTONE, SET_TOMBSTONE), (READ_TOMBSTONE, ANNOUNCE)],
    ROLLBACK: [(READ_TOMBSTONE, READ_PERSIST, WRITE_STASH), (READ_TOMBSTONE, ANNOUNCE)],
}


def fence(home: Home, direction: Direction) -> Fences:
    """What the first task does, and hands on."""
    opening = home.run_steps(PROTOCOL[direction][:3], Opening(direction=direction))
    opening.close()
    return Fences.parse(json.loads(json.dumps(Fences.of(opening).to_json())))


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_each_task_goes_on_from_the_fences_and_may_be_run_again(home: Home, direction: Direction) -> None:
    home.open(ROLLBACK if direction is MIGRATE else MIGRATE, add=["row"])
    fences = fence(home, direction)
    for steps in TASKS[direction]:
        for _ in range(2):
            home.run_steps(steps, resume(home.ends, direction, fences)).close()
    assert (home.truth(), home.setting_names()) == ("persist" if direction is MIGRATE else "stash", {"row"})
    with home.catalog.join() as task:
        assert len(task.snapshot().of_kind(AUDIT_EVENT.name)) == (1 if direction is MIGRATE else 2)


def test_a_task_with_fences_of_before_another_open_is_told_to_start_over(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    fences = fence(home, MIGRATE)
    home.open(ROLLBACK)
    for stash_alone in (False, True):
        with pytest.raises(FencedByEpoch, match="somebody opened it since") as caught:
            resume(home.ends, MIGRATE, fences, stash_alone=stash_alone)
        assert "start over" in caught.value.hint
    assert home.setting_names() == {"row"}


@pytest.mark.parametrize("mark", ["stash_mark", "persist_mark"])
def test_the_same_epoch_of_a_back_end_that_was_made_anew_is_another_fence(home: Home, mark: str) -> None:
    home.open(ROLLBACK, add=["row"])
    fences = fence(home, MIGRATE)
    with pytest.raises(FencedByEpoch, match="dropped and made anew") as caught:
        resume(home.ends, MIGRATE, replace(fences, **{mark: "of another"}))
    assert "start over" in caught.value.hint


def test_what_goes_from_task_to_task_does_not_hold_the_nonce(home: Home) -> None:
    home.open(ROLLBACK)
    fences = fence(home, MIGRATE)
    stored = json.loads(next(iter(home.ends.stash.dump())))
    assert stored["table"] == "fence"
    assert stored["nonce"] not in json.dumps(fences.to_json())
    with pytest.raises(UsageError, match="no fences"):
        Fences.parse({"stash_epoch": 1})


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_a_copy_that_comes_after_everything_is_refused(home: Home, direction: Direction) -> None:
    """It was read before the flip, and would take away what tasks have written to the new truth."""
    home.open(ROLLBACK if direction is MIGRATE else MIGRATE, add=["row"])
    fences = fence(home, direction)
    copying = TASKS[direction][0]
    late = home.run_steps(copying[:2], resume(home.ends, direction, fences))
    for steps in TASKS[direction]:
        home.run_steps(steps, resume(home.ends, direction, fences)).close()
    with home.catalog.join() as task:
        put(task, "acknowledged")
    with pytest.raises(StaleState, match="led at epoch"):
        home.run_steps(copying[2:], late)
    home.run_steps(
        copying, resume(home.ends, direction, fences)
    ).close()  # cleared: it sees that there is nothing to do
    assert home.setting_names() == {"row", "acknowledged"}
