"""Workers in this process, on a real catalog and a real buffer: rows come once, whoever is lost, and nothing rests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tests.support.storage_workers import Workers
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.objects.drop import DropPlan, drop, plan_drop
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import Unreachable
from tidemark.report import ErrorReport
from tidemark.storage import sharing
from tidemark.storage.dataflows import ingestion
from tidemark.storage.definitions import declaration_of
from tidemark.storage.effects import Failed
from tidemark.storage.order import Cursor
from tidemark.storage.processes.process import End, WorkerProcess
from tidemark.storage.processes.restart import restart_dataflow
from tidemark.storage.view import read_whole_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # dataflows come round once a second


@pytest.fixture
def declared(home: Settings, tmp_path: Path) -> Home:
    found = Home(home, tmp_path, now_ms=1_000_000, sequencers=4)
    found.declare_reader(source={"every": "1s"})
    for sequencer_id in range(4):
        found.send_rows(sequencer_id, 10)
    return found


@pytest.fixture
def workers(declared: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(sharing, "SILENT_MS", 2_500)
    found = Workers(declared, 2)
    yield found
    found.close()


def test_two_workers_share_out_what_came_and_publish_it_in_one_commit(declared: Home, workers: Workers) -> None:
    workers.run_until(lambda: workers.workers_of("events") == [0, 1])
    for sequencer_id in range(4):
        declared.send_rows(sequencer_id, 25)
    workers.run_until(lambda: len(declared.ids()) == 140)
    workers.run_until_drained()
    assert declared.ids() == list(range(140))
    assert declared.branches() == set()
    assert {str(ledger) for ledger in declared.ledgers().values()} == {"0:35"}
    workers.run_until(lambda: workers.object("events")["waiting"] == 0)
    assert workers.object("events")["error"] == ""
    assert workers.object("events")["upper"] == declared.upper("events")


def test_a_lost_worker_keeps_nobody_waiting_for_long(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    for lost in (1, 0):
        for sequencer_id in range(4):
            declared.send_rows(sequencer_id, 10)
        workers.lose(lost)
        expected = declared.sent
        workers.run_until(lambda expected=expected: len(declared.ids()) == expected)
        workers.begin(lost)
        workers.run_until_drained()
    assert declared.ids() == list(range(declared.sent))


def test_a_worker_that_ends_waits_for_no_part_of_one_that_is_lost(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    holder = workers.object("events")["holder"]
    process = workers.running[1 - holder]
    workers.lose(1 - holder)  # nobody has noticed that
    declared.send_rows(0, 50)
    declared.send_rows(1, 50)
    until_s = time.monotonic() + 10
    while not [place for place in process._board.read("round/")[0] if place.number > 1]:
        assert time.monotonic() < until_s
        workers.turn()
        time.sleep(0.01)
    began_s = time.monotonic()
    workers.end(holder)
    assert time.monotonic() - began_s < 20
    workers.begin(0)
    workers.begin(1)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)


def test_a_successor_takes_over_and_the_predecessor_ends(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    for index in (0, 1):
        before = workers.running[index]
        workers.begin(index)
        declared.send_rows(index, 10)
        workers.run_until(lambda: len(declared.ids()) == declared.sent)
        assert workers.is_replaced(before)
        before.end(End.HANDED_OVER)
    workers.run_until_drained()
    assert declared.ids() == list(range(declared.sent))


def test_a_predecessor_that_has_to_begin_anew_does_not_take_over_again(declared: Home, workers: Workers) -> None:
    """Its successor would end only some seconds later, which is not long enough to leave it at work by itself."""
    workers.run_until_drained()
    before = workers.running[0]
    before.seconds = 100.0
    workers.run_until(lambda: before.around.seen.board["worker/0"].value["until_ms"] is not None)
    workers.begin(0).seconds = 110.0
    workers.run_until_drained()
    before.forget_life()  # as after rows that were trimmed before it read them
    assert before.turn()[0] is End.HANDED_OVER
    before.end(End.HANDED_OVER)
    declared.send_rows(0, 10)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)


def test_a_newcomer_that_would_end_earlier_leaves_the_work_to_the_one_that_is_there(
    declared: Home, workers: Workers
) -> None:
    workers.run_until_drained()
    newcomer = WorkerProcess(declared.settings, 0, 2, declared.clock, seconds=180)
    assert newcomer.turn()[0] is End.NOT_NEEDED
    assert newcomer.explain(End.NOT_NEEDED) == "worker 0 is at work without end already"
    newcomer.end(End.NOT_NEEDED)
    declared.send_rows(0, 10)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    assert workers.workers_of("events") == [0, 1]


def test_what_is_made_altered_dropped_and_paused_is_followed(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    declared.declare_reader("others", source={"every": "1s", "table": "t"})
    workers.run_until(lambda: {each["name"] for each in workers.view()["objects"]} == {"events", "others"})
    before = _starts(workers, 1)
    fields = declared.registry.get("others").to_json()
    altered = Declaration.model_validate({**fields, "source": {**fields["source"], "every": "2s"}})
    declared.registry.replace([altered], seen=declared.registry.read())
    workers.run_until(lambda: len(_starts(workers, 1)) == 2 and _starts(workers, 1) != before)
    changed = {id_ for id_, started in _starts(workers, 1).items() if before[id_] != started}
    assert changed == {"collection-2"}, "the others run on"
    drop(declared.shards, declared.deployment, _plan_drop(declared, "others"), clock=declared.clock)
    workers.run_until(lambda: [each["name"] for each in workers.view()["objects"]] == ["events"])
    declared.declare_reader("others", source={"every": "1s", "table": "t"})
    workers.run_until(lambda: {each["name"] for each in workers.view()["objects"]} == {"events", "others"})
    declared.deployment.objects.pause(["events"], why="a test")
    workers.run_until(lambda: [each["name"] for each in workers.view()["objects"]] == ["others"])
    declared.send_rows(0, 5)
    workers.run_until_drained()
    assert len(declared.ids()) == declared.sent - 5
    declared.deployment.objects.resume(["events"])
    workers.run_until(lambda: len(declared.ids()) == declared.sent)


def test_why_an_object_does_not_start_is_shown(
    declared: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> Failed:
        return Failed("collection-2", "its ledger is damaged")

    def shown() -> str:
        objects = read_whole_view(declared.settings, clock=declared.clock)["objects"]
        return next((each["state"] for each in objects if each["name"] == "others"), "")

    workers.run_until_drained()
    life = workers.running[0]._life
    assert life is not None
    real = life.companion.read
    monkeypatch.setattr(life.companion, "read", fail)
    declared.declare_reader("others", source={"every": "1s", "table": "t"})
    workers.run_until(lambda: shown() == "not run: its ledger is damaged")
    monkeypatch.setattr(life.companion, "read", real)
    workers.run_until(lambda: shown() == "running")


@pytest.mark.parametrize("kind", ["append-only", "latest"])
def test_a_dataflow_of_what_was_dropped_writes_nothing_into_what_was_made_anew(
    declared: Home, workers: Workers, kind: str
) -> None:
    declare = declared.declare_reader if kind == "append-only" else declared.declare_latest
    declare("others", source={"every": "1s", "table": "old"})
    workers.run_until(lambda: workers.workers_of("others") == [0, 1])
    for table in ("old", "new"):
        declared.send(0, b'{"id": 1, "name": "%s"}' % table.encode(), headers=(("tidemark-table", table.encode()),))
    workers.run_until(lambda: len(declared.ids("others")) == 1)
    drop(declared.shards, declared.deployment, _plan_drop(declared, "others"), clock=declared.clock)
    declare("others", source={"every": "1s", "table": "new"})
    time.sleep(3)  # the dataflows go on, and the main loops, which would end them, stand still
    assert declared.ids("others") == []
    workers.run_until(lambda: len(declared.ids("others")) == 1)
    (row,) = declared.rows("others")
    assert row["name"] == "new"


@pytest.mark.parametrize("kind", ["append-only", "latest"])
def test_what_is_written_after_an_alteration_is_left_to_the_altered_dataflow(
    declared: Home, workers: Workers, kind: str
) -> None:
    declare = declared.declare_reader if kind == "append-only" else declared.declare_latest
    fields = declare("others", source={"every": "1s", "table": "old"}).to_json()
    workers.run_until(lambda: workers.workers_of("others") == [0, 1])
    declared.send(0, b'{"id": 0, "name": "old"}', headers=(("tidemark-table", b"old"),))
    workers.run_until(lambda: len(declared.ids("others")) == 1)
    before = declared.ledgers("others")
    altered = Declaration.model_validate({**fields, "source": {**fields["source"], "table": "new"}})
    declared.registry.replace([altered], seen=declared.registry.read())
    declared.send(0, b'{"id": 1, "name": "new"}', headers=(("tidemark-table", b"new"),))
    time.sleep(3)  # the old dataflows go on
    assert declared.ledgers("others") == before
    told = {flow.news.error for process in workers.running.values() for flow in process.dataflows.values()}
    assert any("another declaration" in error for error in told)
    workers.run_until(lambda: declared.ids("others") == [0, 1])


def test_a_restart_that_somebody_asks_for_starts_from_what_is_stored(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    started = {id_: flow.started_at for id_, flow in workers.running[1].dataflows.items()}
    restart_dataflow(declared.shards, declared.deployment, "events", who="a person", clock=declared.clock)
    workers.run_until(lambda: _starts(workers, 1) != started and bool(_starts(workers, 1)))
    declared.send_rows(2, 10)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    assert declared.ids() == list(range(declared.sent))


def test_in_read_only_mode_workers_wait_and_go_on_afterwards(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    declared.switch(Mode.READ_ONLY)
    workers.run_until(lambda: all("read-only" in each["state"] for each in workers.view()["workers"]))
    declared.send_rows(1, 10)
    assert declared.ingest().outcome == "staged"
    declared.send_rows(2, 10)
    declared.switch(Mode.READ_WRITE)
    workers.run_until(lambda: len(declared.ids()) == declared.sent - 10)  # what is staged waits for the flush
    flush_all(declared.shards, declared.deployment, [], clock=declared.clock)
    declared.send_rows(3, 10)
    workers.run_until(lambda: len(declared.ids()) >= declared.sent)
    assert declared.ids() == list(range(declared.sent))
    assert declared.branches() == set()


def test_workers_follow_the_catalog_to_another_back_end(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    for direction in (MIGRATE, ROLLBACK):
        declared.open(direction)
        declared.send_rows(0, 10)
        workers.run_until(lambda: len(declared.ids()) == declared.sent)
    assert declared.ids() == list(range(declared.sent))


def test_more_workers_than_before_come_and_stay(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    workers.count = 3
    workers.begin(2)  # before worker 0 says that there are three
    workers.run_until(lambda: workers.workers_of("events") == [0, 1, 2])
    workers.begin(0)
    workers.begin(1)
    declared.send_rows(0, 3)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    workers.run_until(lambda: workers.workers_of("events") == [0, 1, 2])
    assert (2, End.NOT_WANTED) not in workers.ended


def test_a_suspension_ends_with_the_first_round_after_it(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    known = declared.registry.objects()["events"]
    error = ErrorReport(kind="Refused", message="a test")
    declared.deployment.objects.suspend("events", known.id, error, back_off=lambda _attempts: 1)
    declared.clock.step(60_000)
    declared.send_rows(0, 3)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    workers.run_until(lambda: not declared.deployment.objects.read())


def test_a_worker_that_does_not_deliver_is_left_out_for_some_rounds_and_named(
    declared: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.run_until_drained()
    holder = workers.object("events")["holder"]
    other, real = 1 - holder, ingestion.write_part

    def write_part(run: Any, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is workers.running[other].dataflows["collection-1"]._thread:
            raise Unreachable("its disk is full")
        return real(run, *arguments, **more)

    monkeypatch.setattr(ingestion, "write_part", write_part)
    for sequencer_id in range(4):
        declared.send_rows(sequencer_id, 10)
    workers.run_until(lambda: "its disk is full" in workers.object("events")["error"])
    workers.run_until(lambda: len(declared.ids()) == declared.sent)


def test_a_dataflow_that_fails_is_started_again(
    declared: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3]

    def broken(definition: str) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError("broken on purpose")
        return declaration_of(definition)

    monkeypatch.setattr("tidemark.storage.dataflows.ingestion.declaration_of", broken)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    assert left == [0]


def test_a_sink_is_carried_by_the_worker_that_holds_it(declared: Home, workers: Workers, tmp_path: Path) -> None:
    declared.declare_sink(mode="changes", to={"path": str(tmp_path / "out")}, every="1s")
    workers.run_until(lambda: len(_carried(tmp_path / "out")) == declared.sent)
    declared.send_rows(3, 10)
    workers.run_until(lambda: len(_carried(tmp_path / "out")) == declared.sent)
    assert sorted(_carried(tmp_path / "out")) == list(range(declared.sent))


def test_fewer_workers_end_those_that_are_not_wanted(declared: Home, workers: Workers) -> None:
    workers.run_until_drained()
    workers.count = 1
    workers.begin(0)
    workers.run_until(lambda: (1, End.NOT_WANTED) in workers.ended)
    declared.send_rows(0, 3)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)


def test_nothing_is_drained_while_a_sink_lacks_what_workers_made_visible(
    declared: Home, workers: Workers, tmp_path: Path
) -> None:
    declared.declare_sink(mode="changes", to={"path": str(tmp_path / "out")}, every="8s")
    workers.run_until(lambda: len(_carried(tmp_path / "out")) == declared.sent)
    workers.run_until_drained()
    declared.send_rows(3, 10)
    workers.run_until(lambda: workers.object("events")["rows"] == declared.sent)
    workers.turn()  # so that worker 0 has read that, too
    workers.run_until_drained()
    assert len(_carried(tmp_path / "out")) == declared.sent


def test_a_life_that_could_not_read_the_log_is_begun_anew(
    declared: Home, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.run_until_drained()
    process, real = workers.begin(1), Cursor.read

    def fail(*_arguments: Any) -> Any:
        raise Unreachable("the store is away")

    monkeypatch.setattr(Cursor, "read", fail)
    process.turn()
    monkeypatch.setattr(Cursor, "read", real)
    assert process._life is None
    declared.send_rows(0, 10)
    workers.run_until(lambda: len(declared.ids()) == declared.sent)
    workers.run_until(lambda: workers.workers_of("events") == [0, 1])


def _plan_drop(declared: Home, name: str) -> list[DropPlan]:
    return plan_drop(declared.shards, declared.deployment, [name], clock=declared.clock)


def _starts(workers: Workers, index: int) -> dict[str, int]:
    return {id_: flow.started_at for id_, flow in workers.running[index].dataflows.items()}


def _carried(folder: Path) -> list[int]:
    """Return the ids that a sink has carried."""
    if not (folder / "_tidemark" / "manifest.json").exists():
        return []
    return sorted(row["id"] for row in arrow_rows(files_of(folder, read_manifest(folder))))
