"""Collections and sinks live, change, die and race in any order: each target is what its collection is, or was.

The collections `planes` (differential) and `weather` (append-only) are carried into PostgreSQL, Parquet files and
Iceberg tables. Between two steps of a run the run dies, loses its connection, or others act: a second run, a
correction, a trim, a pause, a drop, a switch to read-only. The model is ``Facts``, plain values; targets are read by
their own clients.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import settings_in
from tests.sinks.model import Change, Facts, Reader, Row, Seen, as_row, write_correction
from tests.sinks.postgres.conftest import connected
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.exploration import explore
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects import drop as drop_steps
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.collections.staged.batches import BatchName, corrections_branch
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.system.recorder import record_drops, record_run, record_standings
from tidemark.collections.system.status_table import read_status_table
from tidemark.collections.system.suspension import settle
from tidemark.errors import Paused, ReadOnly, StillRead, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.report import Outcome
from tidemark.sinks import removal
from tidemark.sinks import run as running
from tidemark.sinks.fencing import fence_sinks
from tidemark.sinks.removal import REMOVERS, clear_sinks
from tidemark.sinks.run import choose_sinks, run_sinks
from tidemark.sinks.targets.files import target as files
from tidemark.sinks.targets.iceberg import target as iceberg
from tidemark.sinks.targets.postgres import target as postgresql
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.postgres_server import PostgresServer
    from tidemark.collections.declarations.sink import SinkDeclaration
    from tidemark.report import CollectionReport

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

CARRIED = {"mirror": "planes", "changes": "planes", "appended": "weather"}  # the collection of each sink
SINKS, COLLECTIONS = st.sampled_from(list(CARRIED)), st.sampled_from(["planes", "weather"])
NAMES = ["name", "x", "y"]  # of columns
TEXTS = st.sampled_from(["a", "b", "", None])
ROWS = st.dictionaries(st.integers(0, 4), TEXTS, min_size=1, max_size=3)
HOLDS = [f"{point}{nth}" for point in publisher.FAIL_POINTS for nth in ("", ":2")]
POINTS = st.one_of(
    st.sampled_from([*running.FAIL_POINTS, "sink.TARGET-written", "sink.TARGET-committed"]), st.sampled_from(HOLDS)
)
TARGET_POINTS = {"connection": postgresql.FAIL_POINTS, "path": files.FAIL_POINTS, "catalog": iceberg.FAIL_POINTS}
WAITING = "sink.postgres-written"  # where others would wait for the lock of this very run
EVENTS = st.sampled_from(["trim", "pause", "drop", "recreate", "be-read-only"])
NOT_LOCKED_OUT = {"correct", "trim", "pause", "lose"}
MERGING = CompactionPolicy(min_small_files=2, max_deleted_ratio=0)
_schemas = count()


class SinkMachine(RuleBasedStateMachine):
    server_uri: str
    empty_catalog: Path

    @initialize(order=st.permutations(["pg", "files", "table"]))
    def begin(self, order: Sequence[str]) -> None:
        self.closing = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="tidemark-sinks-"))
        self.closing.callback(shutil.rmtree, folder)
        settings = connected(settings_in(folder), self.server_uri)
        shutil.copy(self.empty_catalog, settings.catalog_path)
        self.home = Home(settings, now_ms=1_000_000)
        connection = self.closing.enter_context(psycopg.connect(self.server_uri, autocommit=True))
        schema = f"machine_{next(_schemas)}"
        connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[arg-type]  # a name of the test
        self.reader = Reader(self.home, connection)
        self.places = dict(zip(CARRIED, order, strict=True))
        self.schema, self.folder = schema, folder
        self.facts: dict[str, Facts] = {}
        self.sinks: dict[str, SinkDeclaration] = {}  # the applied ones
        self.loaded: dict[str, int] = {}  # by sink: the upper of the first load
        self.resting: dict[str, Seen | None] = {}  # by paused sink: its target since
        self.paused: set[str] = set()
        self.statuses: dict[str, str | None] = {}
        self.staged: list[Row] | None = None  # what `planes` becomes by a flush
        self.waiting: list[Row] = []  # what was appended to `weather` since
        self.is_read_only = self.is_unfinished = False
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
            to = {
                "pg": f"connection: pg, table: {self.schema}.{name}",
                "files": f"path: {self.folder}/{name}",
                "table": f"catalog: tidemark, table: analytics.{name}",
            }[place]
            mode = "mirror" if name == "mirror" else "changes"
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

    @rule(name=st.sampled_from([*CARRIED, "weather"]))
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
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.paused)))
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
            assert not waiting
        except Crash:
            self.is_unfinished = True
        record_drops(deployment, known, who="a test", clock=clock)
        for name in names:
            self.facts.pop(name, None)
            self.sinks.pop(name, None)
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

    # -- sinks run -----------------------------------------------------------------------------------------------------

    def come(self, wanted: dict[int, str | None]) -> None:
        """Commit rows to both collections, so that each run has something to carry."""
        self.correct(wanted, set())
        self.append([*wanted.values()])

    @rule(wanted=ROWS)
    def run_all(self, wanted: dict[int, str | None]) -> None:
        self.come(wanted)
        for name in sorted(self.sinks):
            self.check(name, self.run_once(name))

    @rule(wanted=ROWS, later=ROWS, point=POINTS)
    def die(self, wanted: dict[int, str | None], later: dict[int, str | None], point: str) -> None:
        """Every sink dies at a point; history that nobody holds goes, and the next runs go on."""
        self.come(wanted)
        for name in sorted(self.sinks):
            try:
                with dying_at(self.point_of(name, point)):
                    self.run_once(name)
            except Crash:
                pass
        self.targets_are_states_of_their_collections()
        self.trim()
        self.run_all(later)

    @rule(wanted=ROWS, later=ROWS, point=POINTS, event=st.sampled_from(["overtake", "overtake", "correct", "lose"]))
    def race(self, wanted: dict[int, str | None], later: dict[int, str | None], point: str, event: str) -> None:
        """At a point of every sink something comes between, and the run goes on."""
        self.come(wanted)
        for name in sorted(self.sinks):
            self.run_beside(name, point, event, later)

    @rule(name=SINKS, wanted=ROWS, point=POINTS, event=EVENTS)
    def change_during_a_run(self, name: str, wanted: dict[int, str | None], point: str, event: str) -> None:
        self.come(wanted)
        if name in self.sinks:
            self.run_beside(name, point, event, wanted)

    def point_of(self, name: str, point: str) -> str:
        written, committed = TARGET_POINTS[self.sinks[name].to.form]
        return {"sink.TARGET-written": written, "sink.TARGET-committed": committed}.get(point, point)

    def run_beside(self, name: str, point: str, event: str, wanted: dict[int, str | None]) -> None:
        point = self.point_of(name, point)
        if point == WAITING and event not in NOT_LOCKED_OUT:
            point = "sink.claimed"
        with interrupted_at(point, lambda: self.meanwhile(name, event, wanted)) as failures:
            report = self.run_once(name)
        assert not failures or event == "lose", failures
        if event == "overtake" and report.error is None:
            self.check(name, self.run_once(name))

    def meanwhile(self, name: str, event: str, wanted: dict[int, str | None]) -> None:
        if event == "lose":
            raise Unreachable("the network is gone", hint="wait")
        if event in {"overtake", "correct"}:
            self.come(wanted)
        if event == "overtake":
            self.check(name, self.run_once(name))
        elif event == "trim":
            self.trim()
        elif event == "pause":
            self.pause(name)
            self.resting.pop(name, None)  # a run that is under way goes on
        elif not self.is_read_only and event == "drop":
            self.drop([name])
        elif not self.is_read_only and event == "recreate":
            self.drop([name])
            self.apply()
        elif not self.is_read_only and event == "be-read-only":
            self.switch()
            self.resting[name] = self.reader.read(self.sinks[name])

    def run_once(self, name: str) -> CollectionReport:
        """Run a sink as the command line does."""
        deployment = replace(self.home.deployment, asked_for=frozenset([name]))
        ran = settle(
            deployment, run_sinks(self.home.shards, deployment, choose_sinks(deployment, [name]), clock=self.home.clock)
        )
        record_run(deployment, ran, clock=self.home.clock)
        report = ran.collections[name]
        assert report.error is None or report.error.exit_code is not ExitCode.BUG, report.error
        rests = name not in self.sinks or name in self.paused or self.is_read_only
        if not rests and (report.error is None or report.error.exit_code is not ExitCode.FENCED):
            self.statuses[name] = "suspended" if report.error else "running"
        return report

    def check(self, name: str, report: CollectionReport) -> None:
        """After a run that nothing came between: the target is the collection."""
        facts, seen = self.facts[CARRIED[name]], self.reader.read(self.sinks[name])
        if name in self.paused or self.is_read_only:
            assert report.outcome is Outcome.SKIPPED, report
            return
        assert report.error is None, report.error
        if not facts.commits:  # the first commit of the collection is waited for
            assert report.details["waits_for"]
            return
        assert seen is not None
        assert seen.names == {*facts.names}
        assert sorted(seen.rows.elements(), key=repr) == sorted(facts.rows, key=repr)
        self.agree(name, seen, now=True)

    # -- what always holds ---------------------------------------------------------------------------------------------

    def agree(self, name: str, seen: Seen, *, now: bool) -> None:
        """Check that the target is what the collection was after a commit; ``now``: after the last one."""
        commits = self.facts[CARRIED[name]].commits
        last = commits[-1:] if now else commits
        if name == "mirror":
            states = [sorted(rows, key=repr) for _, _, rows in last]
            assert sorted(seen.rows.elements(), key=repr) in states, seen
            return
        loads = [self.loaded[name]] if name in self.loaded else [upper for upper, _, _ in commits]
        found = sorted(seen.changes, key=repr)
        fitting = [
            loaded
            for loaded in loads
            for upper, _, _ in last
            if loaded <= upper and sorted(self.facts[CARRIED[name]].log(loaded, upper), key=repr) == found
        ]
        assert fitting, f"{found} is no log from any of {loads} on"
        if now:
            self.loaded.setdefault(name, fitting[0])

    @invariant()
    def targets_are_states_of_their_collections(self) -> None:
        for name, sink in getattr(self, "sinks", {}).items():
            seen = self.reader.read(sink)
            if name in self.resting:
                assert seen == self.resting[name], f"{name} rests, and something was written"
            if (name in self.paused or self.is_read_only) and name not in self.resting:
                self.resting[name] = seen
            if not (name in self.paused or self.is_read_only):
                self.resting.pop(name, None)
            with open_target(sink, self.home.settings) as target:
                progress = target.look()
            shard = self.home.shard(CARRIED[name])
            state = shard.load().state
            applied = self.home.registry.read().sinks[name]
            if progress is None or progress.owner.sink_id != applied.id or progress.time is None:
                continue
            if progress.owner.table_uuid != str(shard.load().table.metadata.table_uuid):
                continue
            assert seen is not None
            self.agree(name, seen, now=False)
            held = state.holds[sink.hold]
            assert state.since <= held.since <= progress.time, "history that the sink needs is gone"

    @invariant()
    def nobody_holds_for_what_is_gone(self) -> None:
        for name in getattr(self, "facts", {}):
            holds = {*self.home.shard(name).load().state.holds}
            wanted = {sink.hold for sink in self.sinks.values() if sink.collection == name}
            assert self.is_unfinished or holds <= wanted, holds - wanted

    @invariant()
    def statuses_tell_what_happened(self) -> None:
        if getattr(self, "sinks", None):
            found = {each.name: each.status for each in read_status_table(self.home.deployment)}
            assert {name: found[name] for name in self.sinks} == {name: self.statuses[name] for name in self.sinks}


WALK = [
    ("die", "sink.TARGET-written"),
    ("die", "sink.TARGET-committed"),
    ("race", "sink.claimed"),
    ("race", "sink.carried"),
]


@pytest.fixture
def machine(postgres: PostgresServer, unique_name: str, empty_catalog: Path) -> type[SinkMachine]:
    class Machine(SinkMachine):
        server_uri = postgres.create_database(unique_name[-50:])

    Machine.empty_catalog = empty_catalog
    return Machine


def test_deaths_and_rivals_at_the_points_that_decide(machine: type[SinkMachine]) -> None:
    """The steps that chance must not leave out: each of these fails if one rule of a run is broken."""
    walking = machine()
    walking.begin(["files", "pg", "table"])
    walking.run_all({0: "a", 1: "b"})
    for number, (event, point) in enumerate(WALK):
        wanted, later = {1: f"w{number}", 2: "x"}, {1: f"l{number}", 3: None}
        if event == "die":
            walking.die(wanted, later, point)
        else:
            walking.race(wanted, later, point, "overtake")
        walking.targets_are_states_of_their_collections()
        walking.nobody_holds_for_what_is_gone()
        walking.statuses_tell_what_happened()
    walking.teardown()


def test_targets_are_what_their_collections_are(machine: type[SinkMachine]) -> None:
    run_state_machine_as_test(machine, settings=explore(8, steps=6))  # type: ignore[no-untyped-call]
