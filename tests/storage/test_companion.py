"""The companion: one object's questions in their order, objects beside each other, and no restart all the time."""

from __future__ import annotations

import time
from threading import Event, active_count
from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tests.support.storage import ingestion
from tidemark.errors import Unreachable
from tidemark.storage.commands import CreateIngestionDataflow, DropDataflow, Ingestion
from tidemark.storage.effects import AskResumePoints, Failed, PassThrough
from tidemark.storage.processes.companion import Companion, read_resume_points

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.settings import Settings
    from tidemark.storage.worker import Answer


@pytest.fixture
def opened() -> Iterator[Event]:
    """What the answers about the object `slow` wait for."""
    found = Event()
    yield found
    found.set()


@pytest.fixture
def companion(opened: Event) -> Companion:
    tries = []

    def read(question: AskResumePoints) -> Answer:
        tries.append(question.id)
        if question.id == "slow":
            opened.wait(10)
        if question.id == "away" and tries.count("away") < 3:
            raise Unreachable("not now")
        if question.id == "odd":
            raise OSError("broken")
        return CreateIngestionDataflow(question.id, question.description, 0, {})

    return Companion(read)


def test_the_wait_after_thousands_of_restarts_is_no_longer_than_others(companion: Companion) -> None:
    ask(companion, "quick", restarts=5_000)
    assert wait_for(companion, 1, seconds=0.1) == []
    ask(companion, "quick")
    assert len(wait_for(companion, 2)) == 2


def ask(companion: Companion, *ids: str, restarts: int = 0) -> None:
    for id_ in ids:
        companion.ask(AskResumePoints(id_, ingestion(1, id_), restarts))


def wait_for(companion: Companion, count: int, *, seconds: float = 5.0) -> list[Answer]:
    found: list[Answer] = []
    until_s = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < until_s:
        found += companion.answers()
        time.sleep(0.005)
    return found


def test_a_drop_waits_for_the_start_before_it_and_nobody_waits_for_another_object(
    companion: Companion, opened: Event
) -> None:
    ask(companion, "slow")
    companion.ask(PassThrough(DropDataflow(("slow",))))
    ask(companion, "fast")
    (fast,) = wait_for(companion, 1)
    assert isinstance(fast, CreateIngestionDataflow)
    assert fast.id == "fast"
    assert companion.is_busy
    opened.set()
    start, drop = wait_for(companion, 2)
    assert isinstance(start, CreateIngestionDataflow)
    assert drop == DropDataflow(("slow",))
    assert not companion.is_busy


def test_what_is_away_is_asked_again_and_what_is_broken_is_told(companion: Companion) -> None:
    ask(companion, "away", "odd")
    answers = wait_for(companion, 2)
    assert Failed("odd", "broken") in answers
    assert any(isinstance(answer, CreateIngestionDataflow) and answer.id == "away" for answer in answers)


def test_a_restart_that_waits_gives_way_to_what_is_asked_later(companion: Companion) -> None:
    ask(companion, "a", restarts=6)
    assert wait_for(companion, 1, seconds=0.2) == []
    companion.ask(PassThrough(DropDataflow(("a",))))
    assert len(wait_for(companion, 2)) == 2


def test_many_objects_that_wait_take_few_threads_and_keep_nobody_waiting(companion: Companion) -> None:
    before = active_count()
    ask(companion, *(f"resting {number}" for number in range(100)), restarts=6)
    ask(companion, "fast")
    assert [answer.id for answer in wait_for(companion, 1) if isinstance(answer, CreateIngestionDataflow)] == ["fast"]
    assert active_count() - before <= 8
    companion.close()


def test_resume_points_are_those_of_the_ledger_and_of_what_is_gone_there_are_none(home: Settings) -> None:
    found = Home(home)
    declared = found.declare_reader(source={"every": "1s"})
    found.send_rows(0, 3)
    found.ingest()
    description = Ingestion(declared.model_dump_json(by_alias=True, exclude_none=True), ("collection-1",))
    answer = read_resume_points(found.shards, AskResumePoints("collection-1", description))
    assert isinstance(answer, CreateIngestionDataflow)
    point = answer.resume_points["collection-1"]
    assert point.upper == answer.as_of == found.upper("events")
    assert list(point.next_numbers.values()) == [3]
    other = Ingestion(description.definition.replace("events", "others"), ("collection-1",))
    assert isinstance(read_resume_points(found.shards, AskResumePoints("collection-1", other)), Failed)
