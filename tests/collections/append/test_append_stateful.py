"""Appends, switches, flushes and crashes in any order, against two sets of numbers: visible, and staged.

Whatever happens, the rows that a reader sees are the union of the accepted ranges, each once, less what a retention let
go, and what was staged is staged or published, never lost.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.events import CLOCK, append_numbers, create_events, numbers, rows_table, switch, visible
from tests.support.exploration import explore
from tidemark import fail_points
from tidemark.catalog.deployment import modes as stored_mode
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction
from tidemark.collections import mode as mode_module
from tidemark.collections.append import append as append_module
from tidemark.collections.append.append import write_batch
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.retain import retain
from tidemark.collections.mode import join_to_write
from tidemark.collections.staged import discard as discard_module
from tidemark.collections.staged import flush as flush_module
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection, discard, discard_expired
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import Fenced, FencedByGeneration, RangeOverlap, ReadOnly
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer  # Hypothesis looks at the annotations of rules
from tidemark.iceberg.maintenance import row_removal
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.branch_names import pending_name
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import files as file_staging
from tidemark.iceberg.staging.frames import _create_branch
from tidemark.report import Outcome
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.rows import Row

FUTURE_MS = 10**15
POINTS = st.sampled_from(
    [
        None,
        *append_module.FAIL_POINTS,
        *flush_module.FAIL_POINTS,
        *mode_module.FAIL_POINTS,
        *stored_mode.FAIL_POINTS,
        *discard_module.FAIL_POINTS,
        *file_staging.FAIL_POINTS,
        *row_removal.FAIL_POINTS,
        *shard_commit.FAIL_POINTS,
    ]
)
PRODUCERS = st.sampled_from(["p", "q"])
GENERATIONS = st.sampled_from([1, 1, 2])


class Crash(BaseException):
    """Takes the place of the process's death: nothing catches it on the way."""


@contextmanager
def dying_at(point: str | None) -> Iterator[None]:
    def die(_code: int) -> None:
        raise Crash

    fail_points._reached.clear()
    real, fail_points.os = fail_points.os, SimpleNamespace(environ={"TIDEMARK_FAIL_POINT": point or ""}, _exit=die)
    try:
        yield
    finally:
        fail_points.os = real


