"""A shard against a list and three integers: what any sequence of operations leaves is what the model says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, make_odd_home, remove_odd_home
from tests.support.rows import NESTED_SCHEMA, Row, change_log, contents, correction, row_of, updates_table
from tidemark.errors import AsOfBeforeSince, Fenced, UpperMismatch
from tidemark.iceberg.commit.holds import downgrade_since, hold
from tidemark.iceberg.commit.writer import Writer  # Hypothesis looks at the annotations of rules
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shards import Shards

LEAVES = st.none() | st.lists(st.none() | st.builds(dict, y=st.none() | st.just("y")), max_size=2)
BRANCHES = st.none() | st.dictionaries(st.sampled_from("kl"), LEAVES, max_size=2).map(dict.items).map(sorted)
TREES = st.none() | st.lists(st.none() | st.builds(dict, x=st.none() | st.just(1), by=BRANCHES), max_size=2)
ROWS = st.builds(row_of, *(st.none() | each for each in (st.just(1), st.just("a"))), TREES)  # NULL at every level


class ShardMachine(RuleBasedStateMachine):
    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.contents: Counter[Row] = Counter()
        self.log: Counter[tuple[Row, int]] = Counter()
        self.foreign: Counter[Row] = Counter()
        self.since = self.upper = self.epoch = self.changed = 0
        self.holds: dict[str, int] = {}
        self.history: list[tuple[int, Counter[Row]]] = [(0, Counter())]  # contents, and the time from which on
        self.trimmed = 0  # the change log has the updates from this time on

    @initialize(target=writers, odd=st.sampled_from(ODD_NAMES))
    def first_writer(self, odd: str) -> Writer:
        self.home = make_odd_home(odd)
        self.shard = Shards.connect(self.home).create("s", schema=NESTED_SCHEMA)
        return self.raise_token()

    def teardown(self) -> None:
        remove_odd_home(self.home)

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
        table.append(updates_table([row], time=0, diff=1, schema=NESTED_SCHEMA).cast(table.schema().as_arrow()))
        self.foreign[row] += 1

    @rule(writer=writers)
    def compact(self, writer: Writer) -> None:
        if writer.token.epoch < self.epoch:
            with pytest.raises(Fenced):
                compact(writer)
        elif compact(writer, policy=CompactionPolicy(min_small_files=2)).outcome == "compacted":
            self.trimmed = self.since

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

    def since_trimmed(self, log: Counter[tuple[Row, int]]) -> Counter[tuple[Row, int]]:
        return Counter({key: diff for key, diff in log.items() if diff and key[1] >= self.trimmed})

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
        assert self.since_trimmed(change_log(head)) == self.since_trimmed(self.log)
        if self.upper:
            assert Counter(row_of(*row.values()) for row in read_arrow(self.shard).to_pylist()) == self.contents
        assert check_invariant(self.shard).holds
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
