"""The changes of a collection as a table in PostgreSQL: each update once, in order, and their sum is the contents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from tests.ingest.event_rows import at, declare, send
from tests.sinks.changes import change
from tests.sinks.postgres.conftest import connected
from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.shard.state import NEVER
from tidemark.ingest.persist.persist import Engine, choose_persisted, persist_all
from tidemark.ingest.replay.plan import Request
from tidemark.ingest.replay.replay import replay_all
from tidemark.report import Outcome
from tidemark.sinks import carrying
from tidemark.sinks.reading.rows import cut_times

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sinks.postgres.conftest import Database
    from tidemark.settings import Settings

pytestmark = pytest.mark.postgres

TO = {"connection": "pg", "table": "copies"}
SUM = "SELECT id, name FROM copies GROUP BY id, name HAVING sum(_diff) > 0"


def test_changes_are_appended_with_time_and_diff(sinking: Home, database: Database) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    first = sinking.run_sink().upper
    change(sinking, put={1: "B"}, delete=(0,))
    second = sinking.run_sink()
    assert (second.inserted, second.retracted) == (1, 2)
    log = database.rows("SELECT id, name, _diff FROM copies WHERE _time >= " + str(first))
    assert log == [(0, "a", -1), (1, "B", 1), (1, "b", -1)]
    assert database.rows(SUM) == sinking.tuples("events")


def test_every_update_between_two_runs_is_told(sinking: Home, database: Database) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    sinking.run_sink()
    for name in ("x", "y", "z"):
        change(sinking, put={1: name})
    sinking.run_sink()
    assert database.rows("SELECT count(*) FROM copies WHERE id = 1") == [(7,)]
    assert database.rows(SUM) == sinking.tuples("events")


def test_many_updates_are_cut_into_transactions_between_commits(
    sinking: Home, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    sinking.run_sink()
    uppers = []
    for name in ("x", "y", "z"):
        change(sinking, put={1: name, 2: name})
        uppers.append(sinking.upper("events"))
    monkeypatch.setattr(carrying, "cut_times", partial(cut_times, rows=5))
    with pytest.raises(Crash), dying_at("sink.carried:2"):
        sinking.run_sink()
    assert database.progress() == uppers[1]
    assert sinking.run_sink().inserted == 2
    assert database.rows("SELECT count(*) FROM copies") == [(3 + 3 * 4,)]
    assert database.rows(SUM) == sinking.tuples("events")


def test_columns_that_come_and_go(sinking: Home, database: Database) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    sinking.run_sink()
    with sinking.shard().load().table.update_schema() as update:
        update.delete_column("name")
        update.add_column("size", LongType())
        update.move_before("size", "_time")
    assert sinking.run_sink().error is None, "columns alone"
    assert database.rows("SELECT id, name, size FROM copies") == [(0, "a", None), (1, "b", None), (2, None, None)]
    with sinking.shard().load().table.update_schema() as update:
        update.add_column("name", LongType())
    failed = sinking.run_sink()
    assert failed.error is not None
    assert "still has a column 'name'" in failed.error.message
    database.execute("ALTER TABLE copies RENAME name TO old_name")
    assert sinking.run_sink().error is None
    assert database.rows("SELECT DISTINCT name, size FROM copies") == [(None, None)]


@pytest.fixture
def appending(home: Settings, tmp_path: Path, database: Database) -> Home:
    return Home(connected(home, database.uri), tmp_path, now_ms=1_000_000)


def test_appended_rows_come_once_in_the_order_of_their_commits(appending: Home, database: Database) -> None:
    appending.declare_reader()
    appending.declare_sink(mode="changes", to=TO)
    for _ in range(3):
        appending.clock.step(1_000)
        appending.send_rows(0, 2)
        appending.ingest()
        appending.run_sink()
    for _ in range(2):
        appending.clock.step(1_000)
        appending.send_rows(1, 2)
        appending.ingest()
    appending.run_sink()
    assert [row[0] for row in database.rows("SELECT id FROM copies")] == appending.ids()
    times = database.rows("SELECT _time, count(*) FROM copies GROUP BY _time")
    assert [count for _, count in times] == [2] * 5
    in_order = database.rows("SELECT bool_and(a.id < b.id) FROM copies a JOIN copies b ON a._time < b._time")
    assert in_order == [(True,)]


def test_a_replay_and_a_compaction_tell_nothing_new(appending: Home, database: Database) -> None:
    at(appending, 66)
    declare(appending)
    appending.declare_sink(mode="changes", to=TO)
    for sequencer, minutes in ((0, (10, 20)), (1, (15,)), (0, (62,))):
        send(appending, sequencer, *minutes)
        appending.ingest()
    assert appending.run_sink().inserted == 4
    replay = replay_all(
        appending.shards,
        appending.deployment,
        [appending.registry.get("events")],
        Request.parse([], [], skips_lost=False),
        clock=appending.clock,
        who="operator",
    ).collections["events"]
    assert replay.inserted == 4
    assert appending.run_sink().inserted == 0
    appending.clock.step(1_000)
    send(appending, 0, 63)
    appending.ingest()
    done = compact(Writer.join(appending.shard(), 1), policy=CompactionPolicy(min_small_files=2))
    assert done.outcome == "compacted"
    assert appending.run_sink().inserted == 1
    assert [row[0] for row in database.rows("SELECT id FROM copies")] == appending.ids() == list(range(5))


def test_rows_of_another_engine_come_with_our_next_commit(appending: Home, database: Database) -> None:
    appending.declare_reader()
    appending.declare_sink(mode="changes", to=TO)
    appending.send_rows(0, 2)
    appending.ingest()
    appending.run_sink()
    table = appending.shard().load().table
    foreign = {"id": [100], "name": ["theirs"], "_producer": ["them"], "_batch": [0]}
    table.append(pa.table(foreign, schema=table.schema().as_arrow()))
    appending.clock.step(1_000)
    assert appending.run_sink().outcome is Outcome.UNCHANGED
    hold(appending.shard(), "somebody", expires_at_ms=NEVER)  # a commit of ours that takes no time
    assert appending.run_sink().outcome is Outcome.UNCHANGED
    appending.send_rows(1, 1)
    appending.ingest()
    assert appending.run_sink().inserted == 2
    assert sorted(row[0] for row in database.rows("SELECT id FROM copies")) == appending.ids()


def test_commits_that_another_tool_expired_are_66(appending: Home, database: Database) -> None:
    appending.declare_reader()
    appending.declare_sink(mode="changes", to=TO)
    assert "waits_for" in appending.run_sink().details
    assert not database.exists()
    appending.send_rows(1, 1)
    appending.ingest()
    appending.run_sink()
    for _ in range(3):
        appending.clock.step(1_000)
        appending.send_rows(0, 1)
        appending.ingest()
    table = appending.shard().load().table
    head = table.current_snapshot()
    assert head is not None
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    failed = appending.run_sink()
    assert failed.error is not None
    assert failed.error.kind == "HistoryGone"
    assert len(database.rows()) == 1


@pytest.mark.parametrize("visible", ["at-once", "when-persisted"])
def test_rows_that_a_persist_shows_or_moves_come_once(appending: Home, database: Database, visible: str) -> None:
    at(appending, 0)
    declare(appending, visible=visible)
    appending.declare_sink(mode="changes", to=TO)
    for minute in (1, 2, 70, 75):
        at(appending, minute)
        send(appending, 0, minute)
        send(appending, 1, minute)
        appending.ingest()
        appending.run_sink()
        assert [row[0] for row in database.rows("SELECT id FROM copies")] == appending.ids()
    at(appending, 200)
    chosen = choose_persisted(appending.deployment, [])
    engine = Engine(everything=True)
    report, _ = persist_all(appending.shards, appending.deployment, chosen, clock=appending.clock, engine=engine)
    assert report.exit_code == 0
    appending.run_sink()
    assert [row[0] for row in database.rows("SELECT id FROM copies")] == appending.ids() == list(range(8))
