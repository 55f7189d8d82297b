"""A random sample of the model's schedules, on real back ends: two openers, a leader and a task, any interleaving.

A soak draws a seed each time; the seed is part of every message, so that a failure can be run again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.support.exploration import draw_seed, is_soak
from tests.support.homes import Home, put
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import JOIN, PROTOCOL
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.catalog.opening.opening import Step

SCHEDULES = 3
BOTH = (Direction.MIGRATE, Direction.ROLLBACK)


class Actor:
    """One process: it takes its steps one at a time, then writes rows; once refused, it is gone."""

    def __init__(self, name: str, home: Home, opening: Opening, steps: Sequence[Step], writes: int) -> None:
        self.name, self.opening, self.writes = name, opening, writes
        self._home, self._steps = home, list(steps)

    @property
    def is_done(self) -> bool:
        return not self._steps and not self.writes

    def go_on(self) -> str | None:
        """Take the next step, or write a row and return it once it is acknowledged."""
        while self._steps and not self._steps[0].applies(self.opening):
            self._steps.pop(0)
        try:
            if self._steps:
                self.opening = run_steps(self._home.ends, self.opening, [self._steps.pop(0)])
                return None
            row = f"{self.name}-{self.writes}"
            self.writes -= 1
            put(self.opening.truth, row)
        except TidemarkError:
            self._steps, self.writes = [], 0
            return None
        return row


@pytest.mark.slow
def test_no_schedule_that_is_drawn_loses_a_write(any_home: Home) -> None:
    seed = draw_seed()
    chance = random.Random(seed)  # noqa: S311 - no secret
    acknowledged: set[str] = set()
    for number in range(SCHEDULES * 20 if is_soak() else SCHEDULES):
        leader_direction = chance.choice(BOTH)
        leading = any_home.catalog.open(leader_direction)
        actors = [
            Actor(f"{number}-leader", any_home, leading, (), 2),
            *(
                Actor(f"{number}-opener{place}", any_home, Opening(direction=each), PROTOCOL[each], 1)
                for place, each in enumerate(chance.choices(BOTH, k=2))
            ),
            Actor(f"{number}-task", any_home, Opening(direction=Direction.ROLLBACK), JOIN, 1),
        ]
        trace = [f"seed {seed}", f"led by {leader_direction}"]
        crashing = {actor.name: chance.choice([3, 6, 99, 99]) for actor in actors}  # a process that stops there
        while alive := [actor for actor in actors if not actor.is_done and crashing[actor.name]]:
            actor = chance.choice(alive)
            crashing[actor.name] -= 1
            row = actor.go_on()
            trace.append(f"{actor.name}: {row or actor.opening.direction}")
            if row is not None:
                acknowledged.add(row)
        for actor in actors:
            actor.opening.close()
        epochs = any_home.epochs()
        any_home.open()
        assert any_home.setting_names() == acknowledged, trace
        assert any_home.epochs() == (max(epochs) + 1,) * 2, trace
