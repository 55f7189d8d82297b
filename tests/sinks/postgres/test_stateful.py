"""Corrections, runs, deaths, trimming, switches and new sinks in any order: targets are what the collection is.

The model is the rows by id, and how many updates a log of changes must hold.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.sinks.postgres.conftest import Database, connected
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.exploration import explore
from tests.support.homes import Home
from tests.support.rows import correction
from tidemark.catalog.items.kinds import SINK
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.report import Outcome
from tidemark.settings import Settings
from tidemark.sinks import run as running
from tidemark.sinks.progress import Owner
from tidemark.sinks.targets.postgres import target
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SINKS = st.sampled_from(["mirror", "changes"])
ROWS = st.dictionaries(st.integers(0, 4), st.sampled_from(["a", "b", "", None]), min_size=1, max_size=3)
POINTS = (*running.FAIL_POINTS, *target.FAIL_POINTS)
MERGING = CompactionPolicy(min_small_files=2, max_deleted_ratio=0)
_databases = count()


class SinkMachine(RuleBasedStateMachine):
    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()

    @initialize()
    def open_home(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="tidemark-sinks-"))
        self.closing.callback(shutil.rmtree, folder)
        self.database = Database(self.server.create_database(f"sink_machine_{next(_databases)}"))
        settings = connected(Settings.load({"TIDEMARK_HOME": str(folder)}), self.database.uri)
        self.home = Home(settings, schema="id bigint, name string", now_ms=1_000_000)
        self.home.apply(self.home.declaration("events", key=["id"]))
        self.rows: dict[int, str | None] = {}
        self.log: list[tuple[int, int]] = []  # the upper that a commit left, and its updates
        self.loaded: dict[str, tuple[int, int]] = {}  # by sink: the upper of its first load, and the rows then
        for name in ("mirror", "changes"):
            self.declare(name)

    def teardown(self) -> None:
        self.closing.close()

    def declare(self, mode: str) -> None:
        to = {"connection": "pg", "table": mode, "existing": "replace"}
        self.home.declare_sink(mode, mode=mode, to=to)
        self.loaded.pop(mode, None)

    # -- the collection ------------------------------------------------------------------------------------------------

    @rule(wanted=ROWS, deletes=st.sets(st.integers(0, 4), max_size=2))
    def correct(self, wanted: dict[int, str | None], deletes: set[int]) -> None:
        shard = self.home.shard()
        after = {id_: name for id_, name in {**self.rows, **wanted}.items() if id_ not in deletes}
        retract = [(id_, name) for id_, name in self.rows.items() if (id_, name) not in after.items()]
        insert = [(id_, name) for id_, name in after.items() if (id_, name) not in self.rows.items()]
        head = shard.load()
        lower, upper = head.state.open_upper("events"), head.state.next_upper(self.home.clock.now_ms())
        self.home.clock.step(1_000)
        batch = correction(head, insert=insert, retract=retract, time=upper - 1)
        Writer.join(shard, 1).publish(batch, lower=lower, new_upper=upper)
        self.rows = after
        self.log.append((upper, len(insert) + len(retract)))

    @rule()
    def trim(self) -> None:
        """Drop all history that no sink holds, as a maintenance without patience would."""
        shard = self.home.shard()
        downgrade_since(shard, self.home.upper("events"), now_ms=self.home.clock.now_ms())
        writer = Writer.join(shard, 1)
        compact(writer, policy=MERGING)
        expire(writer, older_than_ms=SystemClock().now_ms() + 1_000)

    # -- the sinks -----------------------------------------------------------------------------------------------------

    @rule(mode=SINKS, point=st.sampled_from([None, None, *POINTS]))
    def run(self, mode: str, point: str | None) -> None:
        with self.following(mode):
            try:
                with dying_at(point):
                    report = self.home.run_sink(mode)
            except Crash:
                return
            assert report.error is None, report.error
            self.check(mode)

    @rule(mode=SINKS, point=st.sampled_from(["sink.claimed", "sink.held", "sink.carried", "sink.moved"]))
    def run_two(self, mode: str, point: str) -> None:
        """Another run comes between two steps of one."""
        with self.following(mode):
            with interrupted_at(point, lambda: self.home.run_sink(mode)):
                report = self.home.run_sink(mode)
            assert report.error is None or report.exit_code is ExitCode.FENCED, report.error
            assert self.home.run_sink(mode).error is None
            self.check(mode)

    @rule(mode=SINKS, forgets=st.booleans())
    def recreate(self, mode: str, *, forgets: bool) -> None:
        """Drop the sink, whether or not its target could be told, and declare it again."""
        registry = self.home.registry
        applied = registry.read().sinks[mode]
        with self.home.catalog.join() as handle:
            handle.transact(lambda transaction: transaction.delete(SINK, lambda key, _: key.name == mode))
        if forgets:
            uuid = str(self.home.shard().load().table.metadata.table_uuid)
            with open_target(applied.declaration, self.home.settings) as opened:
                opened.forget(Owner(mode, applied.id, "events", uuid))
        self.declare(mode)

    @rule(mode=SINKS)
    def run_read_only(self, mode: str) -> None:
        before = self.database.rows(f"SELECT * FROM {mode}") if self.database.exists(mode) else None
        self.home.switch(Mode.READ_ONLY)
        assert self.home.run_sink(mode).outcome is Outcome.SKIPPED
        self.home.switch(Mode.READ_WRITE)
        assert before == (self.database.rows(f"SELECT * FROM {mode}") if self.database.exists(mode) else None)

    # -- the model -----------------------------------------------------------------------------------------------------

    def following(self, mode: str) -> ExitStack:
        """Note the rows of the first load, whichever run did it, when the block ends."""
        noting = ExitStack()
        noting.callback(self.note, mode, self.home.upper("events"), len(self.rows))
        return noting

    def note(self, mode: str, upper: int, rows: int) -> None:
        applied = self.home.registry.read().sinks[mode]
        with open_target(applied.declaration, self.home.settings) as opened:
            found = opened.look()
        if found is None or found.owner.sink_id != applied.id or found.time is None:
            return
        if mode not in self.loaded:
            self.loaded[mode] = upper, rows

    def check(self, mode: str) -> None:
        if not self.log:  # the first commit of the collection is waited for
            assert not self.database.exists(mode)
            return
        self.note(mode, self.home.upper("events"), len(self.rows))
        wanted = sorted(self.rows.items(), key=repr)
        if mode == "mirror":
            assert self.database.rows("SELECT * FROM mirror") == wanted
            return
        updates = self.database.rows("SELECT id, name, _time, _diff FROM changes")
        total = Counter[tuple[int, str | None]]()
        for id_, name, _, diff in updates:
            total[id_, name] += diff
        assert sorted((row for row, diff in total.items() if diff), key=repr) == wanted
        assert set(total.values()) <= {0, 1}
        upper, rows = self.loaded[mode]
        assert len(updates) == rows + sum(changed for left, changed in self.log if left > upper), "each update once"


def test_targets_are_what_the_collection_is(postgres: PostgresServer) -> None:
    class Machine(SinkMachine):
        server = postgres

    run_state_machine_as_test(Machine, settings=explore(12, steps=14))  # type: ignore[no-untyped-call]
