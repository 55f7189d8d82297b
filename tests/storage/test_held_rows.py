"""`chunks: memory` with workers in this process: they hold rows, write what is due, persist, and say what fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, at, send
from tests.support.homes import Home
from tests.support.storage_workers import Workers
from tidemark.collections.append.append import append_rows
from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import ConfigurationInvalid, InputsGone, Unreachable
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest.parts import RowMemory
from tidemark.storage import sharing
from tidemark.storage.dataflows import ingestion

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.errors import TidemarkError
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # dataflows come round once a second

RULES = {"visible": "when-persisted", "chunks": "memory", "persist_age": "20m", "persist_when_cold": False}


@pytest.fixture
def events(home: Settings, tmp_path: Path) -> Home:
    """Four sequencers, at 05:00."""
    found = Home(home, tmp_path, now_ms=FIVE, sequencers=4)
    declare(found)
    return found


@pytest.fixture
def workers(events: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(sharing, "SILENT_MS", 2_500)
    found = Workers(events, 2)
    yield found
    found.close()


def declare(events: Home, **rules: Any) -> None:
    events.declare_reader(
        schema="id bigint, at timestamp", event_time="at", partition="hour", source={"every": "1s"},
        lifecycle={**RULES, **rules},
    )  # fmt: skip


def send_to_all(events: Home, *minutes: int) -> None:
    for sequencer_id in range(4):
        send(events, sequencer_id, *minutes)


def hold(workers: Workers, rows: int) -> None:
    workers.run_until(lambda: workers.workers_of("events") == [0, 1] and workers.object("events")["held"] == rows)


def is_suspended(events: Home, why: str) -> bool:
    """Tell whether the collection is suspended for that reason; let it be tried again after another one."""
    standing = str(events.deployment.objects.read().get("events", ""))
    if standing and why not in standing:
        events.deployment.objects.resume(["events"])
    return why in standing


def break_reading(workers: Workers, error: TidemarkError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the worker that does not lead fail to read."""
    process = workers.running[1 - workers.object("events")["holder"]]
    real = RowMemory.hold

    def fail(memory: RowMemory, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is process.dataflows["collection-1"]._thread:
            raise error
        return real(memory, *arguments, **more)

    monkeypatch.setattr(RowMemory, "hold", fail)


def test_rows_wait_until_a_persist_is_due(events: Home, workers: Workers) -> None:
    send_to_all(events, 1, 2)
    hold(workers, 8)
    lost = 1 - workers.object("events")["holder"]
    workers.lose(lost)
    send_to_all(events, 3)
    workers.run_until(lambda: workers.object("events")["held"] == 12)
    assert (events.ids(), events.ledgers()) == ([], {})
    assert not any(process.is_drained() for process in workers.running.values())
    at(events, 30)
    workers.run_until(lambda: events.ids() == list(range(12)))
    workers.begin(lost)
    workers.run_until_drained()
    assert {*events.ledgers().values()} == {"0:3"}
    assert events.branches() == set()
    assert workers.object("events")["held"] == 0
    assert [process.around.memory.held for process in workers.running.values()] == [{}, {}]


def test_what_retention_takes_while_rows_are_held_is_named(events: Home, workers: Workers) -> None:
    """The first rows of all: no ledger says yet where the collection begins."""
    send_to_all(events, 1, 2)
    hold(workers, 8)
    events.buffer.logs[0].expire(1)
    workers.run_until(lambda: is_suspended(events, "no longer exists"))
    assert (events.ids(), events.ledgers()) == ([], {})
    events.deployment.objects.resume(["events"])
    declared = events.registry.get("events")
    lenient = declared.model_copy(update={"source": declared.source.model_copy(update={"on_expired": OnLost.EARLIEST})})
    events.registry.replace([lenient], seen=events.registry.read())
    at(events, 30)
    workers.run_until(lambda: len(events.ids()) == 7)
    assert {*events.ledgers().values()} == {"0:2"}


def test_a_log_that_is_made_anew_while_rows_are_held_is_named(events: Home, workers: Workers) -> None:
    send_to_all(events, 1, 2)
    hold(workers, 8)
    events.make_buffer_anew()
    send_to_all(events, 3)
    workers.run_until(lambda: is_suspended(events, "was made anew"))
    assert events.ids() == []


def test_entries_that_are_of_other_collections_do_not_wait(events: Home, workers: Workers) -> None:
    assert events.buffer.logs
    declared = events.registry.get("events")
    own = declared.model_copy(update={"source": declared.source.model_copy(update={"table": "own"})})
    events.declare_writer()
    events.registry.replace([own], seen=events.registry.read())
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "name": pa.array(["a", "b"])})
    name = BatchName("ada", Range(0, 1))
    append_rows(events.shard("gate"), name, rows, deployment=events.deployment, clock=events.clock)
    written = {f"0:{log.list_numbers()[1]}" for log in events.buffer.logs.values() if log.list_numbers()[1]}
    assert written
    workers.run_until(lambda: {*events.ledgers().values()} == written)


