"""The life of two collections and of the sinks that carry them, as people declare, alter, pause and drop them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.conftest import settings_in
from tests.sinks.model import Change, Facts, Reader, Row, Seen, as_row, write_correction
from tests.sinks.postgres.conftest import connected
from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects import drop as drop_steps
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.collections.staged.batches import BatchName, corrections_branch
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.system.recorder import record_drops, record_standings
from tidemark.collections.system.status_table import read_status_table
from tidemark.errors import Paused, ReadOnly, StillRead
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.sinks import removal
from tidemark.sinks.fencing import fence_sinks
from tidemark.sinks.removal import REMOVERS, clear_sinks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.collections.declarations.sink import SinkDeclaration

CARRIED = {"mirror": "planes", "changes": "planes", "appended": "weather"}  # the collection of each sink
COLLECTIONS, OBJECTS = st.sampled_from(["planes", "weather"]), st.sampled_from([*CARRIED, "weather"])
NAMES = ["name", "x", "y"]  # of columns
TEXTS = st.sampled_from(["a", "b", "", None])
ROWS = st.dictionaries(st.integers(0, 4), TEXTS, min_size=1, max_size=3)
MERGING = CompactionPolicy(min_small_files=2, max_deleted_ratio=0)
_schemas = count()


class LifeMachine(RuleBasedStateMachine):
    """Nothing runs by itself; see ``test_stateful`` for what does."""

    server_uri: str
    empty_catalog: Path
    broker: str | None = None  # the address; without one no sink writes to a topic

    @initialize(order=st.permutations(["topic", "pg", "files", "table"]))
    def begin(self, order: Sequence[str]) -> None:
        self.closing = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="tidemark-sinks-"))
        self.closing.callback(shutil.rmtree, folder)
        settings = connected(settings_in(folder), self.server_uri)
        shutil.copy(self.empty_catalog, settings.catalog_path)
        self.home = Home(settings, now_ms=1_000_000)
        # Nothing is prepared: a statement that is would not survive that a table gets other columns.
        connection = self.closing.enter_context(
            psycopg.connect(self.server_uri, autocommit=True, prepare_threshold=None)
        )
        schema = f"machine_{next(_schemas)}"
        connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[arg-type]  # a name of the test
        self.reader = Reader(self.home, connection)
        self.places = dict(zip(CARRIED, [place for place in order if self.broker or place != "topic"], strict=False))
        self.lives = dict.fromkeys(CARRIED, 0)  # how often each sink was dropped
        self.schema, self.folder = schema, folder
        self.facts: dict[str, Facts] = {}
        self.sinks: dict[str, SinkDeclaration] = {}  # the applied ones
        self.loaded: dict[str, int] = {}  # by sink: the upper of the first load
        self.resting: dict[str, Seen | None] = {}  # by paused sink: its target since
        self.paused: set[str] = set()
        self.statuses: dict[str, str | None] = {}
        self.staged: list[Row] | None = None  # what `planes` becomes by a flush
        self.waiting: list[Row] = []  # what was appended to `weather` since
        self.is_read_only = self.is_unfinished = self.is_running = False
        self.next_batch = 0
        self.home.open()
        self.apply()

    def teardown(self) -> None:
        if hasattr(self, "closing"):
            self.closing.close()

    # -- what people declare -------------------------------------------------------------------------------------------

    def apply(self, renames: dict[str, dict[str, str]] | None = None) -> None:
        """Apply everything; what was dropped is made anew."""
        lines = ["version: 1", "collections:"]
        for name, kind in (("planes", "differential"), ("weather", "append-only")):
            facts = self.facts.setdefault(name, Facts(["id", "name"]))
            schema = ", ".join(
                f"{column} {'string' if place else 'bigint'}" for place, column in enumerate(facts.names)
            )
            source = ", key: [id], source: {format: json, path: planes.json}" if kind == "differential" else ""
            old = f", renames: {(renames or {}).get(name, {})}".replace("'", "")
            lines.append(f'  {name}: {{kind: {kind}, schema: "{schema}"{source}{old}}}')
        lines.append("sinks:")
        for name, place in self.places.items():
            mode = "mirror" if name == "mirror" else "changes"
            logs = "" if mode == "mirror" else self.lives[name]  # a log in a topic takes nothing back
            to = {
                "pg": f"connection: pg, table: {self.schema}.{name}",
                "files": f"path: {self.folder}/{name}",
                "table": f"catalog: tidemark, table: analytics.{name}",
                "topic": f"buffer: 'kafka://{self.broker}/{self.schema}.{name}{logs}?sequencers=2'",
            }[place]
            lines.append(f"  {name}: {{from: {CARRIED[name]}, to: {{{to}, existing: replace}}, mode: {mode}}}")
        self.home.declare("\n".join(lines))
        for name, applied in self.home.registry.read().sinks.items():
            self.sinks[name] = applied.declaration
            self.statuses.setdefault(name, None)

    @precondition(lambda self: not self.is_read_only)
    @rule(collection=COLLECTIONS, place=st.integers(1, 2), name=st.sampled_from(NAMES))
    def add_or_rename_a_column(self, collection: str, place: int, name: str) -> None:
        if collection not in self.facts:
            return
        names = self.facts[collection].names
        if name in names:
            return
        old = names[place] if place < len(names) else None
        names[place : place + 1] = [name]
        self.apply({collection: {old: name}} if old else {})

    @precondition(lambda self: not self.is_read_only and len(self.sinks) < len(CARRIED))
    @rule()
    def declare(self) -> None:
        self.apply()

    # -- rows come -----------------------------------------------------------------------------------------------------

    @rule(wanted=ROWS, deletes=st.sets(st.integers(0, 4), min_size=1, max_size=2))
    def correct(self, wanted: dict[int, str | None], deletes: set[int]) -> None:
        if "planes" not in self.facts:
            return
        facts, shard = self.facts["planes"], self.home.shard("planes")
        stored = {row[0]: row for row in facts.rows}
        new = {id_: as_row([id_, *(text for _ in facts.names[1:])]) for id_, text in wanted.items()}
        after = {id_: row for id_, row in (stored | new).items() if id_ not in deletes}
        retract = [row for row in facts.rows if after.get(row[0]) != row]
        insert = [row for row in after.values() if stored.get(row[0]) != row]
        self.home.clock.step(1_000)
        head = shard.load()
        lower, upper = head.state.open_upper("planes"), head.state.next_upper(self.home.clock.now_ms())
        batch = write_correction(head, facts.names, insert=insert, retract=retract, time=upper - 1)
        rows = list(after.values())
        if self.is_read_only:
            branch = corrections_branch(1, None)
            stage_whole(shard, batch, branch=branch, lower=lower, time=upper - 1, digest=None, digest_note="")
            self.staged = rows
            return
        Writer.join(shard, 1).publish(batch, lower=lower, new_upper=upper)
        facts.commit(upper, self.changes(facts, rows, upper - 1), rows)

    @staticmethod
    def changes(facts: Facts, rows: list[Row], time: int) -> list[Change]:
        gone = [Change(row, time, -1) for row in facts.rows if row not in rows]
        return [*gone, *(Change(row, time, 1) for row in rows if row not in facts.rows)]

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=3))
    def append(self, texts: list[str | None]) -> None:
        if "weather" not in self.facts:
            return
        facts, number = self.facts["weather"], self.next_batch
        self.next_batch += 1
        self.home.clock.step(1_000)
        rows = [as_row([number, *(text for _ in facts.names[1:])]) for text in texts]
        columns = [pa.repeat(pa.scalar(number, pa.int64()), len(texts))]
        columns += [pa.array(texts, pa.string()) for _ in facts.names[1:]]
        batch, table = BatchName("p", Range(number, number + 1)), pa.table(columns, names=facts.names)
        try:
            append_rows(
                self.home.shard("weather"), batch, table, deployment=self.home.deployment, clock=self.home.clock
            )
        except Paused:
            assert "weather" in self.paused
            return
        assert "weather" not in self.paused
        self.waiting += rows
        if not self.is_read_only:
            self.note_appends()

    def note_appends(self) -> None:
        facts, state = self.facts["weather"], self.home.shard("weather").load().state
        assert isinstance(state.upper, int)
        assert isinstance(state.lower, int)
        changes = [Change(row, state.lower, 1) for row in self.waiting]
        facts.commit(state.upper, changes, [*facts.rows, *self.waiting])
        self.waiting = []

    @rule()
    def trim(self) -> None:
        """Drop all history that no sink holds, as a maintenance without patience would."""
        if not self.is_read_only:
            remove_dropped(self.home.shards, self.home.deployment, clock=self.home.clock, grace_ms=0, removers=REMOVERS)
            self.is_unfinished = False
        for name in self.facts:
            shard = self.home.shard(name)
            upper = shard.load().state.upper
            assert isinstance(upper, int)
            downgrade_since(shard, upper, now_ms=self.home.clock.now_ms())
            writer = Writer.join(shard, 1)
            compact(writer, policy=MERGING)
            expire(writer, older_than_ms=SystemClock().now_ms() + 1_000)

    # -- the life of objects -------------------------------------------------------------------------------------------

    @rule(name=OBJECTS)
    def pause(self, name: str) -> None:
        if name not in self.sinks.keys() | self.facts.keys() or name in self.paused:
            return
        if self.is_read_only:
            with pytest.raises(ReadOnly):
                self.home.deployment.objects.pause([name])
            return
        self.home.deployment.objects.pause([name])
        record_standings(self.home.deployment, [name], clock=self.home.clock)
        self.paused.add(name)
        self.statuses[name] = "paused"

    @precondition(lambda self: self.paused and not self.is_read_only)
    @rule(name=OBJECTS)
    def resume(self, name: str) -> None:
        if name not in self.paused:
            return
        assert name in self.home.deployment.objects.resume([name])
        record_standings(self.home.deployment, [name], clock=self.home.clock)
        self.paused.remove(name)
        self.resting.pop(name, None)
        self.statuses[name] = "starting"

    @precondition(lambda self: not self.is_read_only)
    @rule(
        names=st.sampled_from([["mirror"], ["changes"], ["appended"], ["weather"], ["weather", "appended"]]),
        point=st.sampled_from(["", "", *drop_steps.FAIL_POINTS, *removal.FAIL_POINTS]),
    )
    def drop(self, names: list[str], point: str = "") -> None:
        shards, deployment, clock = self.home.shards, self.home.deployment, self.home.clock
        if not {*names} <= self.sinks.keys() | self.facts.keys():
            return
        if names == ["weather"] and "appended" in self.sinks:
            with pytest.raises(StillRead, match="sink 'appended' carries 'weather'"):
                plan_drop(shards, deployment, names, clock=clock)
            return
        known = {name: found for name, found in deployment.registry.objects().items() if name in names}
        try:
            with dying_at(point):
                plans = plan_drop(shards, deployment, names, clock=clock)
                waiting = clear_sinks(shards, deployment, drop(shards, deployment, plans, clock=clock))
            assert self.is_running or not waiting  # maintenance looks whether the run has claimed the target since
            self.is_unfinished |= bool(waiting)
        except Crash:
            self.is_unfinished = True
        record_drops(deployment, known, who="a test", clock=clock)
        for name in names:
            if self.sinks.pop(name, None):
                self.lives[name] += 1
            self.facts.pop(name, None)
            self.loaded.pop(name, None)
            self.resting.pop(name, None)
            self.statuses.pop(name, None)
            self.paused.discard(name)
            if name == "weather":
                self.waiting = []
            status = read_status_table(deployment, [name])[0].status
            assert status == "dropped", f"{name} is {status}"

    @rule()
    def switch(self) -> None:
        wanted = Mode.READ_WRITE if self.is_read_only else Mode.READ_ONLY
        self.home.switch(wanted)
        self.is_read_only = not self.is_read_only
        if self.is_read_only:
            assert not fence_sinks(self.home.deployment)
            return
        report = flush_all(self.home.shards, self.home.deployment, [], clock=self.home.clock)
        assert report.outcome == "ok", report.to_json()
        if self.staged is not None and "planes" in self.facts:
            facts, state = self.facts["planes"], self.home.shard("planes").load().state
            assert isinstance(state.upper, int)
            assert isinstance(state.lower, int)
            if isinstance(state.upper, int):
                facts.commit(state.upper, self.changes(facts, self.staged, state.lower), self.staged)
        self.staged = None
        if self.waiting and "weather" not in self.paused:
            self.note_appends()
