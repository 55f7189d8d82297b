"""Open, migrate, roll back, crash, open again: both back ends, real ones.

Source of the scenarios: reference/collections_catalog_storage.md, section 6.6 and the gaps that it lists.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.interventions import put_garbage, set_kind
from tests.support.catalog.memory_back_ends import MemoryEnd, memory_catalog
from tests.support.clock import SteppedClock
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK, Home, names, put
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    CATALOG_KIND,
    DATA_VERSION_KEY,
    ID_ALLOCATOR,
    STORAGE_USAGE,
    CatalogKind,
    NumberedKey,
    StorageUsageValue,
)
from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import (
    FENCE_PERSIST,
    FENCE_STASH,
    PROTOCOL,
    READ_PERSIST,
    READ_STASH,
    SET_TOMBSTONE,
    WRITE_PERSIST,
    WRITE_STASH,
)
from tidemark.errors import (
    FencedByEpoch,
    FencedByGeneration,
    IncompatibleDataVersion,
    NotPossible,
    StaleState,
    Uninitialized,
)

if TYPE_CHECKING:
    from tidemark.catalog.opening.opening import Step

pytestmark = pytest.mark.slow  # stores that are really written, again and again

BOTH = (MIGRATE, ROLLBACK)


# -- there and back ------------------------------------------------------------------------------------------------


def test_what_is_written_on_either_side_is_there_after_every_way(any_home: Home) -> None:
    any_home.open(ROLLBACK, add=["role"])
    any_home.open(MIGRATE, add=["timeline"])
    assert (any_home.truth(), any_home.setting_names()) == ("persist", {"role", "timeline"})
    any_home.open(MIGRATE)
    assert (any_home.truth(), any_home.setting_names()) == ("persist", {"role", "timeline"})
    any_home.open(ROLLBACK, add=["database"])
    assert (any_home.truth(), any_home.setting_names()) == ("stash", {"role", "timeline", "database"})
    any_home.open_stash()
    assert any_home.setting_names_of("stash") == {"role", "timeline", "database"}
    any_home.open(ROLLBACK)
    assert any_home.setting_names() == {"role", "timeline", "database"}


def test_everything_is_carried_over(any_home: Home) -> None:
    """Id allocators, audit events and storage usage too, which an ordinary snapshot might leave out."""
    usage = StorageUsageValue(collection="planes", size_bytes=9, collected_at_ms=5)
    opening = any_home.catalog.open(ROLLBACK)
    opening.truth.transact(lambda transaction: transaction.allocate("batch", 41))
    opening.truth.transact(lambda transaction: transaction.insert(STORAGE_USAGE, NumberedKey(id=1), usage))
    opening.truth.transact(lambda each: each.audit("create", kind=STORAGE_USAGE, subject="planes", who="me"))
    opening.close()
    any_home.open(MIGRATE)
    with any_home.catalog.join() as handle:
        contents = handle.snapshot()
        assert contents.get(ID_ALLOCATOR.name, '{"name":"batch"}') == '{"next_id":42,"version":1}'
        assert contents.of_kind(STORAGE_USAGE.name) == {'{"id":1}': STORAGE_USAGE.value_text(usage)}
        operations = [json.loads(value)["operation"] for value in contents.of_kind(AUDIT_EVENT.name).values()]
        assert operations == ["create", "migrate"], "the migration itself is audited"


def test_the_epoch_grows_by_one_with_each_open_across_both(any_home: Home) -> None:
    assert [any_home.open_stash() for _ in range(10)][-1] == 11
    assert [any_home.open(MIGRATE) for _ in range(10)][-1] == 21
    assert any_home.epochs() == (21, 21)
    assert any_home.open_stash() == 22
    assert any_home.open(ROLLBACK) == 23
    assert any_home.epochs() == (23, 23)


def test_garbage_in_the_destination_vanishes(any_home: Home) -> None:
    any_home.open(ROLLBACK, add=["row"])
    with any_home.ends.persist.open(OpenMode.WRITABLE, generation=1, clock=SteppedClock()) as handle:
        put(handle, "persist-garbage")
    put_garbage(any_home)
    any_home.open(MIGRATE)
    assert any_home.setting_names() == {"row"}
    assert "relic" not in any_home.counts_of("persist")
    any_home.open_stash(add=["stash-garbage"])
    any_home.open(ROLLBACK)
    assert any_home.setting_names() == {"row"}


# -- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.crash  # no process dies here, but each of these is one that goes on after another's death
@pytest.mark.parametrize("then", BOTH)
@pytest.mark.parametrize("step", [FENCE_STASH, FENCE_PERSIST, WRITE_PERSIST, SET_TOMBSTONE], ids=lambda step: step.name)
def test_a_migration_that_died_anywhere_can_go_either_way(any_home: Home, step: Step, then: Direction) -> None:
    any_home.open(ROLLBACK, add=["row"])
    any_home.die_after(MIGRATE, step)
    any_home.open(then, add=["later"])
    assert (any_home.truth(), any_home.setting_names()) == ("persist" if then is MIGRATE else "stash", {"row", "later"})
    first, second = any_home.epochs()
    assert first == second


@pytest.mark.crash  # no process dies here, but each of these is one that goes on after another's death
@pytest.mark.parametrize("then", BOTH)
@pytest.mark.parametrize("step", [FENCE_STASH, FENCE_PERSIST, WRITE_STASH], ids=lambda step: step.name)
def test_a_rollback_that_died_anywhere_can_go_either_way(any_home: Home, step: Step, then: Direction) -> None:
    any_home.open(MIGRATE, add=["row"])
    any_home.die_after(ROLLBACK, step)
    any_home.open(then, add=["later"])
    assert (any_home.truth(), any_home.setting_names()) == ("persist" if then is MIGRATE else "stash", {"row", "later"})


def test_nobody_can_join_an_open_that_died_until_somebody_opens(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    home.die_after(MIGRATE, WRITE_PERSIST)
    with pytest.raises(StaleState, match="being opened at epoch 3, or that open died"):
        home.catalog.join()
    home.open()
    assert (home.truth(), home.setting_names()) == ("stash", {"row"}), (
        "an open without a word leaves the truth where it is"
    )


# -- two at once ---------------------------------------------------------------------------------------------------


def begin(home: Home, direction: Direction, *, until: Step) -> tuple[Opening, tuple[Step, ...]]:
    """Take the steps up to and with ``until``; what is left to do."""
    steps = PROTOCOL[direction]
    place = steps.index(until) + 1
    return home.run_steps(steps[:place], Opening(direction=direction)), steps[place:]


@pytest.mark.parametrize("until", [FENCE_STASH, FENCE_PERSIST, READ_STASH, WRITE_PERSIST], ids=lambda step: step.name)
def test_of_two_migrators_the_one_that_fenced_last_wins(home: Home, until: Step) -> None:
    home.open(ROLLBACK, add=["row"])
    slow, rest = begin(home, MIGRATE, until=until)
    home.open(MIGRATE, add=["second"])
    with pytest.raises(FencedByEpoch):
        home.run_steps(rest, slow)
    home.open()  # the slow one may have fenced the winner on the other side: nothing is lost, and nobody leads
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "second"})


def test_a_fence_between_copy_and_flip_leaves_the_stash_the_truth(any_home: Home) -> None:
    any_home.open(ROLLBACK, add=["row"])
    migrator, rest = begin(any_home, MIGRATE, until=WRITE_PERSIST)
    any_home.open(ROLLBACK, add=["later"])
    with pytest.raises(FencedByEpoch, match="stash"):
        any_home.run_steps(rest, migrator)
    assert (any_home.truth(), any_home.setting_names()) == ("stash", {"row", "later"})


def test_a_fence_before_the_one_write_of_a_rollback_leaves_everything(any_home: Home) -> None:
    any_home.open(MIGRATE, add=["row"])
    slow, rest = begin(any_home, ROLLBACK, until=READ_PERSIST)
    assert rest[0] is WRITE_STASH
    any_home.open(MIGRATE, add=["later"])
    with pytest.raises(FencedByEpoch):
        any_home.run_steps(rest, slow)
    assert (any_home.truth(), any_home.setting_names()) == ("persist", {"row", "later"})


@pytest.mark.parametrize(("start", "then"), [(ROLLBACK, MIGRATE), (MIGRATE, ROLLBACK)])
def test_the_leader_and_its_tasks_are_fenced_on_either_side(any_home: Home, start: Direction, then: Direction) -> None:
    leader = any_home.catalog.open(start)
    task = any_home.catalog.join()
    put(leader.truth, "leader")
    put(task, "task")
    any_home.open(then)
    for handle in (leader.truth, task):
        with pytest.raises(FencedByEpoch):
            put(handle, "too late")
        with pytest.raises(FencedByEpoch):
            names(handle)
    leader.close()
    task.close()
    assert any_home.setting_names() == {"leader", "task"}


def test_a_task_cannot_take_the_token_of_an_open_that_is_under_way(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    migrator, rest = begin(home, MIGRATE, until=READ_STASH)
    with pytest.raises(StaleState, match="being opened"):
        home.catalog.join()
    home.run_steps(rest, migrator).close()
    with home.catalog.join() as task:
        assert (task.name, names(task)) == ("persist", {"row"})


def test_an_older_deployment_is_refused_on_both_sides(home: Home) -> None:
    home.of_generation(2).open(MIGRATE, add=["row"])
    for direction in (*BOTH, EMERGENCY):
        with pytest.raises(FencedByGeneration):
            home.open(direction, is_forced=True)
    with pytest.raises(FencedByGeneration):
        home.catalog.join()
    assert home.of_generation(2).setting_names() == {"row"}


# -- before opening ------------------------------------------------------------------------------------------------


def test_what_is_asked_before_opening_is_answered_by_the_truth(any_home: Home) -> None:
    truth = any_home.catalog.truth()
    assert (truth.name, truth.is_initialized, truth.epoch, truth.is_led) == ("stash", False, None, False)
    with pytest.raises(Uninitialized):
        _ = truth.deployment_generation
    any_home.open(MIGRATE)
    with any_home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config("settings_synced_once", 1))
    truth = any_home.catalog.truth()
    assert (truth.name, truth.is_initialized, truth.epoch, truth.is_led) == ("persist", True, 2, True)
    assert (truth.deployment_generation, truth.head.config["settings_synced_once"]) == (1, 1)
    assert "settings_synced_once" not in any_home.ends.stash.head().config


def test_the_stored_kind_chooses_the_direction(home: Home) -> None:
    home.open(add=["row"])
    assert home.truth() == "stash"
    for kind, truth in [(CatalogKind.PERSIST, "persist"), (CatalogKind.STASH, "stash")]:
        set_kind(home, kind)
        home.open()
        assert (home.truth(), home.catalog.truth().catalog_kind) == (truth, kind)
    assert home.setting_names() == {"row"}


@pytest.mark.parametrize("start", BOTH)
def test_the_kind_shadow_is_refused_and_changes_nothing(
    home: Home, start: Direction, caplog: pytest.LogCaptureFixture
) -> None:
    home.open(start)
    set_kind(home, CatalogKind.SHADOW)
    before = home.truth()
    with caplog.at_level(logging.ERROR):
        assert home.catalog.truth().direction is start
    assert "shadow is not supported" in caplog.text
    home.open()
    assert home.truth() == before


def test_an_unknown_kind_is_not_guessed_at(home: Home) -> None:
    home.open()
    with home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config(CATALOG_KIND, 9))
    with pytest.raises(NotPossible, match="catalog_kind 9 is unknown"):
        home.open()
    home.open(ROLLBACK)


def test_a_direction_from_the_caller_is_not_undone_by_the_next_open(home: Home) -> None:
    home.open()
    set_kind(home, CatalogKind.STASH)
    home.open(MIGRATE)
    home.open()
    assert (home.truth(), home.catalog.truth().catalog_kind) == ("persist", CatalogKind.PERSIST)


def test_an_open_without_a_word_leaves_the_truth_where_it_finds_it_under_its_fences() -> None:
    """Somebody migrates between its first look and its fences: that is not undone."""
    stash, persist = MemoryEnd("stash"), MemoryEnd("persist")
    memory_catalog(stash, persist).open(ROLLBACK)
    waiting = [lambda: memory_catalog(stash, persist).open(MIGRATE)]

    def overtake() -> None:
        if waiting:
            waiting.pop()()

    stash.looked = overtake
    opening = memory_catalog(stash, persist).open()
    assert (opening.truth.name, opening.flipped, stash.contents.config("tombstone")) == ("persist", False, 1)


# -- damage and versions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", BOTH)
def test_items_of_a_newer_version_are_not_copied_and_nothing_flips(home: Home, direction: Direction) -> None:
    home.open(ROLLBACK if direction is MIGRATE else MIGRATE)
    with home.catalog.join() as handle:
        handle.transact(lambda transaction: transaction.set_config(DATA_VERSION_KEY, 2))
    truth = home.truth()
    with pytest.raises(IncompatibleDataVersion):
        home.catalog.dry_run(direction)
    with pytest.raises(IncompatibleDataVersion):
        home.open(direction)
    assert home.truth() == truth
