"""A dropped sink holds no history any more, and its target is free for another one; a crash loses neither."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change, drop_sink
from tests.sinks.leftovers import take_the_way_out
from tests.support.crash import die_at
from tests.support.dying import Crash, interrupted_at
from tidemark.clock import SystemClock
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.errors import StillRead
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.sinks import removal, run
from tidemark.sinks.removal import REMOVERS

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Database
    from tests.support.homes import Home

pytestmark = pytest.mark.postgres
PLACE = {"connection": "pg", "table": "copies"}


def test_history_is_released_and_the_target_is_free(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=PLACE)
    sinking.run_sink()
    with pytest.raises(StillRead, match="copies"):
        plan_drop(sinking.shards, sinking.deployment, ["events"], clock=sinking.clock)
    assert drop_sink(sinking.settings) == []
    assert sinking.shard().load().state.holds == {}
    assert database.rows("SELECT * FROM tidemark_sinks") == []
    assert database.rows() == [(0, "a"), (1, "b"), (2, None)], "the rows belong to the user"
    assert sinking.deployment.objects.dropped() == []

    change(sinking, put={1: "new"}, delete=(0,))
    sinking.declare_sink("others", to={**PLACE, "existing": "replace"})
    assert sinking.run_sink("others").error is None
    assert database.rows() == [(1, "new"), (2, None)]


def test_a_drop_during_a_run_leaves_no_hold(sinking: Home) -> None:
    sinking.declare_sink(to=PLACE)
    with interrupted_at("sink.claimed", lambda: drop_sink(sinking.settings)):
        report = sinking.run_sink()
    assert report.error is not None
    assert (report.error.kind, report.error.exit_code) == ("Dropped", ExitCode.NOT_POSSIBLE)
    assert sinking.shard().load().state.holds == {}


def test_a_target_that_is_away_is_cleaned_up_by_maintenance(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=PLACE)
    sinking.run_sink()
    known = sinking.settings
    nowhere = {"TIDEMARK_SOURCE_PG_URL": "jdbc:postgresql://127.0.0.1:9/none"}
    sinking.settings = replace(known, connections={**known.connections, **nowhere})
    (why,) = drop_sink(sinking.settings)
    assert "does not answer" in why
    assert sinking.shard().load().state.holds == {}, "history is not kept for a target that is away"
    sinking.clock.step(SystemClock().now_ms() + 30 * 86_400_000)  # the drop has the time of the system
    late = remove_dropped(sinking.shards, sinking.deployment, clock=sinking.clock, removers=REMOVERS)
    assert [list(result.details) for result in late.collections.values()] == [["waits"]], "however long it is away"

    sinking.settings = known
    deployment = sinking.deployment
    report = remove_dropped(sinking.shards, deployment, clock=sinking.clock, removers=REMOVERS)
    assert [result.strategy for result in report.collections.values()] == ["removed"]
    assert database.rows("SELECT * FROM tidemark_sinks") == []


def test_a_run_that_claims_after_the_drop_and_dies_leaves_no_progress(
    sinking: Home, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    sinking.declare_sink(to=PLACE)
    waiting: list[str] = []
    monkeypatch.setattr(run, "refuse_dropped", die)
    with interrupted_at("sink.looked", lambda: waiting.extend(drop_sink(sinking.settings))), pytest.raises(Crash):
        sinking.run_sink()
    assert database.rows("SELECT sink FROM tidemark_sinks") == [("copies",)]
    assert "a run of it may be under way" in waiting[0]
    deployment = sinking.deployment
    remove_dropped(sinking.shards, deployment, clock=sinking.clock, removers=REMOVERS)
    assert database.rows("SELECT sink FROM tidemark_sinks") == []
    assert deployment.objects.dropped() == []


def test_a_target_of_a_sink_that_nobody_has_any_more_is_freed_as_the_hint_says(
    sinking: Home, database: Database
) -> None:
    sinking.declare_sink("lost", to=PLACE)
    sinking.run_sink("lost")
    database.execute("UPDATE tidemark_sinks SET sink_id = 77, collection = 'far', table_uuid = 'of another home'")
    drop_sink(sinking.settings, "lost")
    assert len(database.rows("SELECT * FROM tidemark_sinks")) == 1
    replacing = {**PLACE, "existing": "replace"}
    sinking.declare_sink("others", to=replacing)
    refused = sinking.run_sink("others").error
    assert refused is not None
    assert (refused.exit_code, "one named 'lost' with `existing: replace`" in refused.hint) == (76, True)

    sinking.declare_sink("lost", to=replacing)
    assert sinking.run_sink("lost").error is None
    assert drop_sink(sinking.settings, "lost") == []
    assert sinking.run_sink("others").error is None
    assert database.rows() == sinking.tuples("events")


def test_columns_that_are_left_are_got_rid_of_as_the_refusal_says(sinking: Home, database: Database) -> None:
    take_the_way_out(
        sinking,
        PLACE,
        drop_column=lambda: database.execute("ALTER TABLE copies DROP COLUMN name"),
        drop_table=lambda: database.execute("DROP TABLE copies"),
    )
    assert database.rows("SELECT id, name FROM copies") == sinking.tuples("events")


def test_a_sink_of_the_same_name_keeps_what_is_its_own(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=PLACE)
    sinking.run_sink()
    deployment = sinking.deployment
    plans = plan_drop(sinking.shards, deployment, ["copies"], clock=sinking.clock)
    drop(sinking.shards, deployment, plans, clock=sinking.clock)  # and dies before it cleans up
    sinking.declare_sink(to={**PLACE, "existing": "replace"})
    assert sinking.run_sink().error is None
    progress, held = database.progress(), sinking.shard().load().state.holds
    remove_dropped(sinking.shards, deployment, clock=sinking.clock, removers=REMOVERS)
    assert (database.progress(), sinking.shard().load().state.holds) == (progress, held)
    assert sinking.deployment.objects.dropped() == []


@pytest.mark.crash
@pytest.mark.parametrize("point", removal.FAIL_POINTS)
def test_a_clean_up_that_dies_is_completed_by_maintenance(sinking: Home, database: Database, point: str) -> None:
    sinking.declare_sink(to=PLACE)
    sinking.run_sink()
    assert die_at(point, drop_sink, sinking.settings) == FAIL_POINT_EXIT, f"{point} was never reached"
    deployment = sinking.deployment
    assert [dropped.name for dropped in deployment.objects.dropped()] == ["copies"]
    remove_dropped(sinking.shards, deployment, clock=sinking.clock, removers=REMOVERS)
    assert sinking.shard().load().state.holds == {}
    assert database.rows("SELECT * FROM tidemark_sinks") == []
    assert deployment.objects.dropped() == []
