from __future__ import annotations

import json

import pytest

from tests.support.catalog.items_of import initialised, setting_item
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import (
    DATA_VERSION,
    MIGRATIONS,
    DataMigration,
    check_data_version,
    check_generation,
    opening_changes,
)
from tidemark.catalog.items.item import Change, Item
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, GENERATION_KEY, TOMBSTONE, config_item
from tidemark.errors import CorruptState, FencedByGeneration, IncompatibleDataVersion
from tidemark.exit_codes import ExitCode

CONFIG_OF_1 = {DATA_VERSION_KEY: 1, GENERATION_KEY: 1}


def rename(old: str, new: str) -> list[Change]:
    return [Change(setting_item(old, "x"), -1), Change(setting_item(new, "x"), 1)]


TO_2 = DataMigration(2, lambda contents: rename("a", "b") if setting_item("a", "x") in set(contents) else [])
TO_3 = DataMigration(3, lambda contents: rename("b", "c") if setting_item("b", "x") in set(contents) else [])


def test_the_migrations_lead_to_the_present_version_without_a_gap() -> None:
    assert [each.to_version for each in MIGRATIONS] == list(range(DATA_VERSION - len(MIGRATIONS) + 1, DATA_VERSION + 1))


def test_an_empty_back_end_is_initialised() -> None:
    changes = opening_changes({}, Contents, generation=3, where="stash")
    assert changes == [Change(config_item(DATA_VERSION_KEY, 1), 1), Change(config_item(GENERATION_KEY, 3), 1)]


def test_an_initialised_one_of_the_same_deployment_stays_and_is_not_even_read() -> None:
    assert opening_changes(CONFIG_OF_1, lambda: pytest.fail("read"), generation=1, where="stash") == []


def test_a_newer_deployment_takes_over() -> None:
    changes = opening_changes(CONFIG_OF_1, lambda: pytest.fail("read"), generation=2, where="stash")
    assert changes == [Change(config_item(GENERATION_KEY, 1), -1), Change(config_item(GENERATION_KEY, 2), 1)]


def test_an_older_deployment_is_fenced() -> None:
    with pytest.raises(FencedByGeneration, match="stash belongs to deploy generation 5, this process to 4"):
        check_generation({GENERATION_KEY: 5}, 4, where="stash")
    with pytest.raises(FencedByGeneration):
        opening_changes(CONFIG_OF_1 | {GENERATION_KEY: 5}, Contents, generation=4, where="stash")
    check_generation({GENERATION_KEY: 5}, 5, where="stash")
    check_generation({}, 1, where="stash")


def test_items_without_a_version_are_not_adopted() -> None:
    with pytest.raises(CorruptState, match="no data version"):
        opening_changes({}, lambda: Contents([setting_item("a", "x")]), generation=1, where="stash")


@pytest.mark.parametrize(
    ("stored", "migrations", "message"),
    [(2, (), "reads up to 1"), (4, (TO_2, TO_3), "reads up to 3"), (0, (), "from 1 on"), (1, (TO_3,), "from 2 on")],
)
def test_newer_and_too_old_versions_are_refused(
    stored: int, migrations: tuple[DataMigration, ...], message: str
) -> None:
    with pytest.raises(IncompatibleDataVersion, match=message) as refused:
        check_data_version(stored, where="stash", migrations=migrations)
    assert refused.value.exit_code is ExitCode.NOT_POSSIBLE
    with pytest.raises(IncompatibleDataVersion):
        opening_changes({DATA_VERSION_KEY: stored}, Contents, generation=1, where="stash", migrations=migrations)


def test_migrations_run_one_after_the_other_from_the_stored_version() -> None:
    contents = initialised(setting_item("a", "x"), config_item(TOMBSTONE, 1))
    before = contents.digest()
    changes = opening_changes(CONFIG_OF_1, lambda: contents, generation=1, where="stash", migrations=(TO_2, TO_3))
    assert contents.digest() == before, "only the back end applies them"
    contents.apply(changes)
    assert set(contents) == {
        setting_item("c", "x"),
        config_item(DATA_VERSION_KEY, 3),
        config_item(GENERATION_KEY, 1),
        config_item(TOMBSTONE, 1),
    }
    config = {DATA_VERSION_KEY: 3, GENERATION_KEY: 1}
    assert opening_changes(config, lambda: contents, generation=1, where="stash", migrations=(TO_2, TO_3)) == []


def test_a_stored_version_in_between_runs_only_what_is_left() -> None:
    contents = Contents([setting_item("a", "x"), config_item(DATA_VERSION_KEY, 2)])
    config = {DATA_VERSION_KEY: 2}
    contents.apply(opening_changes(config, lambda: contents, generation=1, where="s", migrations=(TO_2, TO_3)))
    assert setting_item("a", "x") in set(contents), "the first migration was done long ago"


def test_a_migration_works_on_texts_that_today_s_models_refuse() -> None:
    def change(contents: Contents) -> list[Change]:
        return [
            new
            for item in contents
            if item.kind == "setting"
            for new in (
                Change(item, -1),
                Change(
                    Item(item.kind, item.key, json.dumps({"value": json.loads(item.value)["text"], "version": 1})), 1
                ),
            )
        ]

    old = Item("setting", '{"name":"a"}', '{"text":"x","version":0}')
    contents = Contents([old, config_item(DATA_VERSION_KEY, 1)])
    migrations = (DataMigration(2, change),)
    contents.apply(
        opening_changes({DATA_VERSION_KEY: 1}, lambda: contents, generation=1, where="s", migrations=migrations)
    )
    assert [item.value for item in contents if item.kind == "setting"] == ['{"value": "x", "version": 1}']


def test_a_migration_must_leave_config_alone() -> None:
    migration = DataMigration(2, lambda _: [Change(config_item("x", 1), 1)])
    with pytest.raises(ValueError, match="touches config"):
        opening_changes(CONFIG_OF_1, initialised, generation=1, where="stash", migrations=(migration,))
