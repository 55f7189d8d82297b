"""One side is lost, or the settings name another: no open makes it anew over the copy that is left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.items_of import initialised, setting_item
from tests.support.catalog.memory_back_ends import MemoryEnd, memory_catalog
from tests.support.clock import SteppedClock
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK, Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.items.kinds import LEADER_EPOCH, config_item
from tidemark.catalog.opening.truth import find_truth
from tidemark.catalog.persist.records import SHARD
from tidemark.errors import CorruptState, NotPossible, Refused
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.secrets.database_uri import DatabaseUri

if TYPE_CHECKING:
    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again

EVERY_WAY = pytest.mark.parametrize("direction", [None, MIGRATE, ROLLBACK])


def with_another_stash(home: Home) -> Home:
    return Home(replace(home.settings, stash_uri=DatabaseUri(path=home.settings.home / "other.db")))


@EVERY_WAY
def test_a_persist_catalog_that_is_the_truth_and_lost_is_not_taken_for_an_empty_one(
    home: Home, direction: Direction | None
) -> None:
    home.open(ROLLBACK, add=["row"])
    home.open(MIGRATE)
    Shards.connect(home.settings).drop(SHARD, SYSTEM)
    before = home.dumps()
    for ask in (
        lambda: home.open(direction),
        lambda: home.catalog.dry_run(direction),
        lambda: find_truth(home.ends),
        deployment_of(home.settings).modes.read,
    ):
        with pytest.raises(CorruptState, match="persist catalog is the truth, and there is none") as caught:
            ask()
        assert "catalog emergency" in caught.value.hint
    assert home.dumps() == before, "the last copy that is left"
    home.open(EMERGENCY)
    assert (home.truth(), home.setting_names()) == ("stash", {"row"})
    home.open(MIGRATE)
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


def test_a_stash_that_was_never_opened_is_not_copied_over_a_persist_catalog_that_was_led(home: Home) -> None:
    home.open(MIGRATE, add=["row"])
    before = home.dumps()
    other = with_another_stash(home)
    for move in (other.catalog.open, other.catalog.dry_run):
        with pytest.raises(NotPossible, match="its stash was never opened: to migrate would empty it") as caught:
            move(MIGRATE)
        assert "TIDEMARK_STASH_URI" in caught.value.hint
    assert (home.dumps(), list(other.ends.stash.dump())) == (before, [])
    assert home.setting_names() == {"row"}
    other.open()  # said to be lost, in as many words: from nothing, which may then be copied
    other.open(MIGRATE)
    assert (other.truth(), other.setting_names()) == ("persist", set())


def test_an_emergency_without_the_stash_is_refused_too_while_a_leader_may_live(home: Home) -> None:
    home.open(MIGRATE, add=["row"])
    clock = SteppedClock(home.catalog.last_commit_ms() or 0)
    other = with_another_stash(home)
    catalog = type(other.catalog).of(other.settings, clock=clock)
    with pytest.raises(Refused, match="heard of 0 s ago"):
        catalog.open(EMERGENCY)
    assert list(other.ends.stash.dump()) == []
    catalog.open(EMERGENCY, is_forced=True).close()
    assert other.truth() == "stash"


def test_the_first_open_of_all_may_come_between_the_two_looks() -> None:
    """Then the stash was not there at the first look, and the persist catalog was led at the second."""
    stash, persist = MemoryEnd("stash"), MemoryEnd("persist")
    first = memory_catalog(stash, persist)
    waiting = [lambda: first.open(MIGRATE)]

    def overtake() -> None:
        if waiting:
            waiting.pop()()

    stash.looked = overtake
    assert memory_catalog(stash, persist).open(MIGRATE).truth.epoch == 3


def test_what_nobody_ever_led_on_the_persist_side_is_garbage_and_no_loss() -> None:
    persist = MemoryEnd("persist", epoch=2, contents=initialised(setting_item("garbage", "v")))
    assert persist.contents.config(LEADER_EPOCH) is None
    stash = MemoryEnd("stash")
    memory_catalog(stash, persist).open(MIGRATE)
    assert persist.contents.of_kind("setting") == {}
    assert config_item("tombstone", 1) in set(stash.contents)


def test_a_damaged_persist_catalog_is_told_from_a_bug_and_left_by_an_emergency(home: Home) -> None:
    home.open(ROLLBACK, add=["row"])
    home.open(MIGRATE)
    for metadata in (home.settings.home / "warehouse").rglob("*.metadata.json"):
        metadata.write_text(metadata.read_text()[:100])
    with pytest.raises(CorruptState, match="is damaged"):
        home.open()
    with pytest.raises(Refused, match="cannot be told: the metadata file"):
        home.open(EMERGENCY)
    home.open(EMERGENCY, is_forced=True)
    assert (home.truth(), home.setting_names()) == ("stash", {"row"})
