"""What somebody wrote to a back end past the catalog: in garbage it vanishes, in the truth it is not carried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from include.catalog.combined_open import Direction
from include.catalog.persist_records import FENCE_TOKEN, SHARD
from include.errors import CorruptState
from include.persist.log import LogUpdate
from include.persist.shards import SYSTEM, Shards
from tests.catalog.combined_home import CombinedHome, put_garbage
from tests.catalog.stash_places import StashPlace
from tests.conftest import settings_in

if TYPE_CHECKING:
    from pathlib import Path

MIGRATE, ROLLBACK = Direction.MIGRATE, Direction.ROLLBACK
ROW = LogUpdate("setting", '{"name":"row"}', '{"value":"v","version":1}', 1)


@pytest.fixture
def home(tmp_path: Path) -> CombinedHome:
    return CombinedHome(settings_in(tmp_path))


def test_items_of_a_kind_that_there_is_not_are_not_copied_and_nothing_flips(home: CombinedHome) -> None:
    """The stash could hold them, and would never show them again."""
    home.open(MIGRATE, add=["row"])
    put_garbage(home)
    for move in (home.catalog.dry_run, home.open):
        with pytest.raises(CorruptState, match="kinds that there are not"):
            move(ROLLBACK)
    home.open()
    assert (home.truth(), home.rows()) == ("persist", {"row"})


def test_a_persist_catalog_that_contradicts_itself_stops_nobody_while_it_is_garbage(home: CombinedHome) -> None:
    home.open(MIGRATE, add=["row", "gone"])
    home.open(ROLLBACK)
    put_garbage(home, ROW._replace(diff=2), ROW._replace(value="{}"), ROW._replace(key="gone", diff=-1))
    home.open(add=["later"])
    with pytest.raises(CorruptState, match="setting"):
        home.rows_of("persist")
    home.open(MIGRATE)
    assert (home.truth(), home.rows()) == ("persist", {"row", "gone", "later"})
    assert home.rows_of("persist") == home.rows_of("stash")


def test_a_stash_that_contradicts_itself_stops_no_rollback_while_it_is_garbage(any_home: CombinedHome) -> None:
    any_home.open(ROLLBACK, add=["row"])
    any_home.open(MIGRATE)
    StashPlace(any_home.settings).sql(
        "INSERT INTO data SELECT collection_id, key, 'other', time, 2 FROM data WHERE key LIKE '%row%'"
    )
    with pytest.raises(CorruptState):
        any_home.rows_of("stash")
    any_home.open(ROLLBACK)
    assert (any_home.truth(), any_home.rows()) == ("stash", {"row"})


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_a_truth_that_contradicts_itself_is_not_copied(home: CombinedHome, direction: Direction) -> None:
    home.open(MIGRATE, add=["row"])
    put_garbage(home, ROW)
    with pytest.raises(CorruptState, match="unexpected multiplicity 2"):
        home.open(direction)
    assert home.truth() == "persist"


def test_garbage_that_cannot_even_be_fenced_may_be_dropped(home: CombinedHome) -> None:
    home.open(MIGRATE, add=["row"])
    home.open(ROLLBACK)
    put_garbage(home, LogUpdate(FENCE_TOKEN, "", '{"deploy_generation":1,"epoch":1}', 1))
    with pytest.raises(CorruptState, match="more than one fence token"):
        home.open()
    Shards.connect(home.settings).drop(SHARD, SYSTEM)
    home.open(MIGRATE)
    assert (home.truth(), home.rows()) == ("persist", {"row"})
    first, second = home.epochs()
    assert first == second
