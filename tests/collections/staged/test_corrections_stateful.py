"""Staged corrections against sets of days: none vanishes, whatever a leader does beside, and final times stay final.

Deployments stage while they are read-only, and the leader goes on beside them; whoever leads flushes what older leaders
left. Each correction is then what the contents are, or is named as stale.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.commits import grow_from_main
from tests.support.events import switch
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, make_odd_home, remove_odd_home
from tests.support.rows import SCHEMA, Row, contents, correction, updates_table
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.staged.batches import RECONCILE, corrections_branch
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.staged.slices import Slice, slice_text
from tidemark.errors import FencedByGeneration, ReadOnly
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name, drop_staged
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.settings import Settings

DAYS, NO_DAY = 3, -1
SLICES = [None, *((start, end) for start in range(DAYS) for end in range(start + 1, DAYS + 1))]
ROWS = st.tuples(
    st.integers(NO_DAY, DAYS - 1), st.sampled_from("ab")
)  # the day, of which -1 is in no slice, and a name


GENERATIONS = st.sampled_from([1, 1, 2, 2, 3])


@dataclass(frozen=True)
class Staged:
    generation: int
    days: frozenset[int]
    wanted: Counter[Row]  # the rows of these days afterwards
    changes_rows: bool
    version: int  # of the contents
    number: int


class CorrectionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leader, self.mode, self.led = 1, Mode.READ_WRITE, {1}
        self.clock = SteppedClock(1)
        self.contents: Counter[Row] = Counter()
        self.version = self.number = 0
        self.staged: dict[str, Staged] = {}
        self.history: dict[int, Counter[Row]] = {}

    @initialize(odd=st.sampled_from(ODD_NAMES))
    def open_home(self, odd: str) -> None:
        self.home = make_odd_home(odd)
        self.shards = Shards.connect(self.home)
        switch(self.home, Mode.READ_WRITE)
        self.shard = self.shards.create("s", schema=SCHEMA)
        Writer.raise_token(self.shard, 1)

    def teardown(self) -> None:
        remove_odd_home(self.home)

    @property
    def upper(self) -> int:
        upper = self.shard.load().state.upper
        assert isinstance(upper, int)
        return upper

    def settings(self, generation: int) -> Settings:
        return replace(self.home, generation=generation)

    def rows_of(self, days: frozenset[int]) -> Counter[Row]:
        return Counter({row: count for row, count in self.contents.items() if row[0] in days})

    @rule(generation=GENERATIONS, wanted=st.sampled_from(Mode))
    def switch(self, generation: int, wanted: Mode) -> None:
        if generation < self.leader:
            with pytest.raises(FencedByGeneration):
                switch(self.settings(generation), wanted)
            return
        switch(self.settings(generation), wanted)
        if generation == self.leader or wanted is Mode.READ_WRITE:
            self.leader, self.mode = generation, wanted
            self.led.add(generation)

    @rule(generation=GENERATIONS, days=st.sampled_from(SLICES), rows=st.lists(ROWS, max_size=3))
    def stage(self, generation: int, days: tuple[int, int] | None, rows: list[Row]) -> None:
        """As a read-only reconcile does that found these rows in its source."""
        generation = max(generation, self.leader)
        self.clock.step(1)
        self.number += 1
        chosen = frozenset(range(*days)) if days else frozenset(range(NO_DAY, DAYS))
        wanted = Counter(row for row in rows if row[0] in chosen)
        stored = self.rows_of(chosen)
        insert, retract = wanted - stored, stored - wanted
        lower = self.upper
        time = max(self.clock.now_ms(), lower)
        batch = correction(self.shard.load(), insert=insert.elements(), retract=retract.elements(), time=time)
        branch = corrections_branch(generation, days)
        about = slice_text(Slice("day", Range(*days)) if days else None)
        stage_whole(self.shard, batch, branch=branch, lower=lower, time=time, digest=None, digest_note="", about=about)
        self.staged.pop(branch, None)
        self.staged[branch] = Staged(generation, chosen, wanted, bool(insert or retract), self.version, self.number)

    @rule(row=ROWS)
    def correct_beside(self, row: Row) -> None:
        if self.mode is Mode.READ_ONLY:
            return
        upper = self.upper
        batch = correction(self.shard.load(), insert=[row], time=upper)
        Writer.join(self.shard, self.leader).publish(batch, lower=upper, new_upper=upper + 1)
        self.contents[row] += 1
        self.version += 1

    @rule(steps=st.integers(1, 5))
    def advance_beside(self, steps: int) -> None:
        upper = self.upper
        Writer.join(self.shard, self.leader).advance(lower=upper, new_upper=upper + steps)

    @rule()
    def fence(self) -> None:
        Writer.raise_token(self.shard, self.leader)

    @rule()
    def maintain(self) -> None:
        """By a machine whose clock is years ahead: what nobody will publish goes, corrections of the day stay."""
        if self.mode is Mode.READ_ONLY:
            return
        deployment = deployment_of(self.settings(self.leader))
        report = maintain_all(None, deployment, ["s"], clock=SteppedClock(10**13))
        assert report.collections["s"].error is None
        kept = {*self.led, *range(self.leader, 4)}
        self.staged = {branch: each for branch, each in self.staged.items() if each.generation in kept}

    @rule()
    def compact(self) -> None:
        compact(Writer.join(self.shard, self.leader))

    @rule(place=st.sampled_from(["added", "retracted"]), is_dropped=st.booleans())
    def write_as_orphan(self, place: str, *, is_dropped: bool) -> None:
        """A driver of Spark's whose branch was dropped writes on: Iceberg makes the branch anew, above main."""
        branch = branch_name(generation=self.leader, writer="driver", batch=f"1-{place}")
        grow_from_main(self.shard, branch, updates_table([(NO_DAY, "orphan")], time=0, diff=1))
        if is_dropped:
            assert drop_staged(self.shard, [branch]) == [branch]

    @rule(row=ROWS)
    def append_from_another_engine(self, row: Row) -> None:
        table = self.shard.load().table
        table.append(updates_table([row], time=0, diff=1).cast(table.schema().as_arrow()))

    @rule(generation=GENERATIONS)
    def flush(self, generation: int) -> None:
        deployment = deployment_of(self.settings(generation))
        if (generation, self.mode) != (self.leader, Mode.READ_WRITE):
            with pytest.raises(FencedByGeneration if generation < self.leader else ReadOnly):
                flush_all(self.shards, deployment, ["s"], clock=self.clock)
            return
        report = flush_all(self.shards, deployment, ["s"], clock=self.clock).collections["s"]
        reasons = report.details.get("reasons", {})
        done: set[int] = set()
        own = {branch: each for branch, each in self.staged.items() if each.generation in {*self.led, generation}}
        left: dict[str, Staged] = {}
        is_changed = False
        for branch, staged in sorted(own.items(), key=lambda item: (-item[1].generation, -item[1].number)):
            if done and staged.days <= done:
                assert branch in report.details["superseded"]
            elif staged.version != self.version or done & staged.days or reasons.get(branch, "").startswith("files"):
                left[branch] = staged
            else:
                done |= staged.days
                self.contents = self.contents - self.rows_of(staged.days) + staged.wanted
                is_changed |= staged.changes_rows
        assert set(reasons) == set(left)
        assert report.exit_code == (ExitCode.TRANSIENT if left else ExitCode.OK)
        self.staged = {branch: each for branch, each in self.staged.items() if branch not in own} | left
        self.version += is_changed

    @rule(
        stagings=st.lists(st.tuples(st.sampled_from(SLICES), st.lists(ROWS, max_size=2)), min_size=1, max_size=3),
        row=st.none() | ROWS,
        is_upgrade=st.booleans(),
    )
    def be_read_only_and_flush(
        self, stagings: list[tuple[tuple[int, int] | None, list[Row]]], row: Row | None, *, is_upgrade: bool
    ) -> None:
        """In the order that matters: of the leader, or of a newer deployment while the leader goes on."""
        generation = min(self.leader + is_upgrade, 3)
        self.switch(self.leader, Mode.READ_WRITE if is_upgrade else Mode.READ_ONLY)
        for number, (days, rows) in enumerate(stagings):
            self.stage(generation, days, rows)
            if row is not None and number == 0:
                self.correct_beside(row)
        self.switch(generation, Mode.READ_WRITE)
        self.flush(generation)

    @invariant()
    def nothing_vanishes_and_final_times_stay(self) -> None:
        head = self.shard.load()
        assert {each for each in head.staged_branches if f"/{RECONCILE}/" in each} == set(self.staged)
        assert contents(head, head.contents) == self.contents
        for time, rows in [item for item in self.history.items() if item[0] >= head.state.since][-2:]:
            read = read_arrow(self.shard, as_of=time).to_pylist()
            assert Counter((row["id"], row["name"]) for row in read) == rows
        if isinstance(head.state.upper, int) and head.state.upper:
            self.history[head.state.upper - 1] = Counter(self.contents)
        assert check_invariant(self.shard).holds


TestCorrections = pytest.mark.slow(CorrectionsMachine.TestCase)
TestCorrections.settings = explore(15, steps=12)
