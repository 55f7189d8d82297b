"""A dropped sink holds no history any more, and its target is free for another one; a crash loses neither."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.support.crash import die_at
from tests.support.dying import interrupted_at
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.errors import StillRead
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.shards import Shards
from tidemark.sinks import removal
from tidemark.sinks.removal import REMOVERS, clear_sinks

if TYPE_CHECKING:
    from tests.sinks.postgres.conftest import Database
    from tests.support.homes import Home
    from tidemark.settings import Settings

pytestmark = pytest.mark.postgres
PLACE = {"connection": "pg", "table": "copies"}


def drop_sink(settings: Settings) -> list[str]:
    shards, deployment, clock = Shards.connect(settings), deployment_of(settings), SystemClock()
    plans = plan_drop(shards, deployment, ["copies"], clock=clock)
    return clear_sinks(shards, deployment, drop(shards, deployment, plans, clock=clock))


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

    sinking.settings = known
    deployment = sinking.deployment
    report = remove_dropped(sinking.shards, deployment, clock=sinking.clock, removers=REMOVERS)
    assert [result.strategy for result in report.collections.values()] == ["removed"]
    assert database.rows("SELECT * FROM tidemark_sinks") == []


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
