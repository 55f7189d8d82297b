"""Workers that die at each fail point, as processes: whoever comes next ends with every row once."""

from __future__ import annotations

import signal
import time
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import send
from tests.ingest.persist.test_persist import persist
from tests.support.crash import start
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.settings import Settings
from tidemark.storage.dataflows import ingestion
from tidemark.storage.processes import process
from tidemark.storage.processes.process import End, Until, run_worker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.slow]

LONGEST_S = 60.0
OF_A_SHARE = {"round.written"}  # reached by the worker that does not lead


@pytest.fixture
def declared(home: Settings, tmp_path: Path) -> Home:
    found = Home(home, tmp_path, sequencers=4)
    found.clock = SystemClock()  # type: ignore[assignment]  # other processes have this one
    found.declare_reader(source={"every": "1s"})
    for sequencer_id in range(4):
        found.send_rows(sequencer_id, 10)
        found.send(sequencer_id, b"no row")
    return found


def work(home: str, index: int, workers: int) -> None:
    """Be one worker until nothing is left to do."""
    run_worker(
        Settings.load({"TIDEMARK_HOME": home}),
        index=index,
        workers=workers,
        until=Until(seconds=LONGEST_S, drained=True),
        stop=Event(),
        clock=SystemClock(),
    )


@pytest.mark.parametrize("point", [*process.FAIL_POINTS, *(set(ingestion.FAIL_POINTS) - OF_A_SHARE)])
def test_a_worker_that_dies_alone_loses_and_repeats_nothing(declared: Home, point: str) -> None:
    home = str(declared.settings.home)
    assert start(point, work, home, 0, 1).exit_code() == FAIL_POINT_EXIT
    declared.send_rows(0, 5)
    assert start("", work, home, 0, 1).exit_code() == 0
    check(declared)


@pytest.mark.parametrize("point", ["round.written", "round.shared", "round.before-append", "worker.told:40"])
def test_of_two_workers_one_dies_and_both_go_on(declared: Home, point: str) -> None:
    home = str(declared.settings.home)
    both = [start(point, work, home, index, 2) for index in range(2)]
    until_s = time.monotonic() + LONGEST_S
    while all(each.is_running for each in both) and time.monotonic() < until_s:
        for sequencer_id in range(4):
            declared.send_rows(sequencer_id, 5)
        time.sleep(0.2)
    for each in both:
        each.signal(signal.SIGKILL)
    assert FAIL_POINT_EXIT in {each.exit_code() for each in both}
    both = [start("", work, home, index, 2) for index in range(2)]
    assert [each.exit_code() for each in both] == [0, 0]
    check(declared)


@pytest.mark.parametrize(
    "point", ["round.shared:3", "round.written", "round.before-append", "round.appended", "persist.after-begin"]
)
def test_of_two_that_hold_rows_one_dies_and_what_it_held_is_read_again(
    home: Settings, tmp_path: Path, point: str
) -> None:
    events = Home(home, tmp_path, sequencers=4)
    events.clock = SystemClock()  # type: ignore[assignment]  # other processes have this one
    rules = {"late_arrive_window": "1s", "persist_age": "2s", "visible": "when-persisted", "chunks": "memory"}
    columns = {"schema": "id bigint, at timestamp", "event_time": "at", "partition": "hour"}
    events.declare_reader(source={"every": "1s"}, lifecycle=rules, **columns)
    both = [start(point, work, str(home.home), index, 2) for index in range(2)]
    until_s = time.monotonic() + LONGEST_S
    while all(each.is_running for each in both) and time.monotonic() < until_s:
        for sequencer_id in range(4):
            send(events, sequencer_id, 1, 2)
        time.sleep(0.2)
    for each in both:
        each.signal(signal.SIGKILL)
    assert FAIL_POINT_EXIT in {each.exit_code() for each in both}
    both = [start("", work, str(home.home), index, 2) for index in range(2)]
    assert [each.exit_code() for each in both] == [0, 0]
    persist(events, now=True)
    assert events.ids() == list(range(events.sent))
    assert events.branches() == set()


def check(declared: Home) -> None:
    assert declared.ids() == list(range(declared.sent))
    assert len(declared.bad()) == 4
    assert declared.branches() == set()


def test_a_worker_tells_why_it_ended(declared: Home) -> None:
    def run(until: Until, *, stop: bool = False) -> str:
        asked = Event()
        if stop:
            asked.set()
        return run_worker(declared.settings, index=0, workers=1, until=until, stop=asked, clock=SystemClock())

    assert run(Until(seconds=0.1)) == End.TIME
    assert run(Until(), stop=True) == End.STOPPED
    assert run(Until(seconds=LONGEST_S, drained=True)) == End.DRAINED
    declared.deployment.objects.pause(["events"], why="a check")
    assert "events was left aside: it is paused since" in run(Until(seconds=LONGEST_S, drained=True))
    assert (
        run_worker(declared.settings, index=0, workers=1, until=Until(), stop=Event(), clock=SystemClock(), parent=1)
        == End.STOPPED
    ), "whoever has started it is gone"