def test_a_worker_that_cannot_read_is_named_and_left_out(
    events: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_all(events, 1)
    hold(workers, 4)
    break_reading(workers, Unreachable("its network is gone"), monkeypatch)
    send_to_all(events, 2)
    workers.run_until(lambda: "its network is gone" in workers.object("events")["error"])
    workers.run_until(lambda: workers.object("events")["held"] == 8)
    at(events, 30)
    workers.run_until(lambda: events.ids() == list(range(8)))


def test_what_one_worker_cannot_read_yet_counts_as_waiting(
    events: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_all(events, 1)
    hold(workers, 4)
    monkeypatch.setattr("tidemark.storage.dataflows.round_board.LEFT_OUT", 1)
    break_reading(workers, InputsGone("the columns changed"), monkeypatch)
    send_to_all(events, 2)
    workers.run_until(lambda: (workers.object("events")["waiting"] or 0) > 0)
    assert not any(process.is_drained() for process in workers.running.values())


def test_an_error_of_one_share_keeps_nothing_back_that_is_due_and_is_told(
    events: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_all(events, 1)
    hold(workers, 4)
    break_reading(workers, ConfigurationInvalid("its host has no name"), monkeypatch)
    at(events, 30)
    workers.run_until(lambda: 0 < len(events.ids()) < 4)
    workers.run_until(lambda: "events" in events.deployment.objects.read())
    assert "its host has no name" in str(events.deployment.objects.read()["events"])


def test_a_collection_at_its_hard_limit_makes_room_by_itself(events: Home, workers: Workers) -> None:
    send_to_all(events, 1)
    events.ingest()
    declare(events, hard_limit=4)
    send_to_all(events, 2)
    workers.run_until(lambda: bool(workers.workers_of("events")) and "hard_limit" in workers.object("events")["error"])
    assert events.ids() == []
    at(events, 30)
    workers.run_until(lambda: events.ids() == list(range(8)), seconds=60)


def test_a_large_persist_may_start_spark(events: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def persist(*_arguments: Any, engine: Any, **_more: Any) -> Any:
        asked.append(engine.start_spark)
        raise InputsGone("a test")

    def start_spark() -> Any:
        raise NotImplementedError

    monkeypatch.setattr(ingestion, "persist", persist)
    for process in workers.running.values():
        process.around.start_spark = start_spark
    send_to_all(events, 1)
    hold(workers, 4)
    at(events, 30)
    workers.run_until(lambda: bool(asked))
    assert {*asked} == {start_spark}


def test_a_persist_that_breaks_suspends_nothing(
    events: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def persist(*_arguments: Any, **_more: Any) -> Any:
        raise OSError("Spark is gone")

    monkeypatch.setattr(ingestion, "persist", persist)
    send_to_all(events, 1)
    hold(workers, 4)
    at(events, 30)
    workers.run_until(lambda: {*events.ledgers().values()} == {"0:1"})
    workers.run_until(lambda: workers.object("events")["held"] == 0)
    assert (workers.object("events")["error"], events.deployment.objects.read()) == ("", {})
    assert events.ids() == []
