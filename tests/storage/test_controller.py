from __future__ import annotations

import pytest

from tests.support.storage import ingestion, sink
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Applied, AppliedSink, CatalogObject, StatusKind
from tidemark.collections.objects.standing import ObjectState, Standing
from tidemark.errors import CorruptState, UsageError
from tidemark.frontier import EMPTY
from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    External,
    Ingestion,
    InitializationComplete,
    RunIngestion,
    RunSink,
    Sink,
)
from tidemark.storage.controller import Controller, find_desired
from tidemark.storage.effects import ReportDropped, ReportFrontier, ReportStatus
from tidemark.storage.order import CONTROLLER, Row, Sender

A = ingestion(1, "a")


def controller_of(workers: int, **desired: Ingestion | Sink) -> Controller:
    controller = Controller(workers)
    controller.follow(desired)
    controller.begin()
    return controller


def said(index: int, command: External) -> Row:
    return Row(index, Sender(CONTROLLER, 1), index, command)


def test_what_is_wanted_becomes_commands_once() -> None:
    controller = controller_of(1, a=A)
    altered = ingestion(2, "a")
    assert controller.follow({"a": altered, "s": sink()}) == [RunIngestion("a", altered), RunSink("s", sink(), 0)]
    assert controller.follow({"a": altered, "s": sink()}) == []
    assert controller.follow({"s": sink()}) == [AllowCompaction("a", EMPTY)]


def test_a_collection_that_leaves_an_ingestion_is_dropped_alone() -> None:
    controller = controller_of(1, a=ingestion(1, "a", "b"))
    assert controller.follow({"a": A}) == [RunIngestion("a", A), AllowCompaction("b", EMPTY)]
    assert controller.receive(0, ReportDropped("b")) == [ReportDropped("b")]


def test_a_frontier_is_passed_on_when_the_last_worker_passed_it() -> None:
    controller = controller_of(2, a=A)
    assert controller.receive(0, ReportFrontier("a", 9)) == []
    assert controller.receive(1, ReportFrontier("a", 5)) == [ReportFrontier("a", 5)]
    assert controller.receive(1, ReportFrontier("a", EMPTY)) == [ReportFrontier("a", 9)]
    assert controller.receive(1, ReportFrontier("a", 7)) == []
    assert controller.receive(1, ReportStatus("a", "running")) == [ReportStatus("a", "running")]


def test_a_drop_is_told_once_when_all_workers_know_and_only_then_runs_the_object_again() -> None:
    controller = controller_of(2, a=A)
    controller.follow({})
    assert controller.receive(0, ReportDropped("a")) == []
    assert controller.receive(1, ReportFrontier("a", 3)) == [], "it was on its way"
    assert controller.follow({"a": A}) == []
    assert controller.receive(1, ReportDropped("a")) == [ReportDropped("a")]
    assert controller.follow({"a": A}) == [RunIngestion("a", A)]


def test_a_controller_begins_with_everything_that_is_wanted() -> None:
    controller = Controller(2)
    controller.follow({"a": A, "s": sink()})
    assert controller.begin() == [RunIngestion("a", A), RunSink("s", sink(), 0), InitializationComplete()]
    controller.allow_writes()
    controller.compact("s", 8)
    controller.follow({"s": sink()})
    assert controller.begin() == [RunSink("s", sink(), 8), InitializationComplete(), AllowWrites()]


def test_a_worker_acknowledges_what_it_has_read_however_often_it_says_so() -> None:
    controller = controller_of(2, a=A)
    (drop,) = controller.follow({})
    assert controller.hear(0, 9, {"a": 3}) == [], "its place in the log is not known yet"
    controller.note(said(4, drop))
    assert controller.hear(0, 5, {}) == []
    assert controller.hear(0, 5, {}) == []
    assert controller.hear(1, 4, {"a": 3}) == [], "it has not read that"
    assert controller.hear(1, 5, {}) == [ReportDropped("a")]
    assert controller.hear(1, 6, {"x": 3}) == [], "of an earlier controller"
    controller.follow({"a": A})
    assert controller.hear(0, 7, {"a": 9}) == []
    assert controller.hear(1, 7, {"a": 5}) == [ReportFrontier("a", 5)]
    assert controller.hear(1, 7, {"a": 5}) == []
    assert controller.hear(1, 8, {"a": 0}) == [], "a new life"
    assert controller.hear(0, 8, {"a": 9}) == []
    assert controller.hear(1, 9, {"a": 6}) == [ReportFrontier("a", 6)]


def test_reports_that_cannot_be_are_refused() -> None:
    controller = controller_of(2, a=A)
    with pytest.raises(CorruptState, match="was not told"):
        controller.receive(0, ReportDropped("a"))
    controller.follow({})
    controller.receive(0, ReportDropped("a"))
    with pytest.raises(CorruptState, match="said so before"):
        controller.receive(0, ReportDropped("a"))
    with pytest.raises(CorruptState, match="worker 1 reports on 'x'"):
        controller.receive(1, ReportFrontier("x", 3))
    with pytest.raises(UsageError, match="no object 'x'"):
        controller.compact("x", 3)


def test_what_should_run_declares_how_often_and_does_not_rest() -> None:
    source = {"buffer": "memory:x", "every": "5s"}
    sources = {"orders": source, "paused": source, "later": source, "rare": {"buffer": "memory:x"}}
    fields = {"orders": {"kind": "latest", "key": ["a"]}}
    declarations = {
        name: Declaration.model_validate(
            {"name": name, "kind": "append-only", "source": each, "schema": "a bigint", **fields.get(name, {})}
        )
        for name, each in sources.items()
    }
    sinks = {
        name: AppliedSink(
            id_,
            SinkDeclaration.model_validate(
                {"name": name, "from": "orders", "to": {"path": name}, "mode": "changes", "every": every}
            ),
        )
        for id_, (name, every) in enumerate({"copy": "1m", "seldom": None}.items(), start=1)
    }
    objects = {
        "orders": CatalogObject(StatusKind.INGESTION, 1),
        "paused": CatalogObject(StatusKind.INGESTION, 2),
        "later": CatalogObject(StatusKind.INGESTION, 3),
        "plain": CatalogObject(StatusKind.COLLECTION, 4),
        "gone": CatalogObject(StatusKind.INGESTION, 5),
        "rare": CatalogObject(StatusKind.INGESTION, 6),
        "copy": CatalogObject(StatusKind.SINK, 1),
        "seldom": CatalogObject(StatusKind.SINK, 2),
    }
    standings = {
        "paused": Standing(state=ObjectState.PAUSED, since_ms=0),
        "later": Standing(state=ObjectState.SUSPENDED, since_ms=0, retry_at_ms=50),
    }
    desired = find_desired(Applied(declarations, sinks=sinks), objects, standings, now_ms=49)
    assert {*desired} == {"collection-1", "sink-1"}
    assert isinstance(desired["sink-1"], Sink)
    assert desired["sink-1"].collection == "orders"
    assert {*find_desired(Applied(declarations, sinks=sinks), objects, standings, now_ms=50)} == {
        "collection-1",
        "collection-3",
        "sink-1",
    }
