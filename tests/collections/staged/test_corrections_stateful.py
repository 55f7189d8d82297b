"""Staged corrections against sets of days: none vanishes, whatever a leader does beside, and final times stay final."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.events import switch
from tests.support.exploration import explore
from tests.support.rows import SCHEMA, Row, contents, correction, updates_table
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import corrections_branch
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.staged.slices import Slice, slice_text
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.settings import Settings

DAYS, NO_DAY = 3, -1
SLICES = [None, *((start, end) for start in range(DAYS) for end in range(start + 1, DAYS + 1))]
ROWS = st.tuples(
    st.integers(NO_DAY, DAYS - 1), st.sampled_from("ab")
)  # the day, of which -1 is in no slice, and a name


@dataclass(frozen=True)
class Staged:
    days: frozenset[int]
    wanted: Counter[Row]  # the rows of these days afterwards
    changes_rows: bool
    version: int  # of the contents
    number: int


class CorrectionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-corrections-"))
        self.settings = Settings.load({"TIDEMARK_HOME": str(self.folder)})
        self.shards = Shards.connect(self.settings)
        switch(self.settings, Mode.READ_WRITE)
        self.shard = self.shards.create("s", schema=SCHEMA)
        Writer.raise_token(self.shard, 1)
        self.clock = SteppedClock(1)
        self.contents: Counter[Row] = Counter()
        self.version = self.number = 0
        self.staged: dict[str, Staged] = {}
        self.history: dict[int, Counter[Row]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def upper(self) -> int:
        upper = self.shard.load().state.upper
        assert isinstance(upper, int)
        return upper

    def rows_of(self, days: frozenset[int]) -> Counter[Row]:
        return Counter({row: count for row, count in self.contents.items() if row[0] in days})

    @rule(days=st.sampled_from(SLICES), rows=st.lists(ROWS, max_size=3))
    def stage(self, days: tuple[int, int] | None, rows: list[Row]) -> None:
        self.clock.step(1)
        self.number += 1
        chosen = frozenset(range(*days)) if days else frozenset(range(NO_DAY, DAYS))
        wanted = Counter(row for row in rows if row[0] in chosen)
        stored = self.rows_of(chosen)
        insert, retract = wanted - stored, stored - wanted
        lower = self.upper
        time = max(self.clock.now_ms(), lower)
        batch = correction(self.shard.load(), insert=insert.elements(), retract=retract.elements(), time=time)
        branch = corrections_branch(1, days)
        about = slice_text(Slice("day", Range(*days)) if days else None)
        stage_whole(self.shard, batch, branch=branch, lower=lower, time=time, digest=None, digest_note="", about=about)
        self.staged.pop(branch, None)
        self.staged[branch] = Staged(chosen, wanted, bool(insert or retract), self.version, self.number)

    @rule(row=ROWS)
    def correct_beside(self, row: Row) -> None:
        upper = self.upper
        batch = correction(self.shard.load(), insert=[row], time=upper)
        Writer.join(self.shard, 1).publish(batch, lower=upper, new_upper=upper + 1)
        self.contents[row] += 1
        self.version += 1

    @rule(steps=st.integers(1, 5))
    def advance_beside(self, steps: int) -> None:
        upper = self.upper
        Writer.join(self.shard, 1).advance(lower=upper, new_upper=upper + steps)

    @rule()
    def fence(self) -> None:
        Writer.raise_token(self.shard, 1)

    @rule()
    def compact(self) -> None:
        compact(Writer.join(self.shard, 1))

    @rule(row=ROWS)
    def append_from_another_engine(self, row: Row) -> None:
        table = self.shard.load().table
        table.append(updates_table([row], time=0, diff=1).cast(table.schema().as_arrow()))

    @rule()
    def flush(self) -> None:
        report = flush_all(self.shards, deployment_of(self.settings), ["s"], clock=self.clock).collections["s"]
        reasons = report.details.get("reasons", {})
        done: set[int] = set()
        left: dict[str, Staged] = {}
        is_changed = False
        for branch, staged in sorted(self.staged.items(), key=lambda item: -item[1].number):
            if done and staged.days <= done:
                assert branch in report.details["superseded"]
            elif staged.version != self.version or done & staged.days or reasons.get(branch, "").startswith("files"):
                left[branch] = staged
            else:
                done |= staged.days
                self.contents = self.contents - self.rows_of(staged.days) + staged.wanted
                is_changed |= staged.changes_rows
        assert set(reasons) == set(left)
        assert (report.error is not None) == bool(left)
        self.staged, self.version = left, self.version + is_changed

    @invariant()
    def nothing_vanishes_and_final_times_stay(self) -> None:
        head = self.shard.load()
        assert set(head.staged_branches) == set(self.staged)
        assert contents(head, head.contents) == self.contents
        for time, rows in list(self.history.items())[-2:]:
            read = read_arrow(self.shard, as_of=time).to_pylist()
            assert Counter((row["id"], row["name"]) for row in read) == rows
        if isinstance(head.state.upper, int) and head.state.upper:
            self.history[head.state.upper - 1] = Counter(self.contents)
        assert check_invariant(self.shard).holds


TestCorrections = pytest.mark.slow(CorrectionsMachine.TestCase)
TestCorrections.settings = explore(15, steps=12)