class AppendMachine(RuleBasedStateMachine):
    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-append-"))
        self.home = Settings.load({"TIDEMARK_HOME": str(self.folder)})
        self.events = create_events(self.home)
        self.shards = Shards.connect(self.home)
        self.leader, self.mode = 1, Mode.READ_WRITE
        self.published: defaultdict[str, set[int]] = defaultdict(set)
        self.staged: defaultdict[tuple[int, str], set[Range]] = defaultdict(set)
        self.late: list[Row] = []
        self.retained_away: set[Row] = set()
        self.discarded = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def somebody_leads(self) -> None:
        switch(self.home, Mode.READ_WRITE)

    def settings(self, generation: int) -> Settings:
        return replace(self.home, generation=generation)

    def mode_of(self, generation: int) -> Mode | None:
        """The mode of a deployment; None if it was replaced."""
        if generation < self.leader:
            return None
        return self.mode if generation == self.leader else Mode.READ_ONLY

    def surviving(self, operation: Callable[[], object], point: str | None) -> tuple[object, bool]:
        """Run to the end, again if it died on the way; also return whether it died."""
        try:
            with dying_at(point):
                return operation(), False
        except Crash:
            return operation(), True

    # -- appends -------------------------------------------------------------------------------------------------

    @rule(generation=GENERATIONS, producer=PRODUCERS, start=st.integers(0, 8), count=st.integers(1, 4), point=POINTS)
    def append(self, generation: int, producer: str, start: int, count: int, point: str | None) -> None:
        wanted = Range(start, start + count)
        expected = self.answer(generation, producer, wanted)

        def operation() -> object:
            return append_numbers(self.events, self.settings(generation), *wanted, producer=producer).outcome

        if not isinstance(expected, Outcome):
            with pytest.raises(expected):
                self.surviving(operation, point)
            return
        outcome, died = self.surviving(operation, point)
        assert outcome is expected or (died and outcome is Outcome.SKIPPED)
        if expected is Outcome.APPENDED:
            self.published[producer] |= set(range(*wanted))
            for place in self.heir_of(generation):
                self.staged[place, producer].discard(wanted)
        elif expected is Outcome.STAGED and not self.is_staged(generation, producer, wanted):
            self.staged[generation, producer].add(wanted)

    def answer(self, generation: int, producer: str, wanted: Range) -> Outcome | type[Exception]:
        mode = self.mode_of(generation)
        if mode is None:
            return FencedByGeneration
        numbers_wanted, published = set(range(*wanted)), self.published[producer]
        if numbers_wanted <= published:
            return Outcome.SKIPPED
        if self.is_staged(generation, producer, wanted):
            if mode is Mode.READ_ONLY or wanted not in self.waiting(generation, producer):
                return Outcome.STAGED
            return RangeOverlap if numbers_wanted & published else Outcome.APPENDED
        everything_staged = {number for each in self.waiting(generation, producer) for number in range(*each)}
        if numbers_wanted & (published | everything_staged):
            return RangeOverlap
        return Outcome.APPENDED if mode is Mode.READ_WRITE else Outcome.STAGED

    def is_staged(self, generation: int, producer: str, wanted: Range) -> bool:
        accepted = set(self.published[producer])
        for each in self.waiting(generation, producer):
            if not accepted & set(range(*each)):
                accepted |= set(range(*each))
        return set(range(*wanted)) <= accepted

    def heir_of(self, generation: int) -> list[int]:
        """The deployments whose batches this one publishes, newest first: all older ones have led."""
        return [generation, *range(generation - 1, 0, -1)] if generation == self.leader else [generation]

    def waiting(self, generation: int, producer: str) -> list[Range]:
        """What a deployment is to publish, in the order in which a flush accepts."""
        return [each for place in self.heir_of(generation) for each in sorted(self.staged[place, producer])]

    # -- switches, flushes, discards ------------------------------------------------------------------------------

    @rule(generation=GENERATIONS, wanted=st.sampled_from(Mode), point=POINTS)
    def switch(self, generation: int, wanted: Mode, point: str | None) -> None:
        if generation < self.leader:
            with pytest.raises(FencedByGeneration):
                switch(self.settings(generation), wanted)
            return
        self.surviving(lambda: switch(self.settings(generation), wanted), point)
        if generation == self.leader or wanted is Mode.READ_WRITE:
            self.leader, self.mode = generation, wanted

    @rule(generation=GENERATIONS, point=POINTS)
    def flush(self, generation: int, point: str | None) -> None:
        settings = self.settings(generation)

        def operation() -> object:
            return flush_all(self.shards, deployment_of(settings), [], clock=CLOCK)

        mode = self.mode_of(generation)
        if mode is not Mode.READ_WRITE:
            with pytest.raises(FencedByGeneration if mode is None else ReadOnly):
                operation()
            return
        self.surviving(operation, point)
        for (staged_by, producer), ranges in sorted(self.staged.items(), reverse=True):
            if staged_by not in self.heir_of(generation):
                continue
            for each in sorted(ranges):
                wanted, published = set(range(*each)), self.published[producer]
                if wanted <= published or not wanted & published:
                    self.published[producer] |= wanted
                    ranges.discard(each)

    @rule(generation=GENERATIONS, of_generation=GENERATIONS, producer=PRODUCERS, point=POINTS)
    def discard(self, generation: int, of_generation: int, producer: str, point: str | None) -> None:
        selection = Selection(generation=of_generation, producer=producer)

        def operation() -> object:
            return discard(
                self.shards, deployment_of(self.settings(generation)), selection, who="w", why="y", clock=CLOCK
            )

        if generation != self.leader:
            with pytest.raises(FencedByGeneration if generation < self.leader else ReadOnly):
                operation()
            return
        self.surviving(operation, point)
        self.discarded += len(self.staged[of_generation, producer])
        self.staged[of_generation, producer].clear()

    @rule(generation=GENERATIONS, keep=st.integers(1, 3), point=POINTS)
    def retain(self, generation: int, keep: int, point: str | None) -> None:
        policy = Retention(last_n=keep, key=("name",), order_by=("id",))

        def operation() -> object:
            return retain(
                self.events, policy, deployment=deployment_of(self.settings(generation)), now_ms=CLOCK.now_ms()
            )

        if self.events.load().state.upper == 0:
            return
        mode = self.mode_of(generation)
        if mode is not Mode.READ_WRITE:
            with pytest.raises(FencedByGeneration if mode is None else ReadOnly):
                operation()
            return
        self.surviving(operation, point)
        names = defaultdict(list)
        for row in self.visible_rows():
            names[row[1]].append(row)
        for rows in names.values():
            self.retained_away |= set(sorted(rows)[:-keep])

    def visible_rows(self) -> list[Row]:
        rows = [row for producer, seen in self.published.items() for n in seen for row in numbers(n, n + 1, producer)]
        return [row for row in (*rows, *self.late) if row not in self.retained_away]

    @rule(include_leader=st.booleans(), point=POINTS)
    def give_up_staged(self, *, include_leader: bool, point: str | None) -> None:
        """What maintenance does about staged batches that are past their declared time, as all are in the future."""
        if self.mode is Mode.READ_ONLY:
            return
        age = {"age": "1s", "include_leader": include_leader}
        declaration = Declaration.model_validate(
            {"name": "events", "kind": "append-only", "schema": "id bigint, name string", "staged_retention": age}
        )
        later, settings = SteppedClock(FUTURE_MS), self.settings(self.leader)
        self.surviving(
            lambda: discard_expired(self.shards, self.events, declaration, deployment_of(settings), clock=later), point
        )
        for (staged_by, _), ranges in self.staged.items():
            if staged_by > self.leader or include_leader:
                self.discarded += len(ranges)
                ranges.clear()

    # -- others ----------------------------------------------------------------------------------------------------

    @rule(target=writers, generation=GENERATIONS)
    def join(self, generation: int) -> tuple[Writer, Mode] | None:
        if self.mode_of(generation) is None:
            with pytest.raises(FencedByGeneration):
                join_to_write(self.events, deployment_of(self.settings(generation)))
            return None
        return join_to_write(self.events, deployment_of(self.settings(generation)))

    @rule(joined=consumes(writers))
    def write_late(self, joined: tuple[Writer, Mode] | None) -> None:
        """A writer that was told that it may write, and took its time."""
        if joined is None or joined[1] is Mode.READ_ONLY:
            return
        writer = joined[0]
        head = self.events.load()
        number = 1_000 + len(self.late)
        name = BatchName("late", Range(number, number + 1))
        rows = numbers(number, number + 1, "late")
        batch = write_batch(head, rows_table(rows), name)
        upper = head.state.upper
        assert isinstance(upper, int)
        if writer.token != head.state.token:
            with pytest.raises(Fenced):
                writer.publish(batch, lower=upper, new_upper=upper + 1)
            return
        assert self.mode_of(writer.generation) is Mode.READ_WRITE, "a switch fences whoever joined before"
        writer.publish(batch, lower=upper, new_upper=upper + 1)
        self.late += rows

    @rule(overtaken_by=st.sampled_from(["read-only", "newer deployment", "flush"]))
    def write_overtaken(self, overtaken_by: str) -> None:
        """The writer of before, in the one order that matters: it joins, is overtaken, and only then writes."""
        if self.mode is Mode.READ_ONLY:
            self.switch(self.leader, Mode.READ_WRITE, None)
        joined = join_to_write(self.events, deployment_of(self.settings(self.leader)))
        if overtaken_by == "read-only":
            self.switch(self.leader, Mode.READ_ONLY, None)
        elif overtaken_by == "newer deployment":
            self.switch(2, Mode.READ_WRITE, None)
        else:
            self.flush(self.leader, None)
        self.write_late(joined)

    @rule(direction=st.sampled_from([Direction.MIGRATE, Direction.ROLLBACK]))
    def move_the_catalog(self, direction: Direction) -> None:
        """Mode and records go along; whoever joined a collection before goes on, or is fenced by the next switch."""
        Catalog.of(self.settings(self.leader), clock=CLOCK).open(direction).close()

    @rule()
    def maintain(self) -> None:
        """Compaction, expiry and orphan removal at their most aggressive."""
        if self.mode is Mode.READ_WRITE:
            writer = Writer.lead(self.events, self.leader)
            upper = self.events.load().state.upper
            assert isinstance(upper, int)
            downgrade_since(self.events, upper, now_ms=FUTURE_MS)
            compact(writer)
            expire(writer, older_than_ms=FUTURE_MS)
        remove_orphans(self.events, older_than_ms=FUTURE_MS)

    @rule(generation=GENERATIONS, producer=PRODUCERS, start=st.integers(0, 8), count=st.integers(1, 4))
    def begin(self, generation: int, producer: str, start: int, count: int) -> None:
        """As far as an append by Spark comes that dies: it stands for nothing, and nothing waits for it."""
        name = BatchName(producer, Range(start, start + count))
        _create_branch(self.events, pending_name(name.branch(generation)))

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def readers_see_every_accepted_row_once(self) -> None:
        assert visible(self.events) == Counter(self.visible_rows())
        assert self.events.load().row_count == len(self.visible_rows())

    @invariant()
    def what_was_staged_is_staged(self) -> None:
        listed = {(each.generation, each.name.producer, each.name.range) for each in list_batches(self.shards, [])}
        assert listed == {(*place, each) for place, ranges in self.staged.items() for each in ranges}
        assert len(deployment_of(self.settings(self.leader)).discards.read()) == self.discarded


TestAppend = pytest.mark.slow(AppendMachine.TestCase)
TestAppend.settings = explore(20, steps=15)
