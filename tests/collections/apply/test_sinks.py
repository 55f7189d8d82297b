"""Applying sinks: new ones are inspected, some fields can be altered, and all of it is one transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.collections.declarations.files import load_declarations
from tidemark.errors import ConfigurationInvalid, IncompatibleChange, NotPossible, UsageError
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.apply.plan import ApplyPlan
    from tidemark.collections.declarations.sink import SinkDeclaration
    from tidemark.collections.schema.types import Columns
    from tidemark.settings import Settings

EVENTS = "events: {kind: latest, key: [id], schema: 'id int, x string', source: {buffer: 'file:///nowhere'}}"
TO, TO2 = "to: {connection: pg, table: copies}", "to: {connection: pg, table: log}"


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path)


def apply(
    place: Home, sinks: str, inspected: list[str] | None = None, *, dry: bool = False, events: str = EVENTS
) -> ApplyPlan:
    def inspect(sink: SinkDeclaration, columns: Columns) -> None:
        found.append(f"{sink.name}: {', '.join(map(str, columns))}")

    found = [] if inspected is None else inspected
    place.declarations.write_text(f"version: 1\ncollections:\n  {events}\nsinks:\n{sinks}\n")
    applied = place.registry.read()
    declarations = load_declarations([place.declarations], applied.declarations, applied.sinks)
    application = replace(place.application(), inspect_sink=inspect)
    return application.plan(declarations) if dry else application.run(declarations)


def test_a_new_sink_is_inspected_and_stored_with_its_key(place: Home) -> None:
    inspected: list[str] = []
    plan = apply(place, f"  copies: {{from: events, mode: mirror, {TO}}}", inspected)
    log = apply(place, f"  log: {{from: events, mode: changes, {TO2}}}", dry=True).steps[-1]
    assert str(log) == "create sink: changes of events to table log of pg", "no key: nothing there depends on it"
    assert plan.to_json()["steps"][-1] == {
        "sink": "copies",
        "action": "create sink",
        "detail": "create sink: mirror of events to table copies of pg, key id",
    }
    assert inspected == ["copies: id int, x string"]
    [stored] = place.registry.read().sinks.values()
    assert (stored.name, stored.collection, stored.declaration.key) == ("copies", "events", ("id",))
    again = apply(place, f"  copies: {{from: events, mode: mirror, {TO}}}", inspected)
    assert (again.steps, again.unchanged, len(inspected)) == ((), ("events", "copies"), 1)


def test_a_plan_stores_nothing(place: Home) -> None:
    assert apply(place, f"  copies: {{from: events, mode: mirror, {TO}}}", dry=True).sinks
    assert place.registry.read().sinks == {}


def test_what_is_watched_can_be_altered_and_what_is_written_cannot(place: Home) -> None:
    apply(place, f"  copies: {{from: events, mode: mirror, {TO}}}")
    before = place.registry.read().sinks["copies"]
    plan = apply(place, f"  copies: {{from: events, mode: mirror, {TO}, warn_after: 3d}}")
    assert str(plan.steps[0]) == "change warn_after"
    after = place.registry.read().sinks["copies"]
    assert (after.id, after.declaration.warn_after) == (before.id, "3d")
    plan = apply(place, f"  copies: {{from: events, mode: mirror, {TO}, warn_after: 3d, every: 5s}}")
    assert str(plan.steps[0]) == "change every"
    after = place.registry.read().sinks["copies"]
    assert (after.id, after.declaration.every_ms) == (before.id, 5_000)
    assert apply(
        place, "  copies: {from: events, mode: mirror, to: {connection: pg, table: copies, existing: replace}}"
    )
    for changed in (
        f"  copies: {{from: events, mode: changes, {TO}}}",
        f"  copies: {{from: events, mode: mirror, key: [x], {TO}}}",
        "  copies: {from: events, mode: mirror, to: {connection: pg, table: others}}",
        "  copies: {from: events, mode: mirror, to: {buffer: out}}",
    ):
        with pytest.raises(IncompatibleChange, match="cannot be changed"):
            apply(place, changed)


RENAMED = EVENTS.replace("id", "number").replace("source", "renames: {id: number}, source")


def test_a_key_follows_the_names_of_its_columns(place: Home) -> None:
    apply(place, "  copies: {from: events, mode: mirror, to: {path: /out, partition: [id]}}")
    before = place.registry.read().sinks["copies"]
    plan = apply(place, "  copies: {from: events, mode: mirror, to: {path: /out, partition: [number]}}", events=RENAMED)
    assert str(plan.steps[-1]) == "change key, to"
    after = place.registry.read().sinks["copies"]
    assert (after.id, after.declaration.key, after.declaration.to.columns) == (before.id, ("number",), ("number",))


@pytest.mark.parametrize("point", ["apply.columns-changed", "apply.before-register"])
def test_a_rename_that_died_keeps_the_sink_waiting_and_is_completed(place: Home, point: str) -> None:
    (place.folder / "out").mkdir()
    copies = f"  copies: {{from: events, mode: mirror, to: {{path: {place.folder}/out}}}}"
    apply(place, copies)
    with pytest.raises(Crash), dying_at(point):
        apply(place, copies, events=RENAMED)
    waiting = place.run_sink()
    assert waiting.error is not None
    assert (waiting.error.kind, waiting.exit_code) == ("CatalogOutOfSync", ExitCode.TRANSIENT)
    apply(place, copies, events=RENAMED)
    assert place.registry.read().sinks["copies"].declaration.key == ("number",)
    assert place.run_sink().error is None


def test_a_key_that_messages_bear_cannot_be_renamed(place: Home) -> None:
    copies = "  copies: {from: events, mode: mirror, to: {buffer: 'kafka://nowhere/out'}}"
    apply(place, copies)
    with pytest.raises(IncompatibleChange, match="keyed by id, and those to come would be keyed by number"):
        apply(place, copies, events=RENAMED)
    assert place.shard().load().table.schema().column_names[0] == "id", "nothing was applied"


def test_a_carried_collection_keeps_the_columns_that_its_sinks_name(place: Home) -> None:
    apply(place, f"  copies: {{from: events, mode: changes, key: [x], {TO}}}")
    without = EVENTS.replace(", x string", "")
    with pytest.raises(ConfigurationInvalid, match=r"sink 'copies'.*'x'"):
        place.declare(f"version: 1\ncollections:\n  {without}\n")


def test_a_log_may_get_another_key_where_nothing_depends_on_it(place: Home) -> None:
    apply(place, f"  log: {{from: events, mode: changes, {TO}}}")
    apply(place, f"  log: {{from: events, mode: changes, key: [x], {TO}}}")
    assert place.registry.read().sinks["log"].declaration.key == ("x",)
    to = "to: {buffer: 'kafka://nowhere/out'}"
    apply(place, f"  messages: {{from: events, mode: changes, {to}}}")
    with pytest.raises(IncompatibleChange, match="`key` cannot be changed"):
        apply(place, f"  messages: {{from: events, mode: changes, key: [x], {to}}}")


def test_sinks_get_ids_of_their_own_and_events_for_the_audit(place: Home) -> None:
    apply(place, f"  a: {{from: events, mode: mirror, {TO}}}\n  b: {{from: events, mode: changes, {TO2}}}")
    assert [sink.id for sink in place.registry.read().sinks.values()] == [1, 2]
    with place.catalog.join() as handle:
        events = handle.transact(lambda transaction: [event for _, event in transaction.items(AUDIT_EVENT)])
    assert {(event.operation, event.subject) for event in events if event.subject_kind == "sink"} == {
        ("create", "a"),
        ("create", "b"),
    }


def test_a_key_that_is_no_column_is_told_with_its_place(place: Home) -> None:
    with pytest.raises(ConfigurationInvalid, match=r"yaml:5: sink 'copies': .*'nothing'"):
        apply(place, f"  copies: {{from: events, mode: mirror, key: [nothing], {TO}}}")


def test_a_sink_of_a_collection_that_was_applied_before(place: Home) -> None:
    apply(place, f"  copies: {{from: events, mode: mirror, {TO}}}")
    place.declarations.write_text(f"version: 1\nsinks:\n  more: {{from: events, mode: changes, {TO2}}}\n")
    applied = place.registry.read()
    inspected: list[str] = []
    application = replace(place.application(), inspect_sink=lambda sink, _: inspected.append(sink.name))
    plan = application.run(load_declarations([place.declarations], applied.declarations, applied.sinks))
    assert inspected == ["more"]
    assert plan.kept == ("events", "copies")
    assert sorted(place.registry.read().sinks) == ["copies", "more"]


def test_what_the_target_refuses_leaves_nothing_applied(place: Home) -> None:
    def refuse(sink: SinkDeclaration, columns: Columns) -> None:
        raise NotPossible(f"{sink.name} {len(columns)}")

    place.declarations.write_text(
        f"version: 1\ncollections:\n  {EVENTS}\nsinks:\n  copies: {{from: events, mode: mirror, {TO}}}\n"
    )
    application = replace(place.application(), inspect_sink=refuse)
    with pytest.raises(NotPossible):
        application.run(load_declarations([place.declarations]))
    assert place.shards.names() == []
    assert place.registry.read().declarations == {}


def test_all_settings_that_lack_are_said_at_once_with_their_sinks(place: Home) -> None:
    def refuse(sink: SinkDeclaration, _: Columns) -> None:
        raise ConfigurationInvalid(f"no {sink.name}", hint=f"set {sink.name.upper()}")

    sinks = f"  a: {{from: events, mode: mirror, {TO}}}\n  b: {{from: events, mode: changes, {TO2}}}"
    place.declarations.write_text(f"version: 1\ncollections:\n  {EVENTS}\nsinks:\n{sinks}\n")
    with pytest.raises(ConfigurationInvalid, match=r"yaml:5: sink 'a': no a\n.*yaml:6: sink 'b': no b") as caught:
        replace(place.application(), inspect_sink=refuse).run(load_declarations([place.declarations]))
    assert caught.value.hint == "set A; set B"


def test_a_mirror_of_appended_rows_is_a_mistake(place: Home) -> None:
    place.declare_reader("appended")
    with pytest.raises(UsageError, match="append-only"):
        apply(place, f"  copies: {{from: appended, mode: mirror, key: [id], {TO}}}")


@pytest.mark.parametrize("key", ["", "key: [], "])
def test_a_mirror_of_a_multiset_needs_a_key(place: Home, key: str) -> None:
    bag = "bag: {kind: differential, schema: 'id int', source: {format: json, path: bag.json}}"
    with pytest.raises(UsageError, match="a mirror tells rows apart") as caught:
        apply(place, f"  copies: {{from: bag, mode: mirror, {key}{TO}}}", events=bag)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "declare `mode: changes`, or the columns that are unique in 'bag'" in caught.value.hint


def test_two_sinks_have_two_targets(place: Home) -> None:
    with pytest.raises(NotPossible, match="'a' and 'b' have one target"):
        apply(place, f"  a: {{from: events, mode: mirror, {TO}}}\n  b: {{from: events, mode: changes, {TO}}}")
    apply(place, f"  a: {{from: events, mode: mirror, {TO}}}")
    with pytest.raises(NotPossible, match="'a' and 'b' have one target"):
        apply(place, f"  b: {{from: events, mode: changes, {TO}}}")
