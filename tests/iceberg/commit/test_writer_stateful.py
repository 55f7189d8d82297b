"""A shard against a list and three integers: what any sequence of operations leaves is what the model says."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.support.exploration import explore
from tests.support.rows import SCHEMA, Row, change_log, contents, correction, updates_table
from tidemark.errors import AsOfBeforeSince, Fenced, UpperMismatch
from tidemark.iceberg.commit.holds import downgrade_since, hold
from tidemark.iceberg.commit.writer import Writer  # Hypothesis looks at the annotations of rules
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

ROWS = st.sampled_from([(1, "a"), (1, "b"), (2, None), (None, "c")])


class ShardMachine(RuleBasedStateMachine):
    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-stateful-"))
        self.shard = Shards.connect(Settings.load({"TIDEMARK_HOME": str(self.folder)})).create("s", schema=SCHEMA)
        self.contents: Counter[Row] = Counter()
        self.log: Counter[tuple[Row, int]] = Counter()
        self.foreign: Counter[Row] = Counter()
        self.since = self.upper = self.epoch = self.changed = 0
        self.holds: dict[str, int] = {}
        self.history: list[tuple[int, Counter[Row]]] = [(0, Counter())]  # contents, and the time from which on

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(target=writers)
    def first_writer(self) -> Writer:
        return self.raise_token()

    @rule(target=writers)
    def raise_token(self) -> Writer:
        self.epoch += 1
        return Writer.raise_token(self.shard, generation=1)

    @rule(target=writers)
    def join(self) -> Writer:
        return Writer.join(self.shard, generation=1)

    @rule(writer=writers, insert=st.lists(ROWS, max_size=3), remove=st.integers(0, 2), lag=st.integers(0, 1))
    def correct(self, writer: Writer, insert: list[Row], remove: int, lag: int) -> None:
        lower = max(self.upper - lag, 0)
        retract = list(self.contents.elements())[:remove]
        batch = correction(self.shard.load(), insert=insert, retract=retract, time=lower + 1)
        fenced, stale = writer.token.epoch < self.epoch, lower != self.upper
        if fenced or stale:
            with pytest.raises(Fenced if fenced else UpperMismatch):  # the fence is reported first
                writer.publish(batch, lower=lower, new_upper=lower + 2)
            return
        writer.publish(batch, lower=lower, new_upper=lower + 2)
        self.contents = self.contents + Counter(insert) - Counter(retract)
        for row in insert:
            self.log[row, lower + 1] += 1
        for row in retract:
            self.log[row, lower + 1] -= 1
        self.upper, self.foreign = lower + 2, Counter()
        if insert or retract:
            self.changed = self.upper
        self.history.append((lower + 1, self.contents))

    @rule(writer=writers)
    def advance(self, writer: Writer) -> None:
        if writer.token.epoch < self.epoch:
            with pytest.raises(Fenced):
                writer.advance(lower=self.upper, new_upper=self.upper + 1)
        else:
            writer.advance(lower=self.upper, new_upper=self.upper + 1)
            self.upper += 1

    @rule(row=ROWS)
    def append_from_another_engine(self, row: Row) -> None:
        table = self.shard.load().table
        table.append(updates_table([row], time=0, diff=1).cast(table.schema().as_arrow()))
        self.foreign[row] += 1

    @rule(reader=st.sampled_from(["r1", "r2"]), since=st.integers(0, 10))
    def hold(self, reader: str, since: int) -> None:
        if since < self.since:
            with pytest.raises(AsOfBeforeSince):
                hold(self.shard, reader, since=since, expires_at_ms=10)
        else:
            hold(self.shard, reader, since=since, expires_at_ms=10)
            self.holds[reader] = since

    @rule(since=st.integers(0, 12))
    def downgrade_since(self, since: int) -> None:
        limit = min([since, max(self.upper - 1, 0), *self.holds.values()])
        self.since = max(self.since, limit)
        assert downgrade_since(self.shard, since, now_ms=5) == self.since

    @invariant()
    def state_and_rows_match_the_model(self) -> None:
        head = self.shard.load()
        state = head.state
        assert (state.since, state.upper, state.token.epoch) == (self.since, self.upper, self.epoch)
        assert state.changed == self.changed, "whatever else is committed leaves the contents alone"
        assert {reader: hold.since for reader, hold in state.holds.items()} == self.holds
        assert contents(head) == self.contents + self.foreign
        assert contents(head, head.contents) == self.contents
        assert head.row_count == self.contents.total()
        assert change_log(head) == Counter({key: diff for key, diff in self.log.items() if diff})
        assert (head.foreign is not None) == bool(self.foreign)
        assert replace(state, ledgers={}) == state
        for reader, since in self.holds.items():
            pinned = head.table.metadata.snapshot_by_name(f"hold-{reader}")
            held = next(rows for time, rows in reversed(self.history) if time <= since)
            assert contents(head, pinned) == held
        assert {name for name in head.table.metadata.refs if name.startswith("hold-")} == {
            f"hold-{reader}" for reader in self.holds
        }


TestShard = pytest.mark.slow(ShardMachine.TestCase)
TestShard.settings = explore(15, steps=12)  # a commit takes tens of ms
