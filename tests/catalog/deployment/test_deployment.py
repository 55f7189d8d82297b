"""What collections ask of the system's own state, on whichever side the truth is, and while it moves."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.support.catalog.interventions import run_in_child
from tests.support.clock import SteppedClock
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.catalog.deployment.registry import parse_declaration
from tidemark.catalog.items.data_versions import DataMigration
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    COLLECTION,
    DATA_VERSION_KEY,
    DEPLOYMENT,
    SETTING,
    CollectionValue,
    NamedKey,
    SettingValue,
)
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import FENCE_STASH, PROTOCOL, SET_TOMBSTONE
from tidemark.catalog.persist.persist import PersistCatalog
from tidemark.catalog.stash.stash import Stash
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode, StoredMode
from tidemark.collections.mode import read_mode
from tidemark.errors import (
    CatalogOutOfSync,
    CorruptState,
    FencedByEpoch,
    FencedByGeneration,
    IncompatibleDataVersion,
    NotLed,
    NotPossible,
    NotWritable,
    ReadOnly,
    UnknownCollection,
)
from tidemark.exit_codes import ExitCode
from tidemark.secrets.database_uri import DatabaseUri

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.catalog.items.contents import Contents
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.catalog import Catalog
    from tidemark.catalog.opening.opening import Step
    from tidemark.collections.deployment import Deployment

pytestmark = pytest.mark.slow  # stores that are really written, again and again

READ_ONLY, READ_WRITE = Mode.READ_ONLY, Mode.READ_WRITE


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home: two files."""
    return Home(settings_in(tmp_path))


def deployed(home: Home, generation: int = 1) -> Deployment:
    settings = replace(home.settings, generation=generation)
    return deployment_of(settings, who="a test", clock=SteppedClock(1_000))


def declared(name: str = "planes", **more: object) -> Declaration:
    values: dict[str, object] = {"name": name, "kind": "append-only", "schema": "id bigint"}
    return Declaration.model_validate(values | more)


def apply(deployment: Deployment, *declarations: Declaration) -> None:
    deployment.registry.replace(declarations, seen=deployment.registry.read())


def switch(home: Home, wanted: Mode, generation: int = 1) -> StoredMode:
    return deployed(home, generation).modes.switch(wanted, who="w", why="y")


def looked_at(home: Home, generation: int = 1) -> StoredMode:
    return look_at_mode(home.of_generation(generation).ends)


def events(home: Home) -> list[tuple[str, str, str]]:
    """The audit, past the code that is tested."""
    end = home.ends.persist if home.truth() == "persist" else home.ends.stash
    with end.open(OpenMode.READ_ONLY, generation=home.catalog.truth().deployment_generation, clock=SteppedClock()) as (
        handle
    ):
        found = handle.transact(
            lambda transaction: sorted((key.id, each) for key, each in transaction.items(AUDIT_EVENT))
        )
    return [(each.operation, each.subject_kind, each.subject) for _, each in found]


# -- everything, on either side ------------------------------------------------------------------------------------


def test_declarations_mode_and_records_go_along_with_the_truth(any_home: Home) -> None:
    apply(deployed(any_home), declared(), declared("events"))
    any_home.open(MIGRATE)
    apply(deployed(any_home), declared(tags=["a"]))
    switched = switch(any_home, READ_ONLY)
    deployed(any_home).discards.add({"events b 7": {"collection": "events", "range": [0, 2]}}, who="w")
    for direction in (ROLLBACK, MIGRATE):
        any_home.open(direction)
        deployment = deployed(any_home)
        applied = deployment.registry.read().declarations
        assert {name: each.tags for name, each in applied.items()} == {"events": (), "planes": ("a",)}
        assert (deployment.modes.read(), looked_at(any_home)) == (switched, switched)
        assert deployment.discards.read() == [{"collection": "events", "range": [0, 2]}]
    assert [each for each in events(any_home) if each[1] != "deployment" or each[0] == "switch-mode"] == [
        ("create", "collection", "planes"),
        ("create", "collection", "events"),
        ("alter", "collection", "planes"),
        ("switch-mode", "deployment", "generation 1"),
        ("discard", "collection", "events b 7"),
    ]


