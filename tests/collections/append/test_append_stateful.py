"""Appends, switches, flushes and crashes in any order, against two sets of numbers: visible, and staged.

Whatever happens, the rows that a reader sees are the union of the accepted ranges, each once, less what a retention let
go, and what was staged is staged or published, never lost.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.commits import grow_from_main
from tests.support.discarding import discard
from tests.support.dying import surviving
from tests.support.events import CLOCK, append_numbers, create_events, numbers, rows_table, switch, visible
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, make_odd_home, remove_odd_home
from tests.support.leftovers import named_files, stored_files
from tests.support.rows import Row, local_path
from tidemark.catalog.deployment import modes as stored_mode
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction
from tidemark.cli.installation import _look_deeper
from tidemark.collections import mode as mode_module
from tidemark.collections.append import append as append_module
from tidemark.collections.append.append import with_batch_columns, write_batch
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.maintenance.retain import retain
from tidemark.collections.mode import join_to_write
from tidemark.collections.staged import discard as discard_module
from tidemark.collections.staged import flush as flush_module
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection, discard_expired
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import CorruptState, Fenced, FencedByGeneration, InputsGone, NotPossible, RangeOverlap, ReadOnly
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.kept_files import ORPHAN_AGE_MS
from tidemark.iceberg.commit.writer import Writer  # Hypothesis looks at the annotations of rules
from tidemark.iceberg.maintenance import row_removal
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans, store_now_ms
from tidemark.iceberg.shard.branch_names import pending_name
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import LEDGER
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import files as file_staging
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.frames import _create_branch
from tidemark.report import Outcome
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard

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
GENERATIONS = st.sampled_from([1, 1, 1, 2, 2, 3])
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class LateWrite:
    """Files that lie there while their writer, or its machine, stands still."""

    writer: Writer
    batch: Batch
    rows: list[Row]

    @property
    def paths(self) -> list[Path]:
        return [Path(local_path(file.file_path)) for file in self.batch.added]


def look_deeper(shard: Shard) -> str:
    """Look as `tidemark doctor --deep --contents` does."""
    return _look_deeper(shard, shard.load(), start_spark=pytest.fail, contents=True)


class AppendMachine(RuleBasedStateMachine):
    writers = Bundle("writers")
    late_writes = Bundle("late_writes")

    def __init__(self) -> None:
        super().__init__()
        self.leader, self.mode, self.led = 1, Mode.READ_WRITE, {1}
        self.published: defaultdict[str, set[int]] = defaultdict(set)
        self.staged: defaultdict[tuple[int, str], set[Range]] = defaultdict(set)
        self.late: list[Row] = []
        self.late_numbers = count(1_000)
        self.waiting_files: set[Path] = set()  # of late writes
        self.retained_away: set[Row] = set()
        self.discarded = 0

    def teardown(self) -> None:
        remove_odd_home(self.home)

    @initialize(odd=st.sampled_from(ODD_NAMES))
    def somebody_leads(self, odd: str) -> None:
        self.home = make_odd_home(odd)
        self.events = create_events(self.home)
        self.shards = Shards.connect(self.home)
        switch(self.home, Mode.READ_WRITE)

    def settings(self, generation: int) -> Settings:
        return replace(self.home, generation=generation)

    def mode_of(self, generation: int) -> Mode | None:
        """The mode of a deployment; None if it was replaced."""
        if generation < self.leader:
            return None
        return self.mode if generation == self.leader else Mode.READ_ONLY

    # -- appends -------------------------------------------------------------------------------------------------

    @rule(generation=GENERATIONS, producer=PRODUCERS, start=st.integers(0, 8), count=st.integers(1, 4), point=POINTS)
    def append(self, generation: int, producer: str, start: int, count: int, point: str | None) -> None:
        wanted = Range(start, start + count)
        expected = self.answer(generation, producer, wanted)

        def operation() -> object:
            return append_numbers(self.events, self.settings(generation), *wanted, producer=producer).outcome

        if not isinstance(expected, Outcome):
            with pytest.raises(expected):
                surviving(operation, point)
            return
        outcome, died = surviving(operation, point)
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

    def heir_of(self, generation: int, takes_over: int = 0) -> list[int]:
        """The deployments whose batches this one publishes, newest first: its own, and those of older leaders."""
        older = self.led | {takes_over} if generation == self.leader else set()
        return sorted({generation, *(each for each in older if each < generation)}, reverse=True)

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
        surviving(lambda: switch(self.settings(generation), wanted), point)
        if generation == self.leader or wanted is Mode.READ_WRITE:
            self.leader, self.mode = generation, wanted
            self.led.add(generation)

    @rule(generation=GENERATIONS, takes_over=st.sampled_from([0, 0, 2]), point=POINTS)
    def flush(self, generation: int, takes_over: int, point: str | None) -> None:
        deployment = replace(deployment_of(self.settings(generation)), takes_over=frozenset({takes_over}))

        def operation() -> object:
            return flush_all(self.shards, deployment, [], clock=CLOCK)

        mode = self.mode_of(generation)
        if mode is not Mode.READ_WRITE:
            with pytest.raises(FencedByGeneration if mode is None else ReadOnly):
                operation()
            return
        surviving(operation, point)
        for (staged_by, producer), ranges in sorted(self.staged.items(), reverse=True):
            if staged_by not in self.heir_of(generation, takes_over):
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
        surviving(operation, point)
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
        surviving(operation, point)
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
        surviving(
            lambda: discard_expired(
                self.shards, self.events, declaration, deployment_of(settings), now_ms=later.now_ms(), clock=later
            ),
            point,
        )
        for (staged_by, _), ranges in self.staged.items():
            if staged_by not in self.heir_of(self.leader) or include_leader:
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
        number = next(self.late_numbers)
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
            self.switch(min(self.leader + 1, 3), Mode.READ_WRITE, None)
        else:
            self.flush(self.leader, 0, None)
        self.write_late(joined)

    @rule(target=late_writes)
    def write_and_stand_still(self) -> LateWrite | None:
        writer, mode = join_to_write(self.events, deployment_of(self.settings(self.leader)))
        if mode is Mode.READ_ONLY:
            return None
        number = next(self.late_numbers)
        rows, name = numbers(number, number + 1, "late"), BatchName("late", Range(number, number + 1))
        late = LateWrite(writer, write_batch(self.events.load(), rows_table(rows), name), rows)
        self.waiting_files |= {*late.paths}
        return late

    @rule(late=consumes(late_writes), days=st.sampled_from([0, 1, 2, 5]), is_swept=st.booleans())
    def commit_after_days(self, late: LateWrite | None, days: int, *, is_swept: bool) -> None:
        """The writer goes on after days in which orphans were removed, perhaps by a machine whose clock is ahead."""
        if late is None:
            return
        for path in filter(Path.exists, late.paths):
            then_ns = path.stat().st_mtime_ns - days * DAY_MS * 10**6
            os.utime(path, ns=(then_ns, then_ns))
        if is_swept:
            remove_orphans(self.events, older_than_ms=store_now_ms(self.events) - ORPHAN_AGE_MS)
        head = self.events.load()
        upper = head.state.upper
        assert isinstance(upper, int)
        self.waiting_files -= {*late.paths}
        is_late = 2 * days * DAY_MS > ORPHAN_AGE_MS or not all(map(Path.exists, late.paths))
        if late.writer.token != head.state.token or is_late:
            with pytest.raises(InputsGone if late.writer.token == head.state.token else Fenced):
                late.writer.publish(late.batch, lower=upper, new_upper=upper + 1)
        else:
            late.writer.publish(late.batch, lower=upper, new_upper=upper + 1)
            self.late += late.rows

    @rule(days=st.sampled_from([1, 2, 5]), is_swept=st.booleans())
    def write_and_be_late(self, days: int, *, is_swept: bool) -> None:
        """Nobody comes between, but the days."""
        if self.mode is Mode.READ_ONLY:
            self.switch(self.leader, Mode.READ_WRITE, None)
        self.commit_after_days(self.write_and_stand_still(), days, is_swept=is_swept)

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
        self.waiting_files.clear()

    @rule()
    def maintain_with_a_clock_ahead(self) -> None:
        """As far as the system goes by itself: no file that somebody may still commit is gone."""
        if self.mode is Mode.READ_WRITE:
            deployment = deployment_of(self.settings(self.leader))
            report = maintain_all(None, deployment, ["events"], clock=SteppedClock(FUTURE_MS))
            assert report.collections["events"].error is None
            assert all(map(Path.exists, self.waiting_files))

    @rule(generation=GENERATIONS, is_dropped=st.booleans())
    def write_as_orphan(self, generation: int, *, is_dropped: bool) -> None:
        """A driver of Spark's whose branch was dropped writes on: Iceberg makes the branch anew, above main."""
        name = BatchName("orphan", Range(0, 1))
        branch = pending_name(name.branch(generation))
        grow_from_main(self.events, branch, with_batch_columns(rows_table(numbers(0, 1, "orphan")), name))
        if is_dropped:
            assert drop_staged(self.events, [branch]) == [branch]

    @rule(which=st.integers(0, 30), is_cut=st.booleans())
    def damage(self, which: int, *, is_cut: bool) -> None:
        """A file that is needed is gone, or cut, until somebody puts it back."""
        needed = named_files(self.events)
        paths = sorted(path for path in stored_files(self.home) if path.name in needed and path.suffix != ".json")
        if paths:
            path = paths[which % len(paths)]
            content = path.read_bytes()
            if is_cut:
                path.write_bytes(content[: len(content) // 2])
            else:
                path.unlink()
            with pytest.raises(CorruptState) as caught:
                look_deeper(self.events)
            assert {Path(local_path(str(each["file"]))) for each in caught.value.sample} == {path}
            path.write_bytes(content)

    @rule(producer=PRODUCERS)
    def forget_batches(self, producer: str) -> None:
        """Another tool sets a ledger: rows that would come twice are counted, until somebody puts it back."""
        key = LEDGER + producer
        rows = sum(row[1] == producer for row in self.visible_rows())
        if rows:
            ledger = self.events.load().table.properties[key]
            self.set_property(key, str(Ledger((Range(900, 901),))))
            with pytest.raises(NotPossible, match=rf"'{producer}': {rows}}}"):
                look_deeper(self.events)
            self.set_property(key, ledger)

    def set_property(self, key: str, text: str) -> None:
        self.events.load().table.transaction().set_properties({key: text}).commit_transaction()

    @rule(generation=GENERATIONS, producer=PRODUCERS, start=st.integers(0, 8), count=st.integers(1, 4))
    def begin(self, generation: int, producer: str, start: int, count: int) -> None:
        """As far as an append by Spark comes that dies: it stands for nothing, and nothing waits for it."""
        name = BatchName(producer, Range(start, start + count))
        _create_branch(self.events, pending_name(name.branch(max(generation, self.leader))))

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def readers_see_every_accepted_row_once(self) -> None:
        assert visible(self.events) == Counter(self.visible_rows())
        assert self.events.load().row_count == len(self.visible_rows())

    @invariant()
    def a_deeper_look_finds_nothing(self) -> None:
        assert look_deeper(self.events).startswith("; every file can be read; the ledgers have the batches of all rows")

    @invariant()
    def what_was_staged_is_staged(self) -> None:
        listed = {(each.generation, each.name.producer, each.name.range) for each in list_batches(self.shards, [])}
        assert listed == {(*place, each) for place, ranges in self.staged.items() for each in ranges}
        assert len(deployment_of(self.settings(self.leader)).discards.read()) == self.discarded


TestAppend = pytest.mark.slow(AppendMachine.TestCase)
TestAppend.settings = explore(20, steps=15)
