"""A writer that could still publish after a switch to read-only: searched for in schedules across a flip of the truth.

A writer takes the token and reads the mode; a switch writes the mode and raises the token; an open migrates or rolls
back, step by step; and all of them get in each other's way, between the two looks of one read, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.memory_back_ends import MemoryEnd, memory_catalog
from tests.support.homes import MIGRATE, ROLLBACK
from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import CatalogModes
from tidemark.catalog.items.kinds import DEPLOYMENT
from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import PROTOCOL
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import mode_of
from tidemark.errors import Fenced, StaleState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow  # stores that are really written, again and again

SCHEDULES = 300
WRITE, RAISE = "write", "raise"


@dataclass
class World:
    """A collection's token, and the catalog: led, read-write, on the side that ``direction`` leaves."""

    direction: Direction
    token: int = 0
    stash: MemoryEnd = field(default_factory=lambda: MemoryEnd("stash"))
    persist: MemoryEnd = field(default_factory=lambda: MemoryEnd("persist"))
    is_switched: bool = False
    interruption: Callable[[], None] | None = None  # what comes in between after each look of whoever reads

    def __post_init__(self) -> None:
        before = ROLLBACK if self.direction is MIGRATE else MIGRATE
        memory_catalog(self.stash, self.persist).open(before).close()
        self.modes().switch(Mode.READ_WRITE, who="a test", why="")
        self.opening = Opening(direction=self.direction)
        self.stash.looked = self.persist.looked = self.interrupt

    def interrupt(self) -> None:
        interruption, self.interruption = self.interruption, None  # which looks, too, and is not interrupted itself
        if interruption is not None:
            interruption()
            self.interruption = interruption

    def modes(self) -> CatalogModes:
        return CatalogModes(Membership(memory_catalog(self.stash, self.persist)))

    def write_mode(self) -> None:
        try:
            self.modes().switch(Mode.READ_ONLY, who="a test", why="")
        except (StaleState, Fenced):
            return  # whoever asked for it is told, and asks again
        self.is_switched = True

    def raise_token(self) -> None:
        self.token += self.is_switched

    def take_step(self, position: int) -> None:
        step = PROTOCOL[self.direction][position]
        if step.applies(self.opening):
            self.opening = step.run(memory_catalog(self.stash, self.persist).ends, self.opening)

    def events(self, order: tuple[str, str], random: Random) -> Iterator[Callable[[], None]]:
        """The switch and the open, merged at random."""
        switch = [{WRITE: self.write_mode, RAISE: self.raise_token}[each] for each in order]
        steps = [lambda at=at: self.take_step(at) for at in range(len(PROTOCOL[self.direction]))]
        places = set(random.sample(range(len(steps) + 2), 2))
        merged = (switch.pop(0) if at in places else steps.pop(0) for at in range(len(steps) + 2))
        return iter(list(merged))


def reads_of_truth(world: World) -> Mode:
    return mode_of(world.modes().read(), 1)


def reads_of_the_stash_alone(world: World) -> Mode:
    """A reader that takes the stash for the truth, whatever its tombstone says."""
    [text] = world.stash.head().deployments.values()
    return DEPLOYMENT.parse_value(text).mode


def may_publish_in_the_end(
    world: World,
    random: Random,
    *,
    read: Callable[[World], Mode] = reads_of_truth,
    reads_first: bool = False,
    order: tuple[str, str] = (WRITE, RAISE),
) -> bool:
    """Run one schedule to its end; whether a writer that was told *read-write* still holds the token."""
    rest = world.events(order, random)

    def others() -> None:
        for _ in range(random.choice((0, 0, 1, 2, 5, 12))):
            if event := next(rest, None):
                event()

    def joined() -> int:
        others()
        return world.token

    def mode() -> Mode | None:
        others()
        world.interruption = others
        try:
            return read(world)
        except (StaleState, Fenced):
            return None  # it is told, and starts over
        finally:
            world.interruption = None

    told, held = (mode(), joined()) if reads_first else (joined(), mode())[::-1]
    for event in rest:
        event()
    return world.is_switched and told is Mode.READ_WRITE and held == world.token


def count_violations(direction: Direction, **more: object) -> int:
    random = Random(7)  # noqa: S311 - the same schedules each time
    return sum(may_publish_in_the_end(World(direction), random, **more) for _ in range(SCHEDULES))  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_no_writer_publishes_after_the_switch(direction: Direction) -> None:
    assert count_violations(direction) == 0


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
@pytest.mark.parametrize(
    "wrong",
    [{"reads_first": True}, {"order": (RAISE, WRITE)}],
    ids=["mode read before the token", "token raised before the mode"],
)
def test_the_other_orders_are_found_to_be_wrong(direction: Direction, wrong: dict[str, object]) -> None:
    assert count_violations(direction, **wrong) > 0


def test_a_reader_that_knows_the_stash_alone_is_found_to_be_wrong() -> None:
    assert count_violations(MIGRATE, read=reads_of_the_stash_alone) > 0