def test_a_reason_that_is_given_later_is_kept(home: Home) -> None:
    home.open(MIGRATE)
    modes = deployed(home).modes
    first = modes.switch(READ_ONLY, who="ada", why="")
    again = modes.switch(READ_ONLY, who="bob", why="upgrade to 2.4")
    assert (again.mode, again.since_ms, again.who, again.why) == (READ_ONLY, first.since_ms, "bob", "upgrade to 2.4")
    assert modes.switch(READ_ONLY, who="eve", why="") == again == looked_at(home)
    assert events(home)[-1] == ("explain-mode", "deployment", "generation 1")


# -- who leads -----------------------------------------------------------------------------------------------------


def test_without_a_catalog_everything_is_as_nobody_ever_touched_it(home: Home) -> None:
    deployment = deployed(home, 3)
    assert (deployment.registry.read().declarations, deployment.discards.read()) == ({}, [])
    assert deployment.modes.read() == looked_at(home, 3) == StoredMode(generation=3)
    with pytest.raises(UnknownCollection):
        deployment.registry.get("planes")
    assert home.epochs() == (None, None), "looking makes nothing"


def test_whoever_writes_first_opens_the_catalog_also_after_one_who_died_at_it(home: Home) -> None:
    home.die_after(ROLLBACK, FENCE_STASH)
    assert deployed(home).registry.read().declarations == {}
    apply(deployed(home), declared())
    assert (set(deployed(home).registry.read().declarations), home.truth()) == ({"planes"}, "stash")


def test_a_stash_that_is_not_the_one_of_the_persist_catalog_is_not_taken_for_a_new_one(home: Home) -> None:
    home.open(MIGRATE)
    other = Home(replace(home.settings, stash_uri=DatabaseUri(path=home.settings.home / "other.db")))
    for ask in (deployed(other).registry.read, lambda: looked_at(other), lambda: switch(other, READ_ONLY)):
        with pytest.raises(NotWritable, match="stash was never opened"):
            ask()


def test_a_newer_deployment_reads_along_and_changes_nothing_until_it_leads(home: Home) -> None:
    apply(deployed(home), declared())
    switch(home, READ_WRITE)
    before = home.dumps()
    newer = deployed(home, 2)
    assert set(newer.registry.read().declarations) == {"planes"}
    assert (read_mode(newer), newer.modes.switch(READ_ONLY, who="w", why="y").generation) == (READ_ONLY, 1)
    with pytest.raises(NotWritable):
        apply(newer, declared("events"))
    assert home.dumps() == before
    assert newer.modes.switch(READ_WRITE, who="w", why="y").generation == 2
    assert [state for _, state in deployment_states(home.of_generation(2))] == ["deposed", "is-leader"]
    apply(newer, declared("events"))
    for ask in (lambda: read_mode(deployed(home)), deployed(home).registry.read):
        with pytest.raises(FencedByGeneration):
            ask()


@pytest.mark.parametrize("direction", [ROLLBACK, MIGRATE])
def test_a_newer_program_reads_along_in_its_own_format_and_migrates_the_items_once_it_leads(
    home: Home, direction: Direction
) -> None:
    home.open(direction, add=["a"])
    newer, before = Membership(of_version_2(home)), home.dumps()
    assert newer.read(setting_names) == {"b"}
    assert home.dumps() == before
    newer.lead()
    assert newer.change(setting_names) == {"b"}
    for old, refused in ((home, FencedByGeneration), (home.of_generation(2), IncompatibleDataVersion)):
        with pytest.raises(refused):
            old.setting_names()


