"""Collections and sinks live, change, die and race in any order: each target is what its collection is, or was.

The collections `planes` (differential) and `weather` (append-only) are carried into PostgreSQL, Parquet files,
Iceberg tables and topics of Kafka. Between two steps of a run the run dies, loses its connection, or others act: a
second run, a correction, a trim, a pause, a drop, a switch to read-only. The model is ``Facts``, plain values; targets
are read by their own clients.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.sinks.life_machine import CARRIED, ROWS, LifeMachine
from tests.sinks.model import Seen
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.exploration import explore
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.status_table import read_status_table
from tidemark.collections.system.suspension import settle
from tidemark.errors import Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit import publisher
from tidemark.report import Outcome
from tidemark.sinks import carrying
from tidemark.sinks import run as running
from tidemark.sinks.run import choose_sinks, run_sinks
from tidemark.sinks.targets.files import target as files
from tidemark.sinks.targets.iceberg import target as iceberg
from tidemark.sinks.targets.kafka import transaction
from tidemark.sinks.targets.postgres import target as postgresql
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer
    from tidemark.report import CollectionReport
    from tidemark.sinks.progress import Progress
    from tools.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

HOLDS = [f"{point}{nth}" for point in publisher.FAIL_POINTS for nth in ("", ":2")]
POINTS = st.one_of(
    st.sampled_from([*running.FAIL_POINTS, *carrying.FAIL_POINTS, "sink.TARGET-written", "sink.TARGET-committed"]),
    st.sampled_from(HOLDS),
)
TARGET_POINTS = {
    "connection": postgresql.FAIL_POINTS,
    "path": files.FAIL_POINTS,
    "catalog": iceberg.FAIL_POINTS,
    "buffer": tuple(f"{point}:2" for point in transaction.FAIL_POINTS),  # the first transaction is the claim
}
WAITING = "sink.postgres-written"  # where others would wait for the lock of this very run
EVENTS = st.sampled_from(["trim", "pause", "drop", "recreate", "be-read-only"])
NOT_LOCKED_OUT = {"correct", "trim", "pause", "lose"}


class SinkMachine(LifeMachine):
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

    @rule(name=st.sampled_from(list(CARRIED)), wanted=ROWS, point=POINTS, event=EVENTS)
    def change_during_a_run(self, name: str, wanted: dict[int, str | None], point: str, event: str) -> None:
        self.come(wanted)
        if name in self.sinks:
            self.run_beside(name, point, event, wanted)

    def point_of(self, name: str, point: str) -> str:
        *_, written, committed = TARGET_POINTS[self.sinks[name].to.form]
        return {"sink.TARGET-written": written, "sink.TARGET-committed": committed}.get(point, point)

    def run_beside(self, name: str, point: str, event: str, wanted: dict[int, str | None]) -> None:
        point = self.point_of(name, point)
        if point == WAITING and event not in NOT_LOCKED_OUT:
            point = "sink.claimed"
        self.is_running = True
        with interrupted_at(point, lambda: self.meanwhile(name, event, wanted), must_reach=False) as failures:
            report = self.run_once(name)
        self.is_running = False
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
        if report.error is None:
            status = "running"
        else:
            status = "stalled" if report.error.exit_code is ExitCode.TRANSIENT else "suspended"
        is_of_another = report.error is not None and (
            report.error.exit_code is ExitCode.FENCED or report.error.kind == "Dropped"
        )
        if not rests and not is_of_another:
            self.statuses[name] = status
        return report

    def check(self, name: str, report: CollectionReport) -> None:
        """After a run that nothing came between: the target is the collection."""
        facts, seen = self.facts[CARRIED[name]], self.reader.read(self.sinks[name])
        if name in self.paused or self.is_read_only:
            assert report.outcome is Outcome.SKIPPED, report
            return
        if report.error is not None and report.error.kind == "SchemaMismatch" and self.progress(name) is None:
            # The table that a dropped sink left has the columns of its time, until somebody removes it.
            assert self.lives[name]
            assert seen is not None
            assert seen.names != {*facts.names}
            self.remove_table(name)
            report, seen = self.run_once(name), self.reader.read(self.sinks[name])
        assert report.error is None, report.error
        if not facts.commits:  # the first commit of the collection is waited for
            assert report.details["waits_for"]
            return
        assert seen is not None
        assert seen.names in {None, frozenset(facts.names)}
        assert sorted(seen.rows.elements(), key=repr) == sorted(facts.rows, key=repr)
        self.agree(name, seen, now=True)

    def progress(self, name: str) -> Progress | None:
        """Return what the target says of this sink; None if it has loaded nothing yet, whoever wrote there before."""
        with open_target(self.sinks[name], self.home.settings) as target:
            found = target.look()
        is_own = found is not None and found.owner.sink_id == self.home.registry.read().sinks[name].id
        return found if is_own and found is not None and found.time is not None else None

    def remove_table(self, name: str) -> None:
        to: Any = self.sinks[name].to
        if to.form == "connection":
            self.reader.connection.execute(f"DROP TABLE {to.table}")  # type: ignore[arg-type]  # a name of the test
        else:
            self.home.shards.iceberg.drop_table(tuple(to.table.split(".")))

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
            progress = self.progress(name)
            shard = self.home.shard(CARRIED[name])
            state = shard.load().state
            if progress is None or progress.time is None:
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


WALK: list[tuple[str, dict[str, Any]]] = [
    ("run_all", {"wanted": {0: "a", 1: "b"}}),
    ("die", {"wanted": {1: "c"}, "later": {1: "d", 3: None}, "point": "sink.TARGET-written"}),
    ("die", {"wanted": {1: "e"}, "later": {1: "f", 3: "g"}, "point": "sink.TARGET-committed"}),
    ("race", {"wanted": {1: "h"}, "later": {1: "i", 3: None}, "point": "sink.claimed", "event": "overtake"}),
    ("race", {"wanted": {1: "j"}, "later": {1: "k", 4: "l"}, "point": "sink.carried", "event": "overtake"}),
    # What comes while sinks rest is carried afterwards, although history is trimmed meanwhile.
    ("pause", {"name": "changes"}),
    ("pause", {"name": "appended"}),
    ("correct", {"wanted": {0: "m"}, "deletes": {1, 2}}),
    ("append", {"texts": ["n", None]}),
    ("trim", {}),
    ("resume", {"name": "changes"}),
    ("resume", {"name": "appended"}),
    # A read-only deployment stages what comes, and no sink runs.
    ("switch", {}),
    ("run_all", {"wanted": {1: "o"}}),
    ("switch", {}),
    # What is made anew under the name of something that was dropped has nothing of it.
    ("change_during_a_run", {"name": "mirror", "wanted": {1: "p"}, "point": "sink.carried", "event": "recreate"}),
    ("drop", {"names": ["weather", "appended"], "point": "drop-sink.released"}),
    ("correct", {"wanted": {0: "q"}, "deletes": {4}}),
    ("trim", {}),
    ("declare", {}),
    ("run_all", {"wanted": {3: "r"}}),
    ("add_or_rename_a_column", {"collection": "planes", "place": 1, "name": "x"}),
    ("run_all", {"wanted": {1: "s"}}),
]
CHANGING_NO_TARGET = {"pause", "resume", "correct", "append"}


@pytest.fixture
def without_broker(postgres: PostgresServer, unique_name: str, empty_catalog: Path) -> type[SinkMachine]:
    class Machine(SinkMachine):
        server_uri = postgres.create_database(unique_name[-50:])

    Machine.empty_catalog = empty_catalog
    return Machine


@pytest.fixture
def with_broker(without_broker: type[SinkMachine], kafka: KafkaBroker) -> type[SinkMachine]:
    without_broker.broker = kafka.address
    return without_broker


def test_every_rule_at_least_once(without_broker: type[SinkMachine]) -> None:
    """The steps that chance must not leave out: each of these fails if one rule of a run is broken."""
    walking = without_broker()
    assert {each.function.__name__ for each in walking.rules} == {name for name, _ in WALK}
    walk(walking, ["files", "pg", "table"], WALK)


@pytest.mark.kafka
def test_a_short_walk_to_topics(with_broker: type[SinkMachine]) -> None:
    recreate = next(step for step in WALK if step[1].get("event") == "recreate")
    walk(with_broker(), ["topic"] * 3, [*WALK[:1], *WALK[2:4], recreate, *WALK[-1:]])


def walk(walking: SinkMachine, order: list[str], steps: list[tuple[str, dict[str, Any]]]) -> None:
    walking.begin(order)
    for name, arguments in steps:
        getattr(walking, name)(**arguments)
        for each in () if name in CHANGING_NO_TARGET else walking.invariants:
            each.function(walking)
    walking.teardown()


@pytest.mark.parametrize(
    ("machine", "steps"), [("without_broker", 6), pytest.param("with_broker", 2, marks=pytest.mark.kafka)]
)
def test_targets_are_what_their_collections_are(request: pytest.FixtureRequest, machine: str, steps: int) -> None:
    explored = request.getfixturevalue(machine)
    run_state_machine_as_test(explored, settings=explore(8, steps=steps))  # type: ignore[no-untyped-call]
