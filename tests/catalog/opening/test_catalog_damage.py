"""What somebody wrote to a back end past the catalog: in garbage it vanishes, in the truth it is not carried on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.interventions import RELIC, put_garbage, show_config
from tests.support.catalog.migration_parts import Workflow
from tests.support.catalog.stash_places import StashPlace
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.migration.plan import make_plan
from tidemark.catalog.opening.protocol import WRITE_PERSIST
from tidemark.catalog.persist.records import FENCE_TOKEN, PROPERTY, SHARD
from tidemark.errors import CorruptState
from tidemark.iceberg.log import LogUpdate
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again

ROW = LogUpdate("setting", '{"name":"row"}', '{"value":"v","version":1}', 1)


def test_items_of_a_kind_that_there_is_not_are_not_copied_and_nothing_flips(home: Home) -> None:
    """The stash could hold them, and would never show them again."""
    home.open(MIGRATE, add=["row"])
    put_garbage(home)
    for move in (home.catalog.dry_run, home.open):
        with pytest.raises(CorruptState, match="kinds that there are not"):
            move(ROLLBACK)
    home.open()
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


def test_a_persist_catalog_that_contradicts_itself_stops_nobody_while_it_is_garbage(home: Home) -> None:
    home.open(MIGRATE, add=["row", "gone"])
    home.open(ROLLBACK)
    put_garbage(home, ROW._replace(diff=2), ROW._replace(value="{}"), ROW._replace(key="gone", diff=-1))
    home.open(add=["later"])
    with pytest.raises(CorruptState, match="setting"):
        home.setting_names_of("persist")
    home.open(MIGRATE)
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "gone", "later"})
    assert home.setting_names_of("persist") == home.setting_names_of("stash")


def test_a_stash_that_contradicts_itself_stops_no_rollback_while_it_is_garbage(any_home: Home) -> None:
    any_home.open(ROLLBACK, add=["row"])
    any_home.open(MIGRATE)
    StashPlace(any_home.settings).sql(
        "INSERT INTO data SELECT collection_id, key, 'other', time, 2 FROM data WHERE key LIKE '%row%'"
    )
    with pytest.raises(CorruptState):
        any_home.setting_names_of("stash")
    any_home.open(ROLLBACK)
    assert (any_home.truth(), any_home.setting_names()) == ("stash", {"row"})


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_a_truth_that_contradicts_itself_is_not_copied(home: Home, direction: Direction) -> None:
    home.open(MIGRATE, add=["row"])
    put_garbage(home, ROW)
    with pytest.raises(CorruptState, match="unexpected multiplicity 2"):
        home.open(direction)
    assert home.truth() == "persist"


def test_who_meets_a_contradiction_sees_all_that_is_stored(home: Home) -> None:
    home.open(MIGRATE, add=["row"])
    with home.look_at("persist") as handle:
        assert set(handle.snapshot().of_kind("setting")) == {ROW.key}
        put_garbage(home, ROW._replace(value="{}"))
        for _ in range(2):
            with pytest.raises(CorruptState):
                handle.snapshot()
            found = {(item.value, diff) for item, diff in handle.stored_items() if item.kind == "setting"}
            assert found == {(ROW.value, 1), ("{}", 1)}


def config(key: str, value: str, diff: int = 1) -> LogUpdate:
    return LogUpdate("config", f'"{key}"', value, diff)


def token(epoch: int, diff: int = 1) -> LogUpdate:
    return LogUpdate(FENCE_TOKEN, "", f'{{"deploy_generation":1,"epoch":{epoch}}}', diff)


# The persist catalog is at epoch 3 when these are written to it.
DAMAGE = {
    "items": [ROW, ROW._replace(key="twice"), ROW._replace(key="twice", value="{}"), ROW._replace(key="gone", diff=-1)],
    "kinds and values": [RELIC, ROW._replace(key="?", value="?")],
    "config that comes twice": [config("data_version", "1"), config("deployment_generation", "1")],
    "config that contradicts": [config("data_version", "9"), config("leader_epoch", "77")],
    "config that is gone": [config("data_version", "1", -1)],
    "config that cannot be read": [config("data_version", "1", -1), config("data_version", "?")],
    "deployments": [LogUpdate("deployment", '{"generation":1}', "{}", 1), LogUpdate("deployment", "?", "?", 2)],
    "a token that comes twice": [token(3)],
    "a smaller token": [token(1)],
    "a larger token": [token(9)],
    "no token": [token(3, -1)],
    "a token that cannot be read": [LogUpdate(FENCE_TOKEN, "", "?", 1)],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_no_damage_of_garbage_stops_an_open_or_survives_a_migration(home: Home, damage: list[LogUpdate]) -> None:
    home.open(MIGRATE, add=["row"])
    home.open(ROLLBACK)
    put_garbage(home, *damage)
    assert home.open(add=["later"]) == 4
    assert home.open(MIGRATE) == 5
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "later"})
    assert home.epochs() == (5, 5), "no epoch comes again, and none is left out"
    left = {update["kind"] for update in map(json.loads, home.dumps()[1][1:])}
    assert home.counts_of("persist").keys() == {"config", "setting", "audit_event", "id_allocator"}, left
    home.open(ROLLBACK)
    assert home.setting_names() == {"row", "later"}


def test_a_workflow_tells_of_all_damage_and_takes_the_catalog_there(any_home: Home) -> None:
    any_home.open(MIGRATE, add=["row"])
    any_home.open(ROLLBACK)
    sound = make_plan(any_home.catalog, MIGRATE)
    put_garbage(any_home, *(update for damage in DAMAGE.values() for update in damage))
    before = any_home.dumps()
    first, second = (make_plan(any_home.catalog, MIGRATE) for _ in range(2))
    assert any_home.dumps() == before
    assert (first.digest, second.to_json()) == (sound.digest, first.to_json())
    assert (sound.report.inconsistent, first.report.inconsistent) == (0, 13)
    workflow = Workflow(any_home, MIGRATE)
    assert workflow.run()["truth"] == "persist"
    assert any_home.setting_names() == any_home.setting_names_of("stash") == {"row"}
    assert make_plan(any_home.catalog, ROLLBACK).report.inconsistent == 0


def test_a_copy_that_died_is_made_again_over_damage(home: Home) -> None:
    home.open(MIGRATE, add=["row"])
    home.open(ROLLBACK)
    put_garbage(home, *DAMAGE["config that contradicts"])
    workflow = Workflow(home, MIGRATE)
    workflow.run("plan", "fence", "look", "copy")
    put_garbage(home, *DAMAGE["items"])
    with pytest.raises(CorruptState, match="4 items differ"):
        workflow.run("verify")
    workflow.run_from("copy")
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


@pytest.mark.parametrize("damage", ["a smaller token", "a larger token", "no token"])
def test_a_token_that_no_open_wrote_stops_whoever_works_and_the_next_open_keeps_the_shown_one(
    home: Home, damage: str
) -> None:
    home.open(ROLLBACK)
    home.open(MIGRATE, add=["row"])
    with home.catalog.join() as task:
        put_garbage(home, *DAMAGE[damage])
        with pytest.raises(CorruptState, match="somebody else wrote to its table"):
            put(task, "lost")
    with pytest.raises(CorruptState, match="somebody else wrote to its table") as told:
        home.catalog.join()
    assert "tidemark catalog open" in told.value.hint
    assert home.open() == 4
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


def test_a_truth_whose_config_is_damaged_is_not_copied(home: Home) -> None:
    home.open(MIGRATE, add=["row"])
    put_garbage(home, *DAMAGE["config that contradicts"])
    for direction in (MIGRATE, ROLLBACK):
        with pytest.raises(CorruptState):
            home.catalog.dry_run(direction)
        with pytest.raises(CorruptState):
            home.open(direction)
    assert home.truth() == "persist"


def test_a_head_that_was_edited_is_written_anew_by_a_copy_that_changes_no_row(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    home.die_after(MIGRATE, WRITE_PERSIST)
    show_config(home, colour=1)
    home.open(MIGRATE, add=["later"])
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "later"})
    assert "colour" not in home.ends.persist.head().config


def test_a_copy_whose_head_was_edited_is_made_again_before_it_is_the_truth(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    workflow = Workflow(home, MIGRATE)
    workflow.run("plan", "fence", "look", "copy")
    show_config(home, colour=1)
    with pytest.raises(CorruptState, match="would be refused"):
        workflow.run("verify")
    workflow.run_from("copy")
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


@pytest.mark.parametrize("text", [None, "{}"])
def test_garbage_without_a_readable_head_is_told_with_what_to_do(home: Home, text: str | None) -> None:
    """Its head is the only word on its epochs: without one it is dropped, and the stash's epoch is what counts."""
    home.open(MIGRATE, add=["row"])
    home.open(ROLLBACK)
    shards = Shards.connect(home.settings)
    with shards.open(SHARD, SYSTEM).load().table.transaction() as edit:
        if text is None:
            edit.remove_properties(PROPERTY)
        else:
            edit.set_properties({PROPERTY: text})
    for direction in (None, MIGRATE, ROLLBACK):
        with pytest.raises(CorruptState) as told:
            home.open(direction)
        assert "drop the table instead" in told.value.hint
    shards.drop(SHARD, SYSTEM)
    before = home.ends.stash.head().epoch
    assert home.open(MIGRATE) == (before or 0) + 1
    assert (home.truth(), home.setting_names(), len(set(home.epochs()))) == ("persist", {"row"}, 1)
