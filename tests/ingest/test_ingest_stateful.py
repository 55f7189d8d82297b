"""Ingests, flushes, losses and deaths in any order: a row comes once or is reported lost, a bad row stands once.

The model knows each entry of the log by its number and each row by its id. Whatever the ledgers have is visible, whole
and once; what an undisturbed run finds in the end, it reads, or it says how many entries are gone.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.clock import SteppedClock
from tests.support.commits import grow_from_main
from tests.support.discarding import discard
from tests.support.dying import Crash, dying_at, surviving
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, Home, make_odd_home, remove_odd_home
from tidemark.catalog.deployment import modes as stored_mode
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.staged import flush as flush_module
from tidemark.collections.staged.batches import list_batches, queued_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import FencedByGeneration, ReadOnly
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.reading.invariant import check_ledgers
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.damage import find_damage
from tidemark.iceberg.staging import files as file_staging
from tidemark.iceberg.staging.branches import branch_name
from tidemark.ingest import quarantine
from tidemark.ingest import stage as staging
from tidemark.ingest.partitions.state import PROPERTY, Partitions
from tidemark.ingest.parts import steps
from tidemark.ingest.persist import persist as persisting
from tidemark.ingest.persist.persist import persist_all
from tidemark.ingest.publish import WRITER
from tidemark.ingest.quarantine import list_quarantined, quarantine_name, retry
from tidemark.ingest.replay import replay as replaying
from tidemark.ingest.replay.plan import Request
from tidemark.ingest.replay.replay import replay_all
from tidemark.interval import Unit
from tidemark.report import CollectionReport, Outcome
from tidemark.write_buffer.formats.entry import Message
from tidemark.write_buffer.memory import MemoryState, registered

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard

NAME, BUFFER = "events", "machine"
SEQUENCERS, GENERATIONS = st.integers(0, 1), st.sampled_from([1, 1, 1, 2, 2, 3])
GOOD, FITS_LATER, NEVER_FITS = "good", "without a table", "of another type"
ENTRIES = st.lists(st.lists(st.sampled_from([GOOD, GOOD, FITS_LATER, NEVER_FITS]), max_size=3), min_size=1, max_size=3)
POINTS = (
    *steps.FAIL_POINTS,
    *staging.FAIL_POINTS,
    *(f"{point}{nth}" for point in (*file_staging.FAIL_POINTS, *shard_commit.FAIL_POINTS) for nth in ("", ":2")),
)
DEATHS = st.sampled_from([None, None, *POINTS])
PERSIST_DEATHS = st.sampled_from(
    [None, *persisting.FAIL_POINTS, *(f"{point}{nth}" for point in shard_commit.FAIL_POINTS for nth in ("", ":2"))]
)
REPLAY_DEATHS = st.sampled_from([None, None, *replaying.FAIL_POINTS, *shard_commit.FAIL_POINTS])
FLUSH_DEATHS = st.sampled_from([None, *flush_module.FAIL_POINTS, *shard_commit.FAIL_POINTS])
SCHEMA, RULES = "id bigint, name string, at date", {"late_arrive_window": "1s", "max_ahead": "30d"}
DAYS = 3  # to which rows belong by their ids
Number = tuple[int, int]  # of an entry: its sequencer, and its place there


def payload(ids: dict[int, str]) -> bytes:
    rows = {GOOD: {"_table": "t"}, FITS_LATER: {}, NEVER_FITS: {"_table": "t", "name": 5}}
    return b"\n".join(
        json.dumps({"id": each, "at": f"1970-01-0{1 + each % DAYS}", **rows[kind]}).encode()
        for each, kind in ids.items()
    )


class IngestMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.log = MemoryState(2)
        self.closing.enter_context(registered(BUFFER, self.log))
        self.entries: dict[Number, dict[int, str]] = {}  # the kinds of rows by id
        self.leader, self.mode, self.led = 1, Mode.READ_WRITE, {1}
        self.known: set[Number] = set()  # that the collection ever had, staged or published
        self.lost: set[Number] = set()  # that the report of an ingest has counted as lost
        self.retried: set[int] = set()

    @initialize(odd=st.sampled_from(ODD_NAMES))
    def open_home(self, odd: str) -> None:
        home = Home(make_odd_home(odd), now_ms=1_000_000)
        self.closing.callback(remove_odd_home, home.settings)
        self.homes = {generation: home.of_generation(generation) for generation in (1, 2, 3)}
        self.declare("fail")
        home.switch(Mode.READ_WRITE)

    def teardown(self) -> None:
        self.closing.close()

    def declare(self, on_expired: str) -> None:
        source = {"buffer": f"memory:{BUFFER}", "table": "t", "on_expired": on_expired}
        self.declaration = self.homes[self.leader].declare_reader(
            NAME, source=source, schema=SCHEMA, event_time="at", lifecycle=RULES
        )

    @property
    def home(self) -> Home:
        return self.homes[self.leader]

    @property
    def shard(self) -> Shard:
        return self.homes[1].shard(NAME)

    def mode_of(self, generation: int) -> Mode | None:
        """The mode of a deployment; None if it was replaced."""
        if generation < self.leader:
            return None
        return self.mode if generation == self.leader else Mode.READ_ONLY

    def ids_of(self, numbers: set[Number], *kinds: str) -> set[int]:
        return {each for number in numbers for each, kind in self.entries[number].items() if kind in kinds}

    def published(self) -> set[Number]:
        found = self.shard.load().state.ledgers
        ledgers = {producer.rsplit(".", 1)[1]: ledger for producer, ledger in found.items()}
        return {
            (int(sequencer), number)
            for sequencer, ledger in ledgers.items()
            if sequencer.isdecimal()
            for numbers in ledger.ranges
            for number in range(*numbers)
        }

    def staged(self, generations: set[int]) -> set[Number]:
        return {
            (int(batch.name.producer.rsplit(".", 1)[1]), number)
            for batch in queued_batches(self.shard.load(), collection=NAME)
            if batch.generation in generations
            for number in range(*batch.name.range)
        }

    def in_quarantine(self) -> list[int]:
        return [json.loads(raw)["id"] for _, _, _, raw in self.homes[1].bad(NAME) if raw is not None]

    def counted(self) -> dict[str, int]:
        """The rows of each partition, by the state that ingests and retries keep."""
        state = Partitions.parse(self.shard.load().table.properties, "at", Unit.DAY).state
        return {name: partition.rows for name, partition in state.partitions.items()}

    def visible_by_day(self) -> Counter[str]:
        return Counter(str(row["at"]) for row in self.homes[1].rows(NAME))

    # -- the log ----------------------------------------------------------------------------------------------------

    @rule(sequencer=SEQUENCERS, entries=ENTRIES)
    def write(self, sequencer: int, entries: list[list[str]]) -> None:
        first = sum(len(ids) for ids in self.entries.values())
        for kinds in entries:
            ids = dict(enumerate(kinds or [GOOD], start=first))
            first += len(ids)
            number = self.log.append(sequencer, Message(payload(ids), (), 1_000))
            self.entries[sequencer, number] = ids

    @rule(sequencer=SEQUENCERS, share=st.sampled_from([0.3, 0.6, 1.0]))
    def expire(self, sequencer: int, share: float) -> None:
        earliest, watermark = self.log.bounds(sequencer)
        self.log.expire(sequencer, earliest + round((watermark - earliest) * share))

    # -- runs -------------------------------------------------------------------------------------------------------

    @rule(generation=GENERATIONS, point=DEATHS, limit=st.sampled_from([None, None, 2]))
    def ingest(self, generation: int, point: str | None, limit: int | None) -> None:
        mode = self.mode_of(generation)
        if mode is None:
            with pytest.raises(FencedByGeneration):
                self.homes[generation].ingest(NAME)
            return
        try:
            with dying_at(point):
                report = self.homes[generation].ingest(NAME, max_entries=limit)
        except Crash:
            return
        self.known |= self.staged(self.led)
        if report.error is not None:
            assert report.error.kind == "NoLongerExists"
            assert any(self.log.bounds(sequencer)[0] for sequencer in (0, 1))
        else:
            outcome = Outcome.APPENDED if mode is Mode.READ_WRITE else Outcome.STAGED
            assert report.outcome in {outcome, Outcome.UNCHANGED}
            assert "lost" not in report.details

    @rule(generation=GENERATIONS, wanted=st.sampled_from(Mode), point=st.sampled_from([None, *stored_mode.FAIL_POINTS]))
    def switch(self, generation: int, wanted: Mode, point: str | None) -> None:
        home = self.homes[generation]
        if generation < self.leader:
            with pytest.raises(FencedByGeneration):
                home.switch(wanted)
            return
        surviving(lambda: home.switch(wanted), point)
        if generation == self.leader or wanted is Mode.READ_WRITE:
            self.leader, self.mode = generation, wanted
            self.led.add(generation)

    @rule(generation=GENERATIONS, point=FLUSH_DEATHS)
    def flush(self, generation: int, point: str | None) -> None:
        home, mode = self.homes[generation], self.mode_of(generation)
        if mode is not Mode.READ_WRITE:
            with pytest.raises(FencedByGeneration if mode is None else ReadOnly):
                flush_all(home.shards, home.deployment, [], clock=home.clock)
            return
        try:
            with dying_at(point):
                flush_all(home.shards, home.deployment, [], clock=home.clock)
        except Crash:
            return

    @rule(point=st.sampled_from([None, *quarantine.FAIL_POINTS, *shard_commit.FAIL_POINTS]))
    def retry(self, point: str | None) -> None:
        """With the table that their producers forgot, the rows that fit by now leave the others of their entry."""
        if self.mode is Mode.READ_ONLY:
            return
        home = self.home

        def operation() -> CollectionReport:
            return retry(home.shards, home.deployment, self.declaration, clock=home.clock, table="t")

        fit = set(self.in_quarantine()) & self.ids_of(set(self.entries), FITS_LATER)
        report, died = surviving(operation, point)
        assert isinstance(report, CollectionReport)
        assert report.inserted in {len(fit - self.retried), 0 if died else len(fit - self.retried)}
        self.retried |= fit
        waiting = {json.loads(row.raw or b"{}")["id"] for row in list_quarantined(home.shards, NAME)}
        assert waiting == set(self.in_quarantine()) - self.retried

    @rule(generation=GENERATIONS, point=PERSIST_DEATHS, now=st.booleans())
    def persist(self, generation: int, point: str | None, *, now: bool) -> None:
        home = self.homes[generation]
        try:
            with dying_at(point):
                report, left = persist_all(
                    home.shards,
                    home.deployment,
                    [self.declaration],
                    clock=home.clock,
                    engine=persisting.Engine(everything=now),
                )
        except Crash:
            return
        error = report.collections[NAME].error
        refusals = {None: "FencedByGeneration", Mode.READ_ONLY: "ReadOnly"}
        assert (left, error and error.kind) == ([], refusals.get(self.mode_of(generation)))

    @rule(
        generation=GENERATIONS,
        point=REPLAY_DEATHS,
        starts=st.dictionaries(SEQUENCERS, st.integers(0, 4), max_size=2),
        days=st.sets(st.integers(1, DAYS)),
        skips_lost=st.booleans(),
    )
    def replay(
        self, generation: int, point: str | None, starts: dict[int, int], days: set[int], *, skips_lost: bool
    ) -> None:
        """At any moment the rows that are there are those of the log: the contents stay as they are."""
        published = self.published()
        request = Request(
            partitions=frozenset(f"1970-01-0{day}" for day in days) or None,
            starts={
                id_: start for id_, start in starts.items() if any((id_, n) in published for n in range(start, 99))
            },
            skips_lost=skips_lost,
        )
        report, _ = surviving(partial(self.replayed, generation, request), point)
        assert isinstance(report, CollectionReport)
        refusals = {None: "FencedByGeneration", Mode.READ_ONLY: "ReadOnly"}
        kind = report.error and report.error.kind
        if kind == "NoLongerExists":
            assert (skips_lost, self.mode_of(generation)) == (False, Mode.READ_WRITE)
            assert any(self.log.bounds(sequencer)[0] for sequencer in (0, 1))
        else:
            assert kind == refusals.get(self.mode_of(generation))

    def replayed(self, generation: int, request: Request) -> CollectionReport:
        home = self.homes[generation]
        report = replay_all(home.shards, home.deployment, [self.declaration], request, clock=home.clock, who="w")
        return report.collections[NAME]

    @rule(data=st.data(), point=REPLAY_DEATHS, persists=st.booleans())
    def lose_rows_and_replay(self, data: st.DataObject, point: str | None, *, persists: bool) -> None:
        """Another engine deletes rows; those whose entries the log has come back, persisted or not."""
        if self.mode is Mode.READ_ONLY:
            return
        there = {number for number in self.published() if number[1] >= self.log.bounds(number[0])[0]}
        good = sorted(self.ids_of(there, GOOD))
        if not good:
            return
        gone = data.draw(st.lists(st.sampled_from(good), min_size=1, unique=True))
        with pytest.warns(UserWarning, match="copy-on-write"):
            self.shard.load().table.delete(f"id in ({', '.join(map(str, gone))})")
        if persists:
            self.persist(self.leader, None, now=True)
        starts = {id_: 0 for id_ in (0, 1) if any(number[0] == id_ for number in there)}
        report, _ = surviving(partial(self.replayed, self.leader, Request(starts=starts, skips_lost=True)), point)
        assert isinstance(report, CollectionReport)
        assert report.error is None

    @rule(minutes=st.sampled_from([1, 40]))
    def wait(self, minutes: int) -> None:
        self.home.clock.step(60_000 * minutes)

    @rule()
    def maintain(self) -> None:
        """By a machine whose clock is years ahead: all that is abandoned or superseded is old to it."""
        if self.mode is Mode.READ_WRITE:
            ahead = self.home.of_generation(self.leader)
            ahead.clock = SteppedClock(10**13)
            report = maintain_all(None, ahead.deployment, [], clock=ahead.clock)
            assert [each.error for each in report.collections.values() if each.error] == []

    # -- losses -----------------------------------------------------------------------------------------------------

    @rule()
    def lose_the_state_of_partitions(self) -> None:
        table = self.shard.load().table
        if PROPERTY in table.properties:
            with table.transaction() as transaction:
                transaction.remove_properties(PROPERTY)

    @rule(which=st.integers(0, 3))
    def discard(self, which: int) -> None:
        batches = list_batches(self.home.shards, [NAME])
        if batches:
            batch = batches[which % len(batches)]
            chosen = Selection(names=(NAME,), range=batch.name.range, generation=batch.generation)
            done = discard(self.home.shards, self.home.deployment, chosen, who="w", why="y", clock=self.home.clock)
            assert batch in done

    @rule(which=st.integers(0, 3))
    def damage(self, which: int) -> None:
        """A staged file goes; whoever looks deeper is told which."""
        batches = [batch for batch in list_batches(self.home.shards, [NAME]) if batch.rows]
        if batches:
            table = self.shard.load().table
            snapshot = table.metadata.snapshot_by_id(batches[which % len(batches)].snapshot_id)
            assert snapshot is not None
            path = next(iter(read_added_files(table.io, snapshot))).file_path
            if table.io.new_input(path).exists():
                table.io.delete(path)
            assert path in {each.path for each in find_damage(self.shard.load())}

    @rule(
        sequencer=SEQUENCERS,
        how=st.sampled_from(["damage", "discard", "death", "new leader"]),
        point=st.sampled_from(staging.FAIL_POINTS),
        first=st.sampled_from(["flush", "ingest"]),
        is_expired=st.booleans(),
    )
    def stage_and_lose(self, sequencer: int, how: str, point: str, first: str, *, is_expired: bool) -> None:
        """In the order that matters: staged with a bad row, lost on the way, and then published or read again."""
        self.switch(self.leader, Mode.READ_ONLY, None)
        self.write(sequencer, [[GOOD, FITS_LATER]])
        self.ingest(self.leader, point if how == "death" else None, None)
        if how in {"damage", "discard"}:
            getattr(self, how)(0)
        if is_expired:
            self.expire(sequencer, 1.0)
        self.switch(min(self.leader + (how == "new leader"), 3), Mode.READ_WRITE, None)
        if first == "flush":
            self.flush(self.leader, None)
        self.ingest(self.leader, None, None)
        self.come_to_rest()

    @rule(generation=GENERATIONS, of_quarantine=st.booleans())
    def write_as_orphan(self, generation: int, *, of_quarantine: bool) -> None:
        """A driver of Spark's whose attempt was dropped writes on: Iceberg makes its branch anew, above main."""
        name = quarantine_name(NAME) if of_quarantine and self.in_quarantine() else NAME
        shard = self.homes[1].shard(name)
        row = {PRODUCER: "orphan", BATCH: 0}
        rows = pa.Table.from_pylist([row], schema=arrow_schema(shard.load().table))
        grow_from_main(shard, branch_name(generation=generation, writer=WRITER, batch="0" * 32), rows)

    # -- what must hold ---------------------------------------------------------------------------------------------

    @rule()
    def come_to_rest(self) -> None:
        """Undisturbed runs read whatever is left, or say how much is lost."""
        self.home.switch(Mode.READ_WRITE)
        self.mode = Mode.READ_WRITE
        self.write(0, [[GOOD]])  # a run that publishes drops what earlier attempts left
        flush_all(self.home.shards, self.home.deployment, [], clock=self.home.clock)
        lost = 0
        for _ in range(10):
            before, report = self.published(), self.home.ingest(NAME)
            if report.error is not None:
                assert report.error.kind == "NoLongerExists"
                self.declare("earliest")
                continue
            if report.outcome is Outcome.UNCHANGED:
                break
            gone = {each for each in self.published() - before if each[1] < self.log.bounds(each[0])[0]}
            assert report.details.get("lost", 0) == len(gone)
            self.lost |= gone
            lost += len(gone)
        else:
            pytest.fail("the ingest never comes to rest")
        self.declare("fail")
        published = self.published()
        self.persist(self.leader, None, now=True)
        assert self.counted() == self.visible_by_day()
        state = Partitions.parse(self.shard.load().table.properties, "at", Unit.DAY).state
        assert [name for name, each in state.partitions.items() if not each.windows.is_persisted] == []
        assert self.known <= published
        assert {each for each in self.entries if each[1] >= self.log.bounds(each[0])[0]} <= published
        assert self.ids_of(published - self.lost, FITS_LATER, NEVER_FITS) <= set(self.in_quarantine())
        assert self.staged(self.led) == set()
        attempts = {branch for branch in self.home.branches() if f"/{WRITER}/" in branch}
        assert {branch for branch in attempts if int(branch.split("/")[1]) <= self.leader} == set()

    @invariant()
    def ledgers_are_what_is_visible(self) -> None:
        published = self.published()
        self.known |= published | self.staged(self.led)
        visible = Counter(self.homes[1].ids(NAME))
        assert visible == Counter([*self.ids_of(published - self.lost, GOOD), *self.retried])
        assert Counter(self.counted()) <= self.visible_by_day(), "nothing counts twice"
        bad = Counter(self.in_quarantine())
        assert max(bad.values(), default=1) == 1
        assert set(bad) <= self.ids_of(set(self.entries), FITS_LATER, NEVER_FITS)

    @invariant()
    def a_deeper_look_finds_the_batches_of_all_rows(self) -> None:
        unknown, _ = check_ledgers(self.shard.load())
        assert unknown == Counter()


TestIngest = pytest.mark.slow(IngestMachine.TestCase)
TestIngest.settings = explore(10, steps=14)
