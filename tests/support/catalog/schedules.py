"""Every schedule of a few processes that open, join and write the catalog, one atomic step at a time.

A process that is never scheduled again has crashed there, and one that goes on later was only slow: since every state
that can be reached is checked, and not only the last ones, both are covered at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tests.support.catalog.model_back_ends import ModelBackEnd, ModelTransaction, World
from tests.support.clock import SteppedClock
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, Step
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.catalog.model_back_ends import Stored


T = TypeVar("T")


class Process(NamedTuple):
    """One process: how far it has come in its list of steps, and how many rows it will write once it is through."""

    name: str
    direction: Direction | None  # None: it joins
    opening: Opening
    position: int = 0
    writes: int = 1
    is_dead: bool = False  # fenced, or refused


class State(NamedTuple):
    """Everything there is; hashable, and all that a further step depends on."""

    world: tuple[Stored, Stored]
    processes: tuple[Process, ...]
    acknowledged: frozenset[str]
    last_epoch: int  # of the last complete open

    @property
    def truth(self) -> Stored:
        stash, persist = self.world
        return persist if stash.config.get("tombstone") == 1 else stash


@dataclass
class Search:
    """Walk all states that ``processes`` can reach; ``protocol`` says by which steps."""

    protocol: Mapping[Direction | None, Sequence[Step]]
    world: World
    run_twice: str = ""  # the name of a process that may be started a second time from where it is, as a task may be
    seen: dict[tuple[object, ...], tuple[State, str] | None] = field(default_factory=dict)
    known: dict[object, object] = field(default_factory=dict)  # parts of states: equal ones are one object
    left: set[tuple[tuple[Stored, Stored], frozenset[str]]] = field(default_factory=set)  # what a crash may leave

    def __post_init__(self) -> None:
        self.ends = BackEnds(
            stash=ModelBackEnd(self.world, "stash"),
            persist=ModelBackEnd(self.world, "persist"),
            generation=1,
            clock=SteppedClock(),
        )

    def find_violation(self, start: State) -> list[str]:
        """Return what happens up to the first broken promise, the promise last; empty if none is ever broken."""
        self.seen, queue = {self._key(start): None}, [start]
        while queue:
            state = queue.pop()
            self.left.add((state.world, state.acknowledged))
            for label, after, broken in self.successors(state):
                if broken:
                    return [*self._way_to(state), label, broken]
                if (key := self._key(after)) not in self.seen:
                    self.seen[key] = (state, label)
                    queue.append(after)
        return []

    def successors(self, state: State) -> Iterator[tuple[str, State, str]]:
        """Yield each thing that may happen next: what it is, the state after it, and which promise it breaks."""
        for place, process in enumerate(state.processes):
            steps = self.protocol[process.direction]
            if process.is_dead or (process.position >= len(steps) and not process.writes):
                continue
            self.world.state = state.world
            happened, after = self._move(process, steps)
            settled_ = self._one(settled(after, steps))
            processes = (*state.processes[:place], settled_, *state.processes[place + 1 :])
            label = f"{process.name} {happened}{' and is refused' if after.is_dead else ''}"
            new = State(self._one(self.world.state), processes, state.acknowledged, state.last_epoch)
            if happened.startswith("writes") and not after.is_dead:
                new = new._replace(acknowledged=new.acknowledged | {happened.removeprefix("writes ")})
            broken = ""
            if after.opening.is_announced and not process.opening.is_announced and process.direction is not None:
                epoch = after.opening.truth.epoch
                is_new = epoch > state.last_epoch or (epoch == state.last_epoch and bool(self.run_twice))
                broken = "" if is_new else f"leads at epoch {epoch} after {state.last_epoch}"
                new = new._replace(last_epoch=epoch)
            yield label, new, broken or broken_promise(new)
        if self.run_twice and all(process.name != "twin" for process in state.processes):
            first = next(process for process in state.processes if process.name == self.run_twice)
            if first.position and not first.is_dead:
                twin = self._one(first._replace(name="twin"))
                yield f"{first.name} is run twice", state._replace(processes=(*state.processes, twin)), ""

    def _one(self, part: T) -> T:
        """Return the one object that stands for all parts equal to ``part``: hashing them is most of the work."""
        return self.known.setdefault(part, part)

    def _key(self, state: State) -> tuple[object, ...]:
        return (id(state.world), *map(id, state.processes), state.acknowledged, state.last_epoch)

    def _move(self, process: Process, steps: Sequence[Step]) -> tuple[str, Process]:
        position = process.position
        while position < len(steps) and not steps[position].applies(process.opening):
            position += 1
        if position >= len(steps):
            return self._write(process._replace(position=position))
        step = steps[position]
        try:
            opening = step.run(self.ends, process.opening)
        except TidemarkError:
            return step.name, process._replace(is_dead=True)
        return step.name, process._replace(opening=opening, position=position + 1)

    def _write(self, process: Process) -> tuple[str, Process]:
        if not process.writes:
            return "is done", process
        row = f"{process.name}-{process.writes}"

        def add(transaction: Any) -> None:
            assert isinstance(transaction, ModelTransaction)
            transaction.rows.add(row)

        try:
            process.opening.truth.transact(add)
        except TidemarkError:
            return f"writes {row}", process._replace(is_dead=True)
        return f"writes {row}", process._replace(writes=process.writes - 1)

    def _way_to(self, state: State) -> list[str]:
        way: list[str] = []
        while (before := self.seen[self._key(state)]) is not None:
            state, label = before
            way.insert(0, label)
        return way


def settled(process: Process, steps: Sequence[Step]) -> Process:
    """Forget what makes no difference any more, so that states which differ in it alone are one."""
    is_through = process.position >= len(steps)
    if process.is_dead or (is_through and not process.writes):
        return Process(process.name, process.direction, _NOTHING, position=len(steps), writes=0)
    if not is_through:
        return process
    was = process.opening
    left = Opening(direction=was.direction, stash_handle=was.stash_handle, persist_handle=was.persist_handle)
    return process._replace(opening=replace(left, is_announced=True))


_NOTHING = Opening(direction=Direction.ROLLBACK)


def broken_promise(state: State) -> str:
    """Say what is wrong with the truth: exactly the acknowledged rows have to be there."""
    rows = state.truth.rows
    if lost := state.acknowledged - rows:
        return f"lost: {', '.join(sorted(lost))}"
    if garbage := rows - state.acknowledged:
        return f"never acknowledged: {', '.join(sorted(garbage))}"
    return ""
