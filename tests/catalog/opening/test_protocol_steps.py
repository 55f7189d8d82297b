"""Which steps stand in which list, and that a step that writes never touches the truth, wherever it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.migration.copy import _COPY
from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    CLEAR_TOMBSTONE,
    FENCE,
    FENCE_STASH,
    JOIN,
    PROTOCOL,
    READ_PERSIST,
    READ_STASH,
    SET_TOMBSTONE,
    WRITE_PERSIST,
    WRITE_STASH,
)

if TYPE_CHECKING:
    from tidemark.catalog.opening.opening import Step

MIGRATES = {READ_STASH, WRITE_PERSIST, SET_TOMBSTONE}
ROLLS_BACK = {READ_PERSIST, WRITE_STASH}
REVIVES = {CLEAR_TOMBSTONE}
STEPS_OF = {Direction.MIGRATE: MIGRATES, Direction.ROLLBACK: ROLLS_BACK, Direction.EMERGENCY: REVIVES}
CHANGES = MIGRATES | ROLLS_BACK | REVIVES


@pytest.mark.parametrize("direction", Direction)
def test_a_list_holds_the_steps_of_its_direction_alone(direction: Direction) -> None:
    assert set(PROTOCOL[direction]) & CHANGES == STEPS_OF[direction]
    assert set(_COPY.get(direction, ())) <= STEPS_OF[direction]


def test_the_fences_come_first_and_the_announcement_last() -> None:
    for direction in (Direction.MIGRATE, Direction.ROLLBACK):
        assert PROTOCOL[direction][: len(FENCE)] == FENCE
        assert PROTOCOL[direction][-1] is ANNOUNCE
    assert PROTOCOL[Direction.EMERGENCY] == (FENCE_STASH, CLEAR_TOMBSTONE, ANNOUNCE)
    assert not set(JOIN) & {*CHANGES, *FENCE}, "a task that joins changes nothing"


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("step", [READ_STASH, WRITE_PERSIST, SET_TOMBSTONE], ids=lambda step: step.name)
def test_the_persist_catalog_is_replaced_only_while_it_is_garbage(step: Step, direction: Direction) -> None:
    assert not step.applies(Opening(direction=direction, tombstone=True))
    assert step.applies(Opening(direction=direction, tombstone=False))
    assert step.applies(Opening(direction=direction, tombstone=None)), "a new stash is the truth"


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("step", [READ_PERSIST, WRITE_STASH], ids=lambda step: step.name)
def test_the_stash_is_replaced_only_while_it_is_garbage(step: Step, direction: Direction) -> None:
    assert step.applies(Opening(direction=direction, tombstone=True))
    assert not step.applies(Opening(direction=direction, tombstone=False))
    assert not step.applies(Opening(direction=direction, tombstone=None))
