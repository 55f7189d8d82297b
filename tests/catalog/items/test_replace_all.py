from __future__ import annotations

import pytest

from tests.support.catalog.items_of import initialised, setting_item
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change, Item, net
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, GENERATION_KEY, TOMBSTONE, config_item
from tidemark.catalog.items.replace_all import replacement_changes, replacement_of_damaged
from tidemark.errors import CorruptState, IncompatibleDataVersion


def replaced(stored: Contents, wanted: Contents, **more: object) -> Contents:
    changed = stored.copy()
    changed.apply(replacement_changes(stored, wanted, **{"generation": 2, **more}))
    return changed


def test_what_only_the_destination_has_vanishes() -> None:
    stored = initialised(setting_item("garbage", "1"), setting_item("same", "1"), setting_item("other", "1"))
    wanted = initialised(setting_item("same", "1"), setting_item("other", "2"), setting_item("new", "1"), generation=9)
    items = setting_item("same", "1"), setting_item("other", "2"), setting_item("new", "1")
    assert replaced(stored, wanted) == initialised(*items, generation=2)


def test_equal_contents_need_no_change() -> None:
    same = initialised(setting_item("a", "1"), generation=2)
    assert replacement_changes(same, same, generation=2) == []


def test_only_the_difference_is_written() -> None:
    stored = initialised(setting_item("a", "1"), generation=2)
    wanted = initialised(setting_item("a", "1"), setting_item("b", "1"), generation=2)
    assert replacement_changes(stored, wanted, generation=2) == [Change(setting_item("b", "1"), 1)]


@pytest.mark.parametrize(
    ("stored", "given", "after"),
    [(None, None, None), (1, None, 1), (0, None, 0), (None, False, 0), (1, False, 0), (None, True, 1)],
)
@pytest.mark.parametrize("carried", [None, 0, 1])
def test_the_tombstone_is_the_destination_s_own(
    *, stored: int | None, given: bool | None, after: int | None, carried: int | None
) -> None:
    def marked(value: int | None) -> Contents:
        return initialised(*([] if value is None else [config_item(TOMBSTONE, value)]), generation=2)

    assert replaced(marked(stored), marked(carried), tombstone=given) == marked(after)


def test_other_config_is_carried_over() -> None:
    wanted = initialised(config_item("settings_synced_once", 1), generation=1)
    after = replaced(initialised(config_item("stale", 1), generation=1), wanted)
    assert (after.config("settings_synced_once"), after.config("stale"), after.config(GENERATION_KEY)) == (1, None, 2)


def test_contents_of_another_data_version_are_refused() -> None:
    with pytest.raises(IncompatibleDataVersion, match="data version None"):
        replacement_changes(initialised(), Contents(), generation=1)
    with pytest.raises(IncompatibleDataVersion, match="data version 0"):
        replacement_changes(initialised(), Contents([config_item(DATA_VERSION_KEY, 0)]), generation=1)


def test_kinds_that_there_are_not_are_refused_in_the_source_and_vanish_from_the_destination() -> None:
    relic = Item("relic", "{}", "{}")
    with pytest.raises(CorruptState, match="kinds that there are not"):
        replacement_changes(initialised(), initialised(relic), generation=1)
    assert replaced(initialised(relic), initialised(), generation=1) == initialised()


@pytest.mark.parametrize("diff", [-1, 1, 2])
def test_garbage_that_contradicts_itself_is_replaced_as_a_whole(diff: int) -> None:
    wanted = initialised(setting_item("a", "1"), setting_item("b", "1"), generation=2)
    sound = initialised(setting_item("a", "1"), config_item(TOMBSTONE, 1), config_item("stale", 1), generation=1)
    garbage = [Change(setting_item("a", "2"), 1), Change(setting_item("b", "1"), diff)]
    stored = [*(Change(item, 1) for item in sound), *garbage]
    own = Contents(item for item in sound if item.kind == "config")
    changes = replacement_of_damaged(stored, wanted, own=own, generation=2, tombstone=False)
    left = net([*stored, *changes])
    assert {change.diff for change in left} == {1}
    assert Contents(change.item for change in left) == replaced(sound, wanted, tombstone=False)
