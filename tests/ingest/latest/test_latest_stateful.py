"""Changes, spread keys, portions, compactions and deaths in any order: contents are the last write of the whole log.

The model takes the ledgers as they are, and applies to a dictionary what the numbers in them say, portion by portion.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.dying import Crash, dying_at
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, Home, make_odd_home, remove_odd_home
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.reading.arrow import changes_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.staging import files as file_staging
from tidemark.ingest.latest import commit, ingest
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.plan import share_fairly
from tidemark.report import Outcome
from tidemark.write_buffer.formats.entry import Message
from tidemark.write_buffer.memory import MemoryState, registered

if TYPE_CHECKING:
    from tidemark.collections.declarations.collection import Declaration

NAME, BUFFER, EVERYTHING = "events", "latest-machine", 1_000_000
SEQUENCERS = st.integers(0, 1)
DELETE, TOMBSTONE, NO_KEY = "delete", "tombstone", "no key"
WHAT = st.sampled_from([DELETE, TOMBSTONE, NO_KEY, None, "a", "b", "c"])
CHANGES = st.lists(st.tuples(st.integers(0, 4), WHAT), min_size=1, max_size=4)
STRAYS = st.sampled_from([False, False, False, True])
POINTS = (
    *commit.FAIL_POINTS,
    *ingest.FAIL_POINTS,
    *(f"{point}{nth}" for point in (*file_staging.FAIL_POINTS, *shard_commit.FAIL_POINTS) for nth in ("", ":2", ":3")),
)
Change = tuple[int, str | None]


def message(key: int, what: str | None) -> Message:
    if what == TOMBSTONE:
        return Message(None, (), 1_000, json.dumps({"id": key}).encode())
    row: dict[str, Any] = {"id": None if what == NO_KEY else key, "name": what}
    if what == DELETE:
        row = {"id": key, "op": "d"}
    return Message(json.dumps(row).encode(), (), 1_000, b"ignored")


class LatestMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.log = MemoryState(2)
        self.closing.enter_context(registered(BUFFER, self.log))
        self.entries: list[list[Change]] = [[], []]
        self.taken = [0, 0]  # numbers that the model has applied
        self.wanted: dict[int, tuple[str | None, int]] = {}  # by key: the name, and the sequencer that it came from
        self.bad: Counter[tuple[int, int]] = Counter()  # sequencer and number

    @initialize(odd=st.sampled_from(ODD_NAMES))
    def open_home(self, odd: str) -> None:
        self.home = Home(make_odd_home(odd), now_ms=1_000_000)
        self.closing.callback(remove_odd_home, self.home.settings)
        self.declaration = self.declare()

    def declare(self) -> Declaration:
        return self.home.declare_latest(NAME, source={"buffer": f"memory:{BUFFER}"}, delete_when={"op": "d"})

    def teardown(self) -> None:
        self.closing.close()

    # -- the log, and the model ---------------------------------------------------------------------------------------

    @rule(changes=CHANGES, strays=STRAYS)
    def write(self, changes: list[Change], *, strays: bool) -> None:
        """Keys choose their sequencer, as producers with a partitioner do; some of them stray."""
        for key, what in changes:
            sequencer = (key + strays) % 2
            assert self.log.append(sequencer, message(key, what)) == len(self.entries[sequencer])
            self.entries[sequencer].append((key, what))

    def apply_next(self, limit: int) -> None:
        """Apply what one commit publishes."""
        backlog = {each: len(self.entries[each]) - self.taken[each] for each in (0, 1)}
        arrived: list[tuple[int, int, Change]] = []
        for sequencer, count in share_fairly(backlog, limit).items():
            start = self.taken[sequencer]
            arrived += [(sequencer, n, self.entries[sequencer][n]) for n in range(start, start + count)]
            self.taken[sequencer] += count
        keyed = [each for each in arrived if each[2][1] != NO_KEY]
        self.bad.update((sequencer, number) for sequencer, number, (_, what) in arrived if what == NO_KEY)
        owners = {key: origin for key, (_, origin) in self.wanted.items()}
        for sequencer, _, (key, _) in keyed:
            owners.setdefault(key, sequencer)  # sequencer 0 comes first
        for sequencer, number, (key, what) in keyed:
            if owners[key] != sequencer:
                self.bad[sequencer, number] += 1
            elif what in {DELETE, TOMBSTONE}:
                self.wanted.pop(key, None)
            else:
                self.wanted[key] = (what, sequencer)

    def follow(self, limit: int) -> None:
        """Apply what the ledgers have, by portions of ``limit``."""
        ledgers = self.home.ledgers(NAME)
        published = [int(ledgers.get(str(each), "0:0").split(":")[1]) for each in (0, 1)]
        while self.taken != published:
            before = list(self.taken)
            self.apply_next(limit)
            assert before != self.taken, f"{published} is no whole number of portions"
            assert all(mine <= theirs for mine, theirs in zip(self.taken, published, strict=True))

    # -- runs ---------------------------------------------------------------------------------------------------------

    @rule(point=st.sampled_from([None, None, *POINTS]), portion=st.sampled_from([EVERYTHING, EVERYTHING, 2, 3]))
    def ingest(self, point: str | None, portion: int) -> None:
        waits = self.taken != [len(each) for each in self.entries]
        before = {key: name for key, (name, _) in self.wanted.items()}
        try:
            with dying_at(point):
                report = ingest_latest(
                    self.home.shards,
                    self.declaration,
                    deployment=self.home.deployment,
                    clock=self.home.clock,
                    portion_entries=portion,
                )
        except Crash:
            self.follow(portion)
            return
        self.follow(portion)
        assert self.taken == [len(each) for each in self.entries]
        assert waits or report.outcome is Outcome.UNCHANGED
        changed = before != {key: name for key, (name, _) in self.wanted.items()}
        assert not changed or report.outcome is Outcome.CORRECTED
        assert Counter((row[0], row[1]) for row in self.home.bad(NAME)) == self.bad

    @rule()
    def wait(self) -> None:
        self.home.clock.step(60_000)

    @rule()
    def compact(self) -> None:
        compact(Writer.join(self.home.shard(NAME), 1), policy=CompactionPolicy(min_small_files=2))

    @rule()
    def maintain(self) -> None:
        """By a machine whose clock is years ahead: all that is abandoned or superseded is old to it."""
        ahead = self.home.of_generation(1)
        ahead.clock = SteppedClock(10**13)
        report = maintain_all(None, ahead.deployment, [], clock=ahead.clock)
        assert [each.error for each in report.collections.values() if each.error] == []

    # -- what must hold -----------------------------------------------------------------------------------------------

    @rule()
    def come_to_rest(self) -> None:
        self.write([(0, "a"), (1, NO_KEY)], strays=False)  # a run that publishes drops what earlier attempts left
        self.ingest(None, EVERYTHING)
        assert self.home.branches() == set()

    @invariant()
    def contents_are_the_last_writes(self) -> None:
        rows = self.home.rows(NAME)
        found = {row["id"]: (row["name"], int(row["_producer"].rsplit(".", 1)[1])) for row in rows}
        assert len(found) == len(rows)
        assert found.keys() == self.wanted.keys()
        assert {key: name for key, (name, _) in found.items()} == {key: name for key, (name, _) in self.wanted.items()}
        assert found == self.wanted
        bad = Counter((row[0], row[1]) for row in self.home.bad(NAME))
        assert bad <= self.bad, "what is put aside is what was published, once"

    @invariant()
    def updates_add_up_to_the_contents(self) -> None:
        shard = self.home.shard(NAME)
        assert check_invariant(shard).holds
        if shard.load().state.since == 0:
            sums: Counter[tuple[int, str | None]] = Counter()
            for row in changes_arrow(shard, 0).to_pylist() if shard.load().state.upper else []:
                sums[row["id"], row["name"]] += row["_diff"]
            assert dict.fromkeys(((k, name) for k, (name, _) in self.wanted.items()), 1) == {
                key: count for key, count in sums.items() if count
            }


TestLatest = pytest.mark.slow(LatestMachine.TestCase)
TestLatest.settings = explore(40, steps=14)