@pytest.mark.parametrize(("there", "direction"), [(ROLLBACK, MIGRATE), (MIGRATE, ROLLBACK)])
def test_items_are_brought_to_the_new_format_before_they_are_moved_also_by_an_open_that_died(
    home: Home, there: Direction, direction: Direction
) -> None:
    home.open(there, add=["a"])
    newer, steps = of_version_2(home), PROTOCOL[direction]
    for count in range(1, len(steps)):
        run_steps(newer.ends, Opening(direction=direction), steps[:count]).close()
    with closing(newer.open(direction)) as opening:
        assert opening.truth.transact(setting_names) == {"b"}
    for end in (newer.ends.stash, newer.ends.persist):
        with end.open(OpenMode.READ_ONLY, generation=2, clock=SteppedClock()) as handle:
            assert handle.transact(lambda transaction: transaction.config(DATA_VERSION_KEY)) == 2
            assert handle.transact(setting_names) <= {"b"}


def of_version_2(home: Home) -> Catalog:
    """The catalog as a program of deployment 2 opens it, whose items have another format."""
    migrations = (DataMigration(2, a_to_b),)
    stash, persist = (
        Stash.of(home.settings, migrations=migrations),
        PersistCatalog(home.settings, migrations=migrations),
    )
    return replace(home.catalog, ends=replace(home.ends, generation=2, stash=stash, persist=persist))


def a_to_b(contents: Contents) -> list[Change]:
    a, b = (SETTING.item(NamedKey(name=name), SettingValue(value="v")) for name in "ab")
    return [Change(a, -1), Change(b, 1)] if a in set(contents) else []


def setting_names(transaction: Transaction) -> set[str]:
    return {key.name for key, _ in transaction.items(SETTING)}


def deployment_states(home: Home) -> list[tuple[int, str]]:
    with home.catalog.join() as handle:
        found = handle.transact(lambda transaction: list(transaction.items(DEPLOYMENT)))
    return [(key.generation, value.state.value) for key, value in found]


@pytest.mark.crash
def test_a_newer_deployment_that_died_between_its_open_and_its_switch_only_stages(home: Home) -> None:
    switch(home, READ_WRITE)
    assert run_in_child(promote, home, fail_point="mode.after-open") != 0
    assert read_mode(deployed(home, 2)) is READ_ONLY
    with pytest.raises(FencedByGeneration):
        read_mode(deployed(home))
    promote(home)
    assert read_mode(deployed(home, 2)) is READ_WRITE


@pytest.mark.crash
def test_a_promotion_that_died_in_its_open_is_done_by_the_next_try(home: Home) -> None:
    switch(home, READ_WRITE)
    assert run_in_child(promote, home, fail_point="publish.after-commit") != 0
    for read in (lambda: read_mode(deployed(home, 2)), lambda: switch(home, READ_ONLY, generation=2)):
        with pytest.raises(NotLed):
            read()
    promote(home)
    assert read_mode(deployed(home, 2)) is READ_WRITE


def promote(home: Home) -> None:
    switch(home, READ_WRITE, generation=2)


# -- while the truth moves -----------------------------------------------------------------------------------------

ASKING: dict[str, Callable[[Deployment], Any]] = {
    "declarations": lambda deployment: deployment.registry.read(),
    "mode": lambda deployment: deployment.modes.read(),
    "records": lambda deployment: deployment.discards.read(),
    "a switch": lambda deployment: deployment.modes.switch(READ_ONLY, who="w", why="y"),
    "a record": lambda deployment: deployment.discards.add({"k": {}}, who="w"),
}


