"""The life of objects as the catalog keeps it: paused, suspended, dropped; on either side, and carried to the other."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.clock import SteppedClock
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.items.kinds import AUDIT_EVENT, DROPPED, OBJECT_STATE, SINK, NamedKey, SinkValue
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Leaving, Mode
from tidemark.collections.objects.standing import ObjectKind, ObjectState
from tidemark.errors import CatalogOutOfSync, ReadOnly, StillRead, UnknownCollection, Unreachable, UsageError
from tidemark.report import ErrorReport

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.deployment import Deployment

pytestmark = pytest.mark.slow  # stores that are really written, again and again

NOW_MS = 10_000_000


def deployed(home: Home, *, who: str = "ada", now_ms: int = NOW_MS, generation: int = 1) -> Deployment:
    settings = replace(home.settings, generation=generation)
    return deployment_of(settings, who=who, clock=SteppedClock(now_ms))


def collection(name: str, **more: object) -> Declaration:
    return Declaration.model_validate({"name": name, "kind": "append-only", "schema": "id bigint", **more})


def reader(name: str, *read: str) -> Declaration:
    source = {"inputs": {each: {"collection": each} for each in read}, "sql": f"SELECT * FROM {read[0]}"}
    return Declaration.model_validate({"name": name, "kind": "differential", "source": source})


def apply(home: Home, *declarations: Declaration) -> None:
    registry = deployed(home).registry
    registry.replace(declarations, seen=registry.read())


def add_sink(home: Home, name: str, carried: str) -> None:
    with home.catalog.join() as handle:
        value = SinkValue(id=7, collection=carried, definition={})
        handle.transact(lambda transaction: transaction.put(SINK, NamedKey(name=name), value))


def audited(home: Home) -> list[tuple[str, str, str]]:
    """Return operation, subject and who of the events of objects, in their order."""
    with home.catalog.join() as handle:
        events = handle.transact(lambda transaction: list(transaction.items(AUDIT_EVENT)))
    ordered = [event for _, event in sorted(events, key=lambda item: item[0].id)]
    return [(each.operation, each.subject, each.who) for each in ordered if each.subject_kind in {"collection", "sink"}]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(settings_in(tmp_path))
    apply(home, collection("planes"), collection("events"), reader("big", "planes"))
    return home


def test_states_and_drops_go_along_with_the_truth(any_home: Home) -> None:
    apply(any_home, collection("planes"), collection("events"), collection("gone"))
    objects = deployed(any_home).objects
    objects.pause(["planes"], why="a new source")
    [dropped] = objects.drop([replace(each, tables={"gone": "u"}) for each in objects.look(["gone"])])
    assert dropped.table_uuid == "u"
    for direction in (MIGRATE, ROLLBACK):
        any_home.open(direction)
        objects = deployed(any_home).objects
        assert str(objects.read()["planes"]).endswith("by ada: a new source")
        assert objects.dropped() == [dropped]
        assert objects.suspend("events", 2, ErrorReport.of(Unreachable("no answer"))) is not None
        assert objects.recover("events", 2)
    with any_home.catalog.join() as handle:
        assert handle.snapshot().counts()["dropped"] == 1
    objects.forget(dropped)
    objects.resume(["planes"])
    assert (objects.read(), objects.dropped()) == ({}, [])
    assert [each[:2] for each in audited(any_home)][3:] == [
        ("pause", "planes"), ("drop", "gone"), ("suspend", "events"), ("recover", "events"), ("suspend", "events"),
        ("recover", "events"), ("remove", "gone"), ("resume", "planes"),
    ]  # fmt: skip


def test_a_stash_of_an_older_program_gets_the_new_kinds_with_the_first_item(home: Home) -> None:
    path = home.settings.stash_uri.path
    assert path is not None
    with closing(SqliteConnection(path)) as connection:
        connection.begin(write=True)
        for kind in (OBJECT_STATE.name, DROPPED.name):
            [[number]] = connection.query("SELECT collection_id FROM collections WHERE name = ?", [kind])
            for table in ("data", "sinces", "uppers", "collections"):
                connection.execute(f"DELETE FROM {table} WHERE collection_id = ?", [number])
        connection.commit()
    objects = deployed(home).objects
    assert (objects.read(), objects.dropped(), objects.find("planes").standing) == ({}, [], None)
    objects.pause(["planes"])
    assert objects.read()["planes"].is_paused
    assert len(objects.drop(objects.look(["events"]))) == 1
    home.open(MIGRATE)
    assert deployed(home).objects.read()["planes"].is_paused


# -- pause and resume ------------------------------------------------------------------------------------------------


def test_who_pauses_what_is_paused_learns_by_whom(home: Home) -> None:
    assert deployed(home).objects.pause(["planes", "events"], why="a new source") == {}
    again = deployed(home, who="bob").objects.pause(["planes"], why="mine")
    assert (again["planes"].who, again["planes"].reason) == ("ada", "a new source")
    assert deployed(home).objects.find("planes").standing == again["planes"]
    assert audited(home)[-1] == ("pause", "events", "ada"), "the second pause changed nothing"
    assert deployed(home, who="bob").objects.resume(["planes"]) == again
    assert deployed(home).objects.resume(["planes"]) == {}
    assert list(deployed(home).objects.read()) == ["events"]


def test_all_or_none_and_a_near_match(home: Home) -> None:
    for change in (deployed(home).objects.pause, deployed(home).objects.resume, deployed(home).objects.look):
        with pytest.raises(UnknownCollection) as caught:
            change(["events", "plane"])
        assert "'planes'" in caught.value.hint
    assert deployed(home).objects.read() == {}


def test_a_sink_is_an_object_too(home: Home) -> None:
    add_sink(home, "seats", "events")
    objects = deployed(home).objects
    objects.pause(["seats"])
    assert list(objects.read()) == ["seats"]
    [leaving] = objects.look(["seats"])
    assert (leaving.kind, leaving.object_id) == (ObjectKind.SINK, 7)
    [dropped] = objects.drop([leaving])
    assert (dropped.kind, dropped.table_uuid) == (ObjectKind.SINK, "")
    assert objects.read() == {}
    assert ("drop", "seats", "ada") in audited(home)
    assert len(objects.drop(objects.look(["events"]))) == 1, "nothing carries it any more"


def test_a_read_only_deployment_changes_nothing(home: Home) -> None:
    deployed(home).objects.pause(["events"])
    deployed(home).modes.switch(Mode.READ_ONLY, who="ada", why="upgrade")
    objects = deployed(home).objects
    with pytest.raises(ReadOnly):
        objects.pause(["planes"])
    with pytest.raises(ReadOnly):
        objects.resume(["events"])
    with pytest.raises(ReadOnly):
        objects.look(["events"])
    with pytest.raises(ReadOnly):
        objects.suspend("planes", 1, ErrorReport.of(Unreachable("no answer")))
    with pytest.raises(ReadOnly):
        objects.drop([Leaving(kind=ObjectKind.COLLECTION, name="events", object_id=2)])
    assert list(deployed(home, generation=2).objects.read()) == ["events"], "a newer deployment sees it, too"


# -- suspensions -----------------------------------------------------------------------------------------------------


def test_a_failure_suspends_for_longer_each_time_until_the_object_recovers(home: Home) -> None:
    first = deployed(home).objects.suspend("planes", 1, ErrorReport.of(Unreachable("no answer\nand more")))
    assert first is not None
    assert (first.state, first.error, first.reason) == (ObjectState.SUSPENDED, "Unreachable", "no answer")
    assert (first.attempts, first.retry_at_ms, first.since_ms) == (1, NOW_MS + 60_000, NOW_MS)
    second = deployed(home, now_ms=NOW_MS + 70_000).objects.suspend(
        "planes", 1, ErrorReport.of(Unreachable("still not"))
    )
    assert second is not None
    assert (second.attempts, second.retry_at_ms, second.since_ms) == (2, NOW_MS + 190_000, NOW_MS)
    third = deployed(home).objects.suspend(
        "planes", 1, ErrorReport(kind="ValueError", message="x"), back_off=lambda attempts: attempts
    )
    assert third is not None
    assert third.retry_at_ms == NOW_MS + 3
    assert deployed(home).objects.recover("planes", 1)
    assert not deployed(home).objects.recover("planes", 1)
    assert [each[0] for each in audited(home)][3:] == ["suspend", "recover"], "not an event for every try"


def test_nothing_suspends_what_is_paused_or_dropped_and_no_success_ends_a_pause(home: Home) -> None:
    objects = deployed(home).objects
    objects.pause(["planes"])
    assert objects.suspend("planes", 1, ErrorReport.of(Unreachable("no answer"))) is None
    assert not objects.recover("planes", 1)
    assert objects.read()["planes"].is_paused
    objects.drop(objects.look(["events"]))
    assert objects.suspend("events", 2, ErrorReport.of(Unreachable("no answer"))) is None
    assert "events" not in objects.read()
    apply(home, collection("events"))
    assert objects.suspend("events", 2, ErrorReport.of(Unreachable("no answer"))) is None, "another one has the name"
    assert not objects.read().get("events")


def test_a_pause_takes_the_place_of_a_suspension_and_a_resume_ends_one(home: Home) -> None:
    objects = deployed(home).objects
    objects.suspend("planes", 1, ErrorReport.of(Unreachable("no answer")))
    assert objects.pause(["planes"]) == {}
    assert objects.read()["planes"].is_paused
    objects.suspend("events", 2, ErrorReport.of(Unreachable("no answer")))
    assert objects.resume(["events"])["events"].state is ObjectState.SUSPENDED
    assert list(objects.read()) == ["planes"]


# -- drop ------------------------------------------------------------------------------------------------------------


def test_what_is_read_is_not_dropped_unless_its_readers_are(home: Home) -> None:
    add_sink(home, "seats", "planes")
    objects = deployed(home).objects
    with pytest.raises(StillRead) as caught:
        objects.look(["planes"])
    assert str(caught.value) == "collection 'big' reads 'planes'; sink 'seats' carries 'planes'"
    with pytest.raises(StillRead, match=r"^sink 'seats'"):
        objects.look(["planes", "big"])
    objects.pause(["planes"])
    gone = objects.drop(objects.look(["planes", "big", "seats"]))
    assert [(each.name, each.number) for each in gone] == [("planes", 1), ("big", 2), ("seats", 3)]
    assert (objects.read(), list(deployed(home).registry.read().declarations)) == ({}, ["events"])


def test_a_reader_that_comes_between_look_and_drop_stops_the_drop(home: Home) -> None:
    leaving = deployed(home).objects.look(["events"])
    apply(home, reader("late", "events"))
    with pytest.raises(StillRead, match="'late' reads 'events'"):
        deployed(home).objects.drop(leaving)
    assert deployed(home).objects.dropped() == []


def test_what_was_made_anew_since_the_look_is_not_dropped(home: Home) -> None:
    leaving = deployed(home).objects.look(["events"])
    deployed(home).objects.drop(leaving)
    apply(home, collection("events"))
    with pytest.raises(CatalogOutOfSync):
        deployed(home).objects.drop(leaving)
    assert "events" in deployed(home).registry.read().declarations


def test_what_was_dropped_cannot_be_resumed(home: Home) -> None:
    objects = deployed(home).objects
    [gone] = objects.drop(objects.look(["events"]))
    objects.forget(gone)
    with pytest.raises(UsageError, match="'events' was dropped 1970-01-01 02:46:40 by ada") as caught:
        objects.resume(["events"])
    assert "tidemark apply" in caught.value.hint
    apply(home, collection("events"))
    assert objects.resume(["events"]) == {}


def test_what_is_gone_is_told_with_when_and_by_whom(home: Home) -> None:
    deployed(home).objects.drop(deployed(home).objects.look(["events"]))
    apply(home, collection("aircraft", renamed_from="planes"), reader("big", "aircraft"))
    gone = deployed(home).objects.gone(["events", "planes", "big", "never"])
    assert gone == {
        "events": "'events' was dropped 1970-01-01 02:46:40 by ada",
        "planes": "'planes' was renamed to 'aircraft' 1970-01-01 02:46:40 by ada",
    }
    apply(home, collection("events"))
    assert list(deployed(home).objects.gone(["events", "planes"])) == ["planes"], "made anew"
