"""The changes of a collection as a table in PostgreSQL: each update once, in order, and their sum is the contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import at, declare, send
from tests.sinks.changes import change
from tests.sinks.postgres.conftest import connected
from tests.support.homes import Home

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


@pytest.mark.parametrize("visible", ["at-once", "when-persisted"])
def test_rows_that_a_persist_shows_or_moves_come_once(appending: Home, database: Database, visible: str) -> None:
    from tidemark.ingest.persist.persist import Engine, choose_persisted, persist_all

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