@pytest.mark.parametrize("step", [FENCE_STASH, SET_TOMBSTONE], ids=lambda step: step.name)
def test_while_nobody_leads_whoever_begins_waits_and_whoever_had_begun_is_fenced(home: Home, step: Step) -> None:
    apply(deployed(home), declared())
    begun = deployed(home)
    seen = begun.registry.read()
    home.die_after(MIGRATE, step)
    before = home.dumps()
    for ask in ASKING.values():
        with pytest.raises(NotLed) as waits:
            ask(deployed(home))
        with pytest.raises(FencedByEpoch) as fenced:
            ask(begun)
        assert (waits.value.exit_code, fenced.value.exit_code) == (ExitCode.TRANSIENT, ExitCode.FENCED)
    with pytest.raises(FencedByEpoch):
        begun.registry.replace([declared("events")], seen=seen)
    assert home.dumps() == before
    assert looked_at(home) == StoredMode(generation=1), "a sensor sees the mode all the same"
    home.open(MIGRATE)
    for ask in ASKING.values():
        ask(deployed(home))
        with pytest.raises(FencedByEpoch):
            ask(begun)


# -- declarations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [ROLLBACK, MIGRATE])
def test_of_two_who_apply_one_has_to_look_again(home: Home, direction: Direction) -> None:
    home.open(direction)
    first, second = deployed(home), deployed(home)
    seen = first.registry.read(), second.registry.read()
    first.registry.replace([declared(tags=["a"])], seen=seen[0])
    with pytest.raises(CatalogOutOfSync):
        second.registry.replace([declared("events")], seen=seen[1])
    assert set(second.registry.read().declarations) == {"planes"}


def test_a_switch_to_read_only_between_a_look_and_an_apply_refuses_it(home: Home) -> None:
    deployment = deployed(home)
    apply(deployment, declared())
    seen = deployment.registry.read()
    switch(home, READ_ONLY)
    with pytest.raises(ReadOnly):
        deployment.registry.replace([declared("events")], seen=seen)
    assert set(deployment.registry.read().declarations) == {"planes"}


def test_a_declaration_keeps_its_number_and_what_is_applied_again_leaves_no_trace(home: Home) -> None:
    deployment = deployed(home)
    apply(deployment, declared(), declared("events"))
    apply(deployment, declared(tags=["a"]))
    before = home.dumps()
    apply(deployment, declared(tags=["a"]))
    assert home.dumps() == before

    def numbers(transaction: Transaction) -> dict[str, int]:
        return {key.name: value.id for key, value in transaction.items(COLLECTION)}

    with home.catalog.join() as handle:
        assert handle.transact(numbers) == {"planes": 1, "events": 2}


def test_a_declaration_of_a_newer_version_or_a_damaged_one_is_said_to_be_so(home: Home) -> None:
    apply(deployed(home), declared())
    with home.catalog.join() as handle:
        stored = handle.transact(lambda transaction: transaction.get(COLLECTION, NamedKey(name="planes")))
    assert isinstance(stored, CollectionValue)
    assert parse_declaration("planes", stored) == declared()
    with pytest.raises(NotPossible, match="version 9"):
        parse_declaration("planes", stored.model_copy(update={"declaration_version": 9}))
    with pytest.raises(CorruptState, match="'planes' cannot be read"):
        parse_declaration("planes", stored.model_copy(update={"declaration": {"name": "planes", "kind": "other"}}))


# -- the mode ------------------------------------------------------------------------------------------------------


def test_a_second_record_of_the_same_is_not_made(home: Home) -> None:
    deployment = deployed(home)
    deployment.discards.add({"a": {"n": 1}}, who="w")
    deployment.discards.add({"a": {"n": 2}, "b": {"n": 3}}, who="w")
    assert deployment.discards.read() == [{"n": 1}, {"n": 3}]


def test_each_switch_is_later_than_the_one_before_whatever_the_clock_says(home: Home) -> None:
    times = [switch(home, mode).since_ms for mode in (READ_ONLY, READ_WRITE, READ_ONLY)]
    assert times == [1_000, 1_001, 1_002]
    home.open(MIGRATE)
    assert switch(home, READ_WRITE).since_ms > 1_002


def test_an_emergency_goes_back_to_the_mode_that_the_stash_held(home: Home) -> None:
    switch(home, READ_WRITE)
    home.open(MIGRATE)
    switch(home, READ_ONLY)
    home.open(Direction.EMERGENCY, is_forced=True)
    assert looked_at(home).mode is READ_WRITE
