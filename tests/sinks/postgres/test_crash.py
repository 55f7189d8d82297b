"""Sinks that die between any two steps, race, or lose the database: each update is in the target once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.support.crash import die_at
from tests.support.dying import interrupted_at, surviving
from tests.support.homes import Home
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.sinks import carrying, run
from tidemark.sinks.targets.postgres import target

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Database
    from tests.support.postgres_server import PostgresServer
    from tidemark.settings import Settings

pytestmark = [pytest.mark.crash, pytest.mark.postgres]

TO = {"connection": "pg", "table": "copies"}
POINTS = (*run.FAIL_POINTS, *carrying.FAIL_POINTS, *target.FAIL_POINTS)
QUERIES = {
    "mirror": "SELECT * FROM copies",
    "changes": "SELECT id, name FROM copies GROUP BY id, name HAVING sum(_diff) > 0",
}


@pytest.mark.parametrize("mode", QUERIES)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_died_is_finished_by_the_next(
    sinking: Home, database: Database, mode: str, point: str, *, is_first: bool
) -> None:
    sinking.declare_sink(mode=mode, to=TO)
    if not is_first:
        sinking.run_sink()
        change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    report, died = surviving(sinking.run_sink, point)
    assert died or (point == "sink.held" and not is_first), f"{point} was never reached"
    assert report.error is None  # type: ignore[attr-defined]
    assert database.rows(QUERIES[mode]) == sinking.tuples("events")
    if mode == "changes":
        assert database.rows("SELECT count(*) FROM copies") == [(3 if is_first else 7,)]
    upper = database.progress()
    assert upper == sinking.upper("events")
    assert sinking.shard().load().state.holds["sink-copies"].since == upper - 1


# While "sink.postgres-written" the other run would wait for the lock of this one.
@pytest.mark.parametrize("point", [*run.FAIL_POINTS, *carrying.FAIL_POINTS, "sink.postgres-committed"])
def test_a_run_that_another_overtakes_writes_nothing_twice(sinking: Home, database: Database, point: str) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    is_first = point == "sink.held"  # which only a first load passes
    if not is_first:
        sinking.run_sink()
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    with interrupted_at(point, sinking.run_sink) as failures:
        report = sinking.run_sink()
    assert not failures
    assert report.error is None or report.exit_code is ExitCode.FENCED
    sinking.run_sink()
    assert database.rows("SELECT count(*) FROM copies") == [(3 if is_first else 7,)]
    assert database.rows(QUERIES["changes"]) == sinking.tuples("events")


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_leaves_nothing_locked(sinking: Home, database: Database, point: str) -> None:
    sinking.declare_sink(mode="changes", to=TO)
    assert die_at(point, carry, sinking.settings) == FAIL_POINT_EXIT
    assert sinking.run_sink().error is None
    assert database.rows("SELECT count(*) FROM copies") == [(3,)]
    assert database.rows(QUERIES["changes"]) == sinking.tuples("events")


def carry(settings: Settings) -> None:
    Home(settings).run_sink()


def test_a_commit_whose_answer_is_lost_counts(
    sinking: Home, database: Database, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    sinking.declare_sink(mode="changes", to=TO)
    sinking.run_sink()
    change(sinking, put={1: "B"})
    real = psycopg.Connection.execute
    lost: list[bool] = []

    def execute(self: psycopg.Connection, query: object, *more: object, **options: object) -> object:
        done = real(self, query, *more, **options)  # type: ignore[arg-type]
        if query == "COMMIT" and not lost and is_writing(self):
            lost.append(True)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    def is_writing(connection: psycopg.Connection) -> bool:
        found = real(connection, "SELECT time FROM tidemark_sinks").fetchone()
        return found is not None and found[0] == sinking.upper("events")

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    report = sinking.run_sink()
    monkeypatch.undo()
    assert lost
    assert report.error is None
    assert report.inserted == 1
    assert database.rows("SELECT count(*) FROM copies") == [(5,)]
