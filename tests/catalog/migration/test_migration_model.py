"""Open, join and write the catalog in every order; nothing acknowledged is lost, and nothing else comes back.

Two openers of either direction, a leader that still writes, and a task that joins. The steps are those of
``tidemark.catalog.opening.protocol`` themselves; each way to get them wrong is tried too, and has to be found.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.catalog.model_back_ends import ModelBackEnd, ModelHandle, Stored, World, stored, unfenced
from tests.support.catalog.schedules import Process, Search, State, broken_promise
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK
from tidemark.catalog.items.kinds import LEADER_EPOCH, TOMBSTONE
from tidemark.catalog.opening.opening import Direction, Opening, Step, run_steps
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    FENCE,
    FENCE_PERSIST,
    FENCE_STASH,
    JOIN,
    PROTOCOL,
    READ_HEADS,
    READ_PERSIST,
    READ_TOMBSTONE,
    SET_TOMBSTONE,
    WRITE_PERSIST,
    WRITE_STASH,
)
from tidemark.errors import FencedByEpoch, NotPossible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidemark.catalog.opening.opening import BackEnds

pytestmark = pytest.mark.slow  # thousands of schedules of an in-memory model

SAFE = {**PROTOCOL, None: JOIN}
BOTH = (MIGRATE, ROLLBACK)
PAIRS = list(combinations_with_replacement(BOTH, 2))
TOMBSTONES = (None, False, True)


def start(
    openers: Iterable[Direction],
    *,
    tombstone: bool | None,
    tasks: int = 1,
    leader_writes: int = 1,
    persist: Stored | None = None,
) -> tuple[World, State]:
    """A world whose leader, at epoch 5, is alive; the other side holds garbage, or what ``persist`` says."""
    flag = {} if tombstone is None else {TOMBSTONE: int(tombstone)}
    truth_is_persist = tombstone is True
    stash = stored(5, ["stash-garbage"] if truth_is_persist else ["before"], **{**flag, LEADER_EPOCH: 5})
    announced = {LEADER_EPOCH: 5} if truth_is_persist else {LEADER_EPOCH: 4}
    if truth_is_persist:
        stash = stash._replace(config=type(stash.config)({**stash.config, LEADER_EPOCH: 4}))
    persist = persist or stored(5, ["before"] if truth_is_persist else ["persist-garbage"], **announced)
    world = World(stash, persist)
    end = ModelBackEnd(world, "persist" if truth_is_persist else "stash")
    handle = ModelHandle(end, 5)
    led = Opening(
        direction=MIGRATE if truth_is_persist else ROLLBACK,
        **{"persist_handle" if truth_is_persist else "stash_handle": handle},
        is_announced=True,
    )
    leader = Process("leader", led.direction, led, position=99, writes=leader_writes)
    opening = [Process(f"opener{n}", each, Opening(direction=each)) for n, each in enumerate(openers)]
    joining = [Process(f"task{n}", None, Opening(direction=ROLLBACK)) for n in range(tasks)]
    return world, State(world.state, (leader, *opening, *joining), frozenset({"before"}), 5)


def find(
    protocol: Mapping[Direction | None, Sequence[Step]], *openers: Direction, **more: Any
) -> tuple[list[str], Search]:
    """What leads to a broken promise, if anything does, and the search that looked for it."""
    run_twice = more.pop("run_twice", "")
    world, state = start(openers, **more)
    search = Search(protocol, world, run_twice)
    return search.find_violation(state), search


def find_anywhere(protocol: Mapping[Direction | None, Sequence[Step]], **more: Any) -> list[str]:
    """The first violation over all tombstones and pairs of directions."""
    for tombstone, openers in product(TOMBSTONES, PAIRS):
        if way := find(protocol, *openers, tombstone=tombstone, **more)[0]:
            return way
    return []


def open_alone(world: tuple[Stored, Stored], direction: Direction) -> Search:
    """Run one open from beginning to end and leave the search at the world after it."""
    search = Search(SAFE, World(*world))
    opening = Opening(direction=direction)
    for step in PROTOCOL[direction]:
        if step.applies(opening):
            opening = step.run(search.ends, opening)
    assert opening.is_announced
    return search


# -- the protocol as it is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tombstone", TOMBSTONES)
@pytest.mark.parametrize("openers", PAIRS)
def test_no_schedule_loses_a_write_and_whatever_is_left_can_be_opened(
    *, tombstone: bool | None, openers: tuple[Direction, Direction]
) -> None:
    way, search = find(SAFE, *openers, tombstone=tombstone, tasks=0, leader_writes=2)
    assert not way
    assert len(search.seen) > 1_000, "so few states cannot be all"
    for (world, acknowledged), direction in product(search.left, BOTH):
        after = State(open_alone(world, direction).world.state, (), acknowledged, 0)
        assert not broken_promise(after)
        assert (after.world[0].config.get(TOMBSTONE) == 1) is (direction is MIGRATE)
        epochs = [stored.epoch or 0 for stored in world]
        assert [stored.epoch for stored in after.world] == [max(epochs) + 1] * 2
        again = open_alone(after.world, direction).world.state
        assert [stored.rows for stored in again] == [stored.rows for stored in after.world]


@pytest.mark.parametrize("tombstone", [None, True])
def test_a_task_that_joins_in_the_middle_loses_nothing_either(*, tombstone: bool | None) -> None:
    assert not find(SAFE, MIGRATE, ROLLBACK, tombstone=tombstone)[0]


@pytest.mark.parametrize(("tombstone", "direction"), [(None, MIGRATE), (True, ROLLBACK), (True, MIGRATE)])
def test_an_open_whose_tasks_run_twice_loses_nothing(*, tombstone: bool | None, direction: Direction) -> None:
    """As when a scheduler lost sight of a task: both go on with the same tokens, one of them perhaps much later."""
    assert not find(SAFE, direction, tombstone=tombstone, run_twice="opener0")[0]


@pytest.mark.parametrize("openers", PAIRS)
def test_the_first_open_of_the_persist_catalog_leaves_nothing_of_its_own(openers: tuple[Direction, Direction]) -> None:
    assert not find(SAFE, *openers, tombstone=None, tasks=0, persist=Stored())[0]


# -- other ways that are safe too ----------------------------------------------------------------------------------


def with_steps(**steps: Sequence[Step]) -> Mapping[Direction | None, Sequence[Step]]:
    """The protocol with other lists of steps for some directions, by their names; ``join`` for tasks."""
    named = {(None if name == "join" else Direction(name)): each for name, each in steps.items()}
    return {**SAFE, **named}


def reordered(first: Step, second: Step) -> Mapping[Direction | None, Sequence[Step]]:
    """The protocol with two steps exchanged, wherever both are."""

    def exchange(steps: Sequence[Step]) -> Sequence[Step]:
        if not {first, second} <= set(steps):
            return steps
        other = {first: second, second: first}
        return [other.get(step, step) for step in steps]

    return {direction: exchange(steps) for direction, steps in SAFE.items()}


def replaced(
    old: Step, *new: Step, protocol: Mapping[Direction | None, Sequence[Step]] = SAFE
) -> Mapping[Direction | None, Sequence[Step]]:
    """The protocol with ``new`` in the place of one step."""
    return {
        direction: [each for step in steps for each in (new if step is old else (step,))]
        for direction, steps in protocol.items()
    }


def _write_stash_only(_ends: BackEnds, opening: Opening) -> Opening:
    return replace(opening, replaced=opening.stash.replace_all(opening.contents), contents=None)


def _revive_stash(_ends: BackEnds, opening: Opening) -> Opening:
    opening.stash.transact(lambda transaction: transaction.set_config(TOMBSTONE, 0))
    return replace(opening, tombstone=False)


def _if_persist_was_truth(opening: Opening) -> bool:
    return opening.tombstone is True


WRITE_STASH_ONLY = Step("write-stash-only", _write_stash_only, _if_persist_was_truth)
REVIVE_STASH = Step("revive-stash", _revive_stash, _if_persist_was_truth)


def test_fencing_the_persist_catalog_first_is_as_safe() -> None:
    assert not find_anywhere(reordered(FENCE_STASH, FENCE_PERSIST), tasks=0)


def test_rolling_back_in_two_transactions_data_first_is_as_safe() -> None:
    assert not find_anywhere(replaced(WRITE_STASH, WRITE_STASH_ONLY, REVIVE_STASH), tasks=0)


# -- the ways that are not: the search has to find them ------------------------------------------------------------


def _unfenced_tombstone(_ends: BackEnds, opening: Opening) -> Opening:
    value = unfenced(opening.stash).transact(lambda transaction: transaction.config(TOMBSTONE))
    return replace(opening, tombstone=None if value is None else bool(value))


def _unfenced_snapshot(step: Step, side: str) -> Step:
    def read(_ends: BackEnds, opening: Opening) -> Opening:
        return replace(opening, contents=unfenced(getattr(opening, side)).snapshot())

    return step._replace(run=read)


def _look_before_fencing(ends: BackEnds, opening: Opening) -> Opening:
    return replace(opening, tombstone=ends.stash.head().tombstone)


def _use_stash(_ends: BackEnds, opening: Opening) -> Opening:
    if opening.tombstone:
        raise NotPossible("the stash is retired")
    return opening


def _fence_persist_as_the_reference_says(ends: BackEnds, opening: Opening) -> Opening:
    assert opening.heads is not None
    handle = ends.persist.open(
        ends.mode, generation=1, clock=ends.clock, epoch_lower_bound=(opening.heads[0].epoch or 0) + 1
    )
    return replace(opening, persist_handle=handle)


def _fence_persist_whatever_it_comes_to(ends: BackEnds, opening: Opening) -> Opening:
    handle = ends.persist.open(ends.mode, generation=1, clock=ends.clock, epoch_lower_bound=opening.stash.epoch)
    return replace(opening, persist_handle=handle)


LOOK_FIRST = Step("look-first", _look_before_fencing)
UNFENCED_LOOK = READ_TOMBSTONE._replace(run=_unfenced_tombstone)
UNFENCED_READ = _unfenced_snapshot(READ_PERSIST, "persist")
STASH_ALONE = (FENCE_STASH, READ_TOMBSTONE, Step("use-stash", _use_stash), ANNOUNCE)
LOWER_BOUND = FENCE_PERSIST._replace(run=_fence_persist_as_the_reference_says)
UNEQUAL = FENCE_PERSIST._replace(run=_fence_persist_whatever_it_comes_to)


def loses_writes(protocol: Mapping[Direction | None, Sequence[Step]], *, tasks: int = 0) -> bool:
    way = find_anywhere(protocol, tasks=tasks)
    return bool(way) and way[-1].startswith("lost")


def test_flipping_a_rollback_before_the_data_are_in_place_loses_them() -> None:
    late = WRITE_STASH_ONLY._replace(applies=lambda opening: opening.contents is not None)
    assert loses_writes(replaced(WRITE_STASH, REVIVE_STASH, late))


def test_flipping_a_migration_before_the_data_are_in_place_loses_them() -> None:
    assert loses_writes(reordered(WRITE_PERSIST, SET_TOMBSTONE))


def reading_the_tombstone_after(place: int, look: Step) -> Mapping[Direction | None, Sequence[Step]]:
    """The protocol with ``look`` after that many of the first three steps."""
    fence = list(FENCE[:3])
    fence.insert(place, look)
    return with_steps(**{direction.value: [*fence, *PROTOCOL[direction][len(FENCE) :]] for direction in BOTH})


def test_reading_the_tombstone_before_both_fences_loses_writes() -> None:
    assert loses_writes(reading_the_tombstone_after(1, LOOK_FIRST))


@pytest.mark.parametrize(
    "changed",
    [reading_the_tombstone_after(2, READ_TOMBSTONE), replaced(READ_TOMBSTONE, UNFENCED_LOOK)],
    ids=["between the fences", "without a fence check"],
)
def test_reading_the_tombstone_otherwise_is_saved_by_epochs_that_have_to_be_equal_alone(
    changed: Mapping[Direction | None, Sequence[Step]],
) -> None:
    """Whoever was overtaken on the stash finds it out at the second fence, or is fenced there before anything moves."""
    assert not find_anywhere(changed, tasks=0)
    assert loses_writes(replaced(FENCE_PERSIST, UNEQUAL, protocol=changed))


@pytest.mark.parametrize("direction", BOTH)
def test_the_tombstone_is_read_after_both_fences_and_fenced_itself(direction: Direction) -> None:
    """What is safe by two reasons stays so if one of them is lost; no search would find that."""
    assert PROTOCOL[direction][: len(FENCE)] == (READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE)
    ends = Search(SAFE, start([], tombstone=None)[0]).ends
    opening = run_steps(ends, Opening(direction=direction), FENCE[:3])
    run_steps(ends, Opening(direction=direction), (FENCE_STASH,))
    with pytest.raises(FencedByEpoch):
        run_steps(ends, opening, (READ_TOMBSTONE,))


def test_reading_the_data_without_a_fence_check_is_saved_by_fencing_the_stash_first_alone() -> None:
    """The flip is fenced by the stash, and who fences the stash later cannot lead on the persist catalog earlier."""
    unchecked = replaced(READ_PERSIST, UNFENCED_READ)
    assert not find(unchecked, ROLLBACK, MIGRATE, tombstone=True, tasks=0)[0]
    exchanged = {FENCE_STASH: FENCE_PERSIST, FENCE_PERSIST: FENCE_STASH}
    both = {direction: [exchanged.get(step, step) for step in steps] for direction, steps in unchecked.items()}
    assert find_anywhere(both, tasks=0)[-1].startswith("leads at epoch"), "two leaders at once"


def test_an_emergency_while_a_leader_lives_on_the_persist_catalog_loses_its_writes() -> None:
    """Unsafe by design: the leader is not fenced. Hence the look at its heartbeat, and the word ``force``."""
    world, state = start([EMERGENCY], tombstone=True, tasks=0)
    equal = state.world[0]._replace(rows=frozenset({"before"}))  # nothing was written since the migration
    way = Search(SAFE, world).find_violation(state._replace(world=(equal, state.world[1])))
    assert way[-1] == "lost: leader-1"
    dead = tuple(process._replace(is_dead=True) for process in state.processes if process.name == "leader")
    alone = state._replace(world=(equal, state.world[1]), processes=(*dead, *state.processes[1:]))
    assert not Search(SAFE, world).find_violation(alone)


def test_a_task_that_joins_an_epoch_which_nobody_announced_loses_writes() -> None:
    assert loses_writes(with_steps(join=JOIN[:2]), tasks=1)


def test_the_epoch_goes_back_if_the_persist_catalog_does_not_follow_the_stash() -> None:
    """With the stash's epoch of before its fence, as the reference has it, and opens of the stash alone in between."""
    openers, more = (MIGRATE, EMERGENCY, EMERGENCY), {"tombstone": False, "tasks": 0, "leader_writes": 0}
    stash_alone = {**SAFE, EMERGENCY: STASH_ALONE}
    assert not find(stash_alone, *openers, **more)[0]
    steps = [LOWER_BOUND if step is FENCE_PERSIST else step for step in PROTOCOL[MIGRATE]]
    way, _ = find({**stash_alone, MIGRATE: steps}, *openers, **more)
    assert way[-1] == "leads at epoch 7 after 7"


