"""A mirror in PostgreSQL: the table equals the collection."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.changes import change, drop_sink
from tests.sinks.postgres.conftest import connected
from tests.sinks.renames import carry_renames
from tests.support.dying import interrupted_at
from tests.support.homes import Home
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.holds import downgrade_since, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import NEVER
from tidemark.report import Outcome
from tidemark.sinks.fencing import fence_sinks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sinks.postgres.conftest import Database
    from tidemark.settings import Settings

pytestmark = pytest.mark.postgres

TO = {"connection": "pg", "table": "copies"}


def test_the_first_run_loads_and_the_next_ones_carry_changes(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    loaded = sinking.run_sink()
    assert (loaded.outcome, loaded.inserted, loaded.upper) == (Outcome.CARRIED, 3, sinking.upper("events"))
    assert database.rows() == [(0, "a"), (1, "b"), (2, None)]
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    carried = sinking.run_sink()
    assert (carried.inserted, carried.retracted, carried.lower) == (2, 1, loaded.upper)
    assert database.rows() == [(1, "B"), (2, None), (3, "c")]
    assert sinking.run_sink().outcome is Outcome.UNCHANGED


def test_the_key_is_the_primary_key(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    keys = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'copies'::regclass AND contype = 'p'"
    assert database.rows(keys) == [("PRIMARY KEY (id)",)]


def test_the_table_equals_the_collection_after_any_changes(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    chance = random.Random(7)  # noqa: S311 - no secret
    for _ in range(12):
        ids = chance.sample(range(8), 4)
        change(sinking, put={id_: chance.choice(["x", "y", "", None]) for id_ in ids[:3]}, delete=(ids[3],))
        if chance.random() < 0.6:
            assert sinking.run_sink().error is None
            assert database.rows() == sinking.tuples("events")
    assert sinking.run_sink().error is None
    assert database.rows() == sinking.tuples("events")


def test_history_is_held_from_what_the_target_has(sinking: Home) -> None:
    sinking.declare_sink(to=TO)
    upper = sinking.run_sink().upper
    assert isinstance(upper, int)
    change(sinking, put={5: "e"})
    downgrade_since(sinking.shard(), sinking.upper("events"), now_ms=sinking.clock.now_ms())
    state = sinking.shard().load().state
    assert state.holds["sink-copies"] == (upper - 1, NEVER)
    assert state.since == upper - 1
    assert sinking.run_sink().inserted == 1


def test_a_quiet_target_learns_the_time_once_an_hour(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    before = database.progress()
    upper = sinking.upper("events")
    sinking.clock.step(3_600_002)
    Writer.join(sinking.shard(), 1).advance(lower=upper, new_upper=sinking.clock.now_ms())
    assert sinking.run_sink().outcome is Outcome.UNCHANGED
    assert database.progress() == sinking.clock.now_ms() != before


def test_a_quiet_target_learns_the_time_before_anybody_is_warned(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO, warn_after="10m")
    sinking.run_sink()
    for minutes in (4, 2):
        before, upper = database.progress(), sinking.upper("events")
        sinking.clock.step(minutes * 60_000)
        Writer.join(sinking.shard(), 1).advance(lower=upper, new_upper=sinking.clock.now_ms())
        assert sinking.run_sink().outcome is Outcome.UNCHANGED
        assert (database.progress() == before) is (minutes == 4)
    state = sinking.shard().load().state
    assert state.holds["sink-copies"].since == sinking.clock.now_ms() - 1


def test_a_mirror_that_lacks_very_much_is_loaded_anew(
    sinking: Home, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.sinks.carrying.MOST_IN_MEMORY", 3)
    database.execute("CREATE TABLE copies (id bigint PRIMARY KEY, name text); CREATE VIEW seen AS SELECT * FROM copies")
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    seen: list[object] = []
    change(sinking, put={1: "B", 2: "C", 4: "D", 5: "E"}, delete=(0,))
    with interrupted_at("sink.postgres-written", lambda: seen.append(database.rows())):
        assert sinking.run_sink().details["loaded"] == 4
    assert seen == [[(0, "a"), (1, "b"), (2, None)]], "readers see the rows before until the commit"
    assert database.rows() == sinking.tuples("events")
    with sinking.shard().load().table.update_schema() as update:
        update.rename_column("name", "title")
    for id_ in (6, 7, 8, 9):
        change_with_title(sinking, id_, "new")
    assert sinking.run_sink().details["loaded"] == 8
    assert database.rows("SELECT title FROM copies WHERE id IN (1, 9)") == [("B",), ("new",)]


def test_history_that_is_gone_is_66_and_a_new_sink_replaces_the_rows(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    release(sinking.shard(), "sink-copies")
    change(sinking, put={5: "e"})
    change(sinking, put={6: "f"})
    downgrade_since(sinking.shard(), sinking.upper("events"), now_ms=sinking.clock.now_ms())
    failed = sinking.run_sink()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("HistoryGone", ExitCode.INPUT_MISSING)
    assert "existing: replace" in failed.error.hint
    assert len(database.rows()) == 3, "nothing was written"
    assert drop_sink(sinking.settings) == []
    sinking.declare_sink(to={**TO, "existing": "replace"})
    assert sinking.run_sink().error is None
    assert database.rows() == sinking.tuples("events")


def test_a_read_only_deployment_runs_no_sink(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.switch(Mode.READ_ONLY)
    skipped = sinking.run_sink()
    assert skipped.outcome is Outcome.SKIPPED
    assert "read-only" in skipped.details["skipped_because"]
    assert not database.exists()
    assert "sink-copies" not in sinking.shard().load().state.holds


def test_a_switch_to_read_only_stops_a_run_before_it_writes(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    with interrupted_at("sink.held", lambda: sinking.switch(Mode.READ_ONLY)):
        stopped = sinking.run_sink()
    assert stopped.exit_code is ExitCode.FENCED
    assert not database.exists()


def test_a_switch_to_read_only_fences_in_the_target_a_run_that_has_looked_at_the_mode(
    sinking: Home, database: Database
) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    before = database.rows()
    change(sinking, put={7: "g"})
    deployment = sinking.deployment
    with interrupted_at("sink.claimed", lambda: fence_sinks(deployment)) as failures:
        stopped = sinking.run_sink()
    assert not failures
    assert stopped.error is not None
    assert stopped.error.kind == "FencedByEpoch"
    assert database.rows() == before
    assert fence_sinks(deployment) == []


def test_a_target_that_cannot_be_fenced_is_named(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    assert database.exists()
    nowhere = {"TIDEMARK_SOURCE_PG_URL": "jdbc:postgresql://127.0.0.1:9/none"}
    sinking.settings = replace(sinking.settings, connections={**sinking.settings.connections, **nowhere})
    (why,) = fence_sinks(sinking.deployment)
    assert "'copies'" in why
    assert "does not answer" in why


def test_a_run_without_news_leaves_the_target_alone(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    (epoch,) = database.rows("SELECT epoch FROM tidemark_sinks")
    assert sinking.run_sink().outcome is Outcome.UNCHANGED
    assert database.rows("SELECT epoch FROM tidemark_sinks") == [epoch]


def test_a_later_run_fences_one_that_has_not_written_yet(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    change(sinking, put={7: "g"})
    with interrupted_at("sink.claimed", sinking.run_sink) as failures:
        late = sinking.run_sink()
    assert not failures
    assert late.error is not None
    assert late.error.kind == "FencedByEpoch"
    change(sinking, put={8: "h"})
    sinking.run_sink()
    assert database.rows() == sinking.tuples("events")


def test_a_renamed_column_and_its_rows_reach_the_table(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    with sinking.shard().load().table.update_schema() as update:
        update.rename_column("name", "title")
    change_with_title(sinking, 9, "new")
    assert sinking.run_sink().error is None
    assert database.rows("SELECT id, title FROM copies") == [(0, "a"), (1, "b"), (2, None), (9, "new")]


def test_columns_take_over_the_names_of_others(home: Settings, tmp_path: Path, database: Database) -> None:
    place = Home(connected(home, database.uri), tmp_path, now_ms=1_000_000)

    def read() -> list[dict[str, Any]]:
        return [row for (row,) in database.rows("SELECT to_jsonb(copies) FROM copies")]

    carry_renames(place, TO, read, dies=False)


def change_with_title(home: Home, id_: int, title: str) -> None:
    declared = home.registry.get("events")
    altered = declared.model_copy(update={"columns_text": "id bigint, title string"})
    home.registry.replace([altered], seen=home.registry.read())
    home.clock.step(1_000)
    home.send(0, json.dumps({"id": id_, "title": title}).encode())
    assert home.ingest().error is None
