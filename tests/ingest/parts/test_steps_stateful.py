"""Mints, parts that are lost, late, damaged or doubled, appends by any holder, other ingests: a row comes once.

Rows come in the order of their days, so that none is ever late: a partition that was closed too early would put a row
into the quarantine, where only bad rows may be.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.ingest.parts.rounds import take_round, travel, workers, write
from tests.support.dying import Crash, dying_at
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, Home, make_odd_home, remove_odd_home
from tidemark.collections.append.append import append_rows
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Add
from tidemark.collections.deployment import Mode
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import FencedByEpoch, InputsGone, RangeOverlap, UpperMismatch
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.staging import files as file_staging
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.ingest.partitions.state import Partitions
from tidemark.ingest.parts import Engine, Minted, Part, Share, append, mint, share_out, steps
from tidemark.interval import Unit
from tidemark.report import CollectionReport, Outcome
from tidemark.write_buffer.formats.entry import Message
from tidemark.write_buffer.memory import MemoryState, registered

if TYPE_CHECKING:
    from tidemark.ingest.parts import Ingesting

DAY_MS = 86_400_000
SEQUENCERS, WORKERS = 3, 3
GOOD, BAD = "good", "bad"
CONFLICTS = (InputsGone, RangeOverlap, UpperMismatch, FencedByEpoch)
POINTS = (
    *steps.FAIL_POINTS,
    *(f"{point}{nth}" for point in (*file_staging.FAIL_POINTS, *publisher.FAIL_POINTS) for nth in ("", ":2")),
)
DEATHS = st.sampled_from([None, None, None, *POINTS])
HOLDERS, LATEST = st.integers(0, WORKERS - 1), st.integers(0, 2)
Number = tuple[int, int]  # of an entry: its sequencer, and its place there


class PartsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.log = MemoryState(SEQUENCERS)
        self.closing.enter_context(registered("parts", self.log))
        self.entries: dict[Number, dict[int, str]] = {}  # the kinds of rows by id
        self.batches: dict[int, int] = {}  # the ids of appended rows by the numbers of their batches
        self.sent, self.columns = 0, 0
        self.mode = Mode.READ_WRITE
        self.mints: list[tuple[Minted, dict[int, Share]]] = []  # the latest is first
        self.parts: list[Part] = []

    @initialize(odd=st.sampled_from(ODD_NAMES))
    def open_home(self, odd: str) -> None:
        self.home = Home(make_odd_home(odd), now_ms=1_000_000)
        self.closing.callback(remove_odd_home, self.home.settings)
        source = {"buffer": "memory:parts"}
        self.home.declare_writer("gate", schema="id bigint, at date", writes_to="memory:parts")
        declaration = self.home.declare_reader(
            source=source,
            schema="id bigint, at date",
            event_time="at",
            lifecycle={"late_arrive_window": "1s", "max_ahead": "30d", "late": "quarantine"},
        )
        self.home.switch(Mode.READ_WRITE)
        self.runs = self.closing.enter_context(workers(self.home, declaration, WORKERS))

    def teardown(self) -> None:
        try:
            if hasattr(self, "runs"):
                self.come_to_rest()
        finally:
            self.closing.close()

    @property
    def day(self) -> str:
        return f"1970-01-{1 + self.home.clock.now_ms() // DAY_MS:02}"

    # -- the log ------------------------------------------------------------------------------------------------------

    @rule(
        sequencer=st.integers(0, SEQUENCERS - 1),
        entries=st.lists(st.lists(st.sampled_from([GOOD, GOOD, BAD]), min_size=1, max_size=3), min_size=1, max_size=3),
    )
    def write(self, sequencer: int, entries: list[list[str]]) -> None:
        for kinds in entries:
            ids = dict(enumerate(kinds, start=self.sent))
            self.sent += len(ids)
            lines = [{"id": each if kind == GOOD else f"{each}!", "at": self.day} for each, kind in ids.items()]
            payload = "\n".join(map(json.dumps, lines)).encode()
            number = self.log.append(sequencer, Message(payload, (), self.home.clock.now_ms()))
            self.entries[sequencer, number] = ids

    @rule()
    def append_batch(self) -> None:
        number = len(self.batches)
        self.batches[number] = self.sent
        day = self.home.clock.now_ms() // DAY_MS
        rows = pa.table({"id": pa.array([self.sent], pa.int64()), "at": pa.array([day], pa.int32()).cast(pa.date32())})
        self.sent += 1
        name = BatchName("p", Range(number, number + 1))
        append_rows(self.home.shard("gate"), name, rows, deployment=self.home.deployment, clock=self.home.clock)

    @rule()
    def wait_a_day(self) -> None:
        if self.home.clock.now_ms() < 20 * DAY_MS:
            self.home.clock.step(DAY_MS)

    # -- the steps ----------------------------------------------------------------------------------------------------

    @rule(holder=HOLDERS, limit=st.sampled_from([None, None, 2, 5]), count=st.integers(1, WORKERS), point=DEATHS)
    def mint(self, holder: int, limit: int | None, count: int, point: str | None) -> None:
        self.runs[holder].engine = Engine(max_entries=limit)
        try:
            with dying_at(point):
                minted = mint(self.runs[holder])
        except (Crash, *CONFLICTS):
            return
        if isinstance(minted, Minted):
            assert self.mode is Mode.READ_WRITE
            minted = travel(minted)
            chosen = sorted({holder, *range(count)})
            self.mints = [(minted, share_out(minted, chosen, holder)), *self.mints[:2]]
        else:
            outcome = Outcome.UNCHANGED if self.mode is Mode.READ_WRITE else Outcome.SKIPPED
            assert minted.outcome is outcome, minted

    @rule(which=LATEST, worker=HOLDERS, writer=HOLDERS, point=DEATHS)
    def write_part(self, which: int, worker: int, writer: int, point: str | None) -> None:
        """Also twice, by another worker than the one that it was given to, or long after the append."""
        if which < len(self.mints):
            minted, shares = self.mints[which]
            if worker in shares:
                try:
                    with dying_at(point):
                        part = write(self.runs[writer], minted, shares[worker])
                except Crash:
                    return
                assert part.error is None or part.error.kind == "InputsGone", part.error
                self.parts.append(part)

    @rule(which=LATEST, holder=HOLDERS, lost=st.sets(st.integers(0, 3), max_size=2), point=DEATHS)
    def append(self, which: int, holder: int, lost: set[int], point: str | None) -> None:
        """With parts of other mints, too; without some that were lost."""
        if which < len(self.mints):
            minted, _ = self.mints[which]
            parts = [part for place, part in enumerate(reversed(self.parts[-6:])) if place not in lost]
            before = self.published()
            try:
                with dying_at(point):
                    report = append(self.runs[holder], minted, parts)
            except (Crash, *CONFLICTS):
                return
            assert (self.mode, report.outcome, report.error) == (Mode.READ_WRITE, Outcome.APPENDED, None)
            assert self.published() > before or report.batches

    @rule(holder=HOLDERS, lost=st.sets(st.integers(0, WORKERS - 1), max_size=2), limit=st.sampled_from([None, 4]))
    def take_round(self, holder: int, lost: set[int], limit: int | None) -> None:
        self.runs[holder].engine = Engine(max_entries=limit)
        try:
            self.take_round_of([self.runs[(holder + each) % WORKERS] for each in range(WORKERS)], lost)
        except InputsGone:  # no part came
            assert lost

    @rule(
        sequencer=st.integers(0, SEQUENCERS - 1),
        point=DEATHS,
        lost=st.sets(st.integers(0, 3), max_size=2),
        again=HOLDERS,
    )
    def be_overtaken(self, sequencer: int, point: str | None, lost: set[int], again: int) -> None:
        """In the order that matters: parts of two mints, an append that dies, and another holder's of the same mint."""
        self.write(sequencer, [[GOOD], [BAD]])
        for holder in (0, 1):
            self.write((sequencer + 1) % SEQUENCERS, [[BAD, GOOD]])
            self.mint(holder, None, WORKERS, None)
            for worker in range(WORKERS):
                self.write_part(0, worker, worker, None)
        self.append(0, 1, lost, point)
        self.append(again % 2, again, set(), None)

    def take_round_of(self, runs: list[Ingesting], lost: set[int]) -> CollectionReport:
        report = take_round(runs, but=lost)
        assert report.error is None
        return report

    @rule(which=st.integers(0, 5), of_quarantine=st.booleans())
    def lose_branch(self, which: int, *, of_quarantine: bool) -> None:
        if which < len(self.parts) and (part := self.parts[-1 - which]).branch:
            name = "events_quarantine" if of_quarantine and part.has_bad else "events"
            if f"{part.branch} " not in self.pending():  # bad rows of what was published are not anybody's to drop
                drop_staged(self.home.shard(name), [part.branch])

    def pending(self) -> str:
        properties = self.home.shard().load().table.properties
        return "".join(f"{line} " for line in properties.get("tidemark.ingest.quarantine", "").splitlines())

    # -- others -------------------------------------------------------------------------------------------------------

    @rule(point=DEATHS, limit=st.sampled_from([None, 3]))
    def ingest(self, point: str | None, limit: int | None) -> None:
        try:
            with dying_at(point):
                report = self.home.ingest(max_entries=limit)
        except Crash:
            return
        assert report.error is None

    @rule(there_and_back=st.booleans())
    def switch(self, *, there_and_back: bool) -> None:
        wanted = [Mode.READ_ONLY, Mode.READ_WRITE]
        if self.mode is Mode.READ_ONLY:
            wanted.reverse()
        for mode in wanted[: 1 + there_and_back]:
            self.home.switch(mode)
            self.mode = mode

    @rule()
    def flush(self) -> None:
        if self.mode is Mode.READ_WRITE:
            flush_all(self.home.shards, self.home.deployment, [], clock=self.home.clock)

    @rule()
    def alter(self) -> None:
        self.columns += 1
        (column,) = parse_columns(f"c{self.columns} string")
        alter_columns(self.home.shard(), [Add("events", column)])

    # -- what must hold -----------------------------------------------------------------------------------------------

    def published(self) -> set[Number]:
        found = self.home.shard().load().state.ledgers
        return {
            (int(producer.rsplit(".", 1)[1]), number)
            for producer, ledger in found.items()
            if producer.rsplit(".", 1)[1].isdecimal() and ".batches." not in producer
            for numbers in ledger.ranges
            for number in range(*numbers)
        }

    def published_batches(self) -> set[int]:
        ledger = self.home.shard().load().state.ledgers.get("gate.p", Ledger())
        return {self.batches[number] for numbers in ledger.ranges for number in range(*numbers)}

    def ids_of(self, numbers: set[Number], kind: str) -> set[int]:
        return {
            each for number in numbers for each, of in self.entries.get(number, {}).items() if of == kind
        }  # an entry of a batch has no rows by itself

    def in_quarantine(self) -> list[int]:
        return [int(json.loads(raw)["id"].rstrip("!")) for _, _, _, raw in self.home.bad() if raw is not None]

    @invariant()
    def what_is_visible_is_what_the_ledgers_say(self) -> None:
        if not hasattr(self, "runs"):
            return
        numbers = self.published()
        assert Counter(self.home.ids()) == Counter([*self.ids_of(numbers, GOOD), *self.published_batches()])
        assert {reason for _, _, reason, _ in self.home.bad()} <= {"row-unreadable"}, "no row is late"
        bad = Counter(self.in_quarantine())
        assert max(bad.values(), default=1) == 1
        assert set(bad) <= self.ids_of(set(self.entries), BAD)

    def come_to_rest(self) -> None:
        """Undisturbed rounds bring whatever is left, and leave no branch."""
        self.home.switch(Mode.READ_WRITE)
        self.mode = Mode.READ_WRITE
        flush_all(self.home.shards, self.home.deployment, [], clock=self.home.clock)
        self.write(0, [[GOOD]])  # a round that publishes drops what earlier attempts left
        for run in self.runs:
            run.engine = Engine()
        for _ in range(10):
            if self.take_round_of(self.runs, set()).outcome is Outcome.UNCHANGED:
                break
        else:
            pytest.fail("the rounds never come to rest")
        self.what_is_visible_is_what_the_ledgers_say()
        everything = set(self.entries)
        assert set(self.home.ids()) == {*self.ids_of(everything, GOOD), *self.batches.values()}
        assert set(self.in_quarantine()) == self.ids_of(everything, BAD)
        state = Partitions.parse(self.home.shard().load().table.properties, "at", Unit.DAY).state
        by_day = Counter(str(row["at"]) for row in self.home.rows())
        assert {name: partition.rows for name, partition in state.partitions.items()} == by_day
        assert self.home.branches() == set()


TestParts = pytest.mark.slow(PartsMachine.TestCase)
TestParts.settings = explore(15, steps=30)