def open_in_a_crowd(fence_persist: Step) -> tuple[list[str], Search]:
    """Four openers at once, of which two go no further than their fences: so many it takes, and more are too many."""
    protocol = {
        direction: [fence_persist if step is FENCE_PERSIST else step for step in steps]
        for direction, steps in SAFE.items()
    }
    protocol[EMERGENCY] = [FENCE_STASH, fence_persist]
    world, state = start([EMERGENCY, EMERGENCY, MIGRATE, ROLLBACK], tombstone=True, tasks=0, leader_writes=0)
    silent = tuple(process._replace(writes=0) for process in state.processes)
    search = Search(protocol, world)
    return search.find_violation(state._replace(processes=silent)), search


def test_no_two_leaders_of_four_openers_have_the_same_epoch() -> None:
    way, search = open_in_a_crowd(FENCE_PERSIST)
    assert not way
    assert len(search.seen) > 10_000, "so few states cannot be all"


def test_two_leaders_have_the_same_epoch_if_one_may_lead_with_two_that_differ() -> None:
    assert open_in_a_crowd(UNEQUAL)[0][-1].startswith("leads at epoch")


@pytest.mark.parametrize(("tombstone", "direction"), [(None, MIGRATE), (True, ROLLBACK)])
def test_a_late_copy_over_what_is_led_already_loses_writes(
    *, tombstone: bool | None, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelHandle, "refuse_if_led", lambda *_: None)
    way, _ = find(SAFE, direction, tombstone=tombstone, run_twice="opener0")
    assert way[-1].startswith("lost")
