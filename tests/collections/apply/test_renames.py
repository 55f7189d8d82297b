"""A collection gets another name: rows, history, state and number stay, and nothing reads the old name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clock import SteppedClock
from tests.support.crash import die_at
from tests.support.events import append_numbers
from tests.support.homes import Home
from tests.support.sinks import declare_sink
from tidemark.catalog.items.kinds import COLLECTION, NamedKey
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.objects import rename
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.collections.system.status_table import read_status_table
from tidemark.errors import Dropped, IncompatibleChange, StillRead, UnknownCollection
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import DROPPED

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

HEAD = "version: 1\ncollections:\n"
OLD = HEAD + '  events: {kind: append-only, schema: "id bigint, name string"}\n'
NEW = HEAD + '  facts: {renamed_from: events, kind: append-only, schema: "id bigint, name string"}\n'
READER = (
    "  big: {kind: differential, schema: 'id bigint', "
    "source: {inputs: {e: {collection: %s}}, sql: 'SELECT id FROM e'}}\n"
)


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    place = Home(home, tmp_path)
    place.declare(OLD)
    append_numbers(place.shard(), home, 0, 2)
    return place


def number_of(place: Home, name: str) -> int | None:
    with place.catalog.join() as handle:
        value = handle.transact(lambda transaction: transaction.get(COLLECTION, NamedKey(name=name)))
    return None if value is None else value.id


@pytest.mark.slow
def test_rows_history_state_and_number_go_along(place: Home) -> None:
    place.deployment.objects.pause(["events"], why="a new name")
    number, ledgers = number_of(place, "events"), place.shard().load().state.ledgers
    place.declarations.write_text(NEW)
    plan = place.application().plan(load_declarations([place.declarations]))
    assert [str(step) for step in plan.steps] == [
        "rename the collection 'events', with its rows and its history",
        "register the declaration",
    ]
    assert place.ids() == [0, 1], "a dry run"
    assert place.declare().kept == ()
    assert (place.shards.names(), list(place.registry.read().declarations)) == (["facts"], ["facts"])
    assert (place.ids("facts"), place.shard("facts").load().state.ledgers) == ([0, 1], ledgers)
    assert number_of(place, "facts") == number
    assert list(place.deployment.objects.read()) == ["facts"]
    with pytest.raises(UnknownCollection) as renamed:
        read_status_table(place.deployment, ["events"])
    assert renamed.value.hint == "it was renamed, and is called 'facts' now"
    place.deployment.objects.resume(["facts"])
    for numbers in ((0, 2), (2, 3)):
        append_numbers(place.shard("facts"), place.settings, *numbers)
    assert place.ids("facts") == [0, 1, 2], "the ledger knows the first batch"
    assert place.declare().steps == (), "the second time there is nothing to do"
    place.declare(OLD)
    assert (place.ids(), place.ids("facts")) == ([], [0, 1, 2]), "the old name is free"
    assert place.shard().load().table.location() != place.shard("facts").load().table.location()


@pytest.mark.slow
def test_columns_change_together_with_the_name(place: Home) -> None:
    plan = place.declare(NEW.replace("name string", "name string, more int"))
    assert [step.action for step in plan.steps] == ["rename collection", "add column", "register"]
    assert place.user_rows("facts")[0] == {"id": 0, "name": "p", "more": None}


@pytest.mark.slow
def test_a_writer_of_the_old_name_fails(place: Home) -> None:
    writer = Writer.join(place.shard(), 1)
    place.declare(NEW)
    with pytest.raises(Dropped, match="'events' was dropped, or renamed"):
        Writer.raise_token(writer.shard, 1)


@pytest.mark.slow
def test_whoever_reads_the_old_name_is_listed(place: Home) -> None:
    place.declare(OLD + READER % "events")
    with pytest.raises(StillRead, match="collection 'big' reads 'events', which becomes 'facts'"):
        place.declare(NEW)
    place.declare(NEW + READER % "facts")
    assert place.shards.names() == ["big", "facts"]


@pytest.mark.slow
def test_a_sink_of_the_old_name_stops_it(place: Home) -> None:
    declare_sink(place.settings, "seats", "events")
    followed = NEW + "sinks:\n  seats: {from: facts, to: {connection: pg, table: seats}, mode: changes}\n"
    for text in (NEW, followed):
        with pytest.raises(StillRead, match="sink 'seats' carries it") as caught:
            place.declare(text)
        assert "`tidemark drop seats` first" in caught.value.hint
        assert "existing: replace" in caught.value.hint
    declare_sink(place.settings, "more", "events")
    with pytest.raises(StillRead, match="sinks 'more', 'seats' carry it"):
        place.declare(NEW)
    assert place.ids() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (NEW + OLD.removeprefix(HEAD), "declared twice"),
        (NEW + NEW.removeprefix(HEAD).replace("facts", "others"), "declared twice"),
    ],
)
def test_one_table_has_one_name(place: Home, text: str, problem: str) -> None:
    with pytest.raises(IncompatibleChange, match=problem):
        place.declare(text)
    assert place.ids() == [0, 1]


@pytest.mark.slow
def test_a_collection_of_a_buffer_keeps_its_name(home: Settings) -> None:
    place = Home(home)
    declaration = place.declare_reader()
    text = NEW.replace("schema", f"source: {{buffer: '{place.buffer_folder.as_uri()}'}}, schema")
    with pytest.raises(IncompatibleChange, match="its buffer knows its batches by its name"):
        place.declare(text)
    assert place.registry.get("events") == declaration


def declare_new(settings: Settings, folder: Path) -> None:
    Home(settings, folder).declare(NEW)


@pytest.mark.crash
@pytest.mark.parametrize("point", ["apply.registered", *rename.FAIL_POINTS])
@pytest.mark.parametrize("then", ["apply", "old", "drop"])
def test_a_killed_rename_is_completed_by_whoever_comes_next(place: Home, point: str, then: str) -> None:
    uuid = place.shard().load().table.metadata.table_uuid
    assert die_at(point, declare_new, place.settings, place.folder) == FAIL_POINT_EXIT, f"{point} was never reached"
    if then == "drop":
        plans = plan_drop(place.shards, place.deployment, ["facts"], clock=SteppedClock())
        drop(place.shards, place.deployment, plans, clock=SteppedClock())
        table = place.shards.open("facts_1", DROPPED).load().table
    else:
        place.declare(OLD if then == "old" else NEW)
        table = place.shard("facts").load().table
    assert table.metadata.table_uuid == uuid
    assert place.shards.names() == {"apply": ["facts"], "old": ["events", "facts"], "drop": []}[then]
