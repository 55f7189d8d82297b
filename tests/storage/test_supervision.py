"""Supervision of workers: one that dies is started again; one that ends by its own word, or never works, is not."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tidemark.exit_codes import ExitCode
from tidemark.iceberg.leases.holding import writer_id
from tidemark.storage.board import Board
from tidemark.storage.processes import supervision
from tidemark.storage.processes.supervision import LATE_S, MOST_DEATHS, Supervision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.settings import Settings

_WORKER = """#!/bin/sh
echo "$$ $*" >> {folder}/started
. {folder}/behaviour
"""


class Started:
    """What was started as workers: a small program that notes its arguments, and behaves as the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "worker"
        self.program.write_text(_WORKER.format(folder=folder))
        self.program.chmod(0o755)

    def behave(self, how: str) -> None:
        (self.folder / "behaviour").write_text(how)

    @property
    def calls(self) -> list[list[str]]:
        """The number of each process, and its arguments."""
        noted = self.folder / "started"
        return [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    folder = tmp_path / "programs"
    folder.mkdir()
    found = Started(folder)
    monkeypatch.setattr(sys, "executable", str(found.program))
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 0.01)
    return found


def look_until(supervised: Supervision, condition: Callable[[], bool]) -> bool:
    """Look again and again; return whether a worker still runs."""
    until_s = time.monotonic() + 10
    while True:
        runs = supervised.look()
        if condition():
            return runs
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_worker_that_ends_by_its_own_word_is_not_started_again(home: Settings, started: Started) -> None:
    started.behave(f"exit {ExitCode.OK.value}")
    supervised = Supervision(home, [1], 3, 300.0, ["--until-drained"])
    supervised.begin()
    look_until(supervised, lambda: not supervised.look())
    assert supervised.end() is ExitCode.OK
    ((_, *arguments),) = started.calls
    assert " ".join(arguments).startswith("-m tidemark storage run --worker 1 --workers 3 --parent ")
    assert arguments[-3:] == ["--for", "300s", "--until-drained"]


def test_a_worker_that_is_started_again_has_the_time_that_is_left(home: Settings, started: Started) -> None:
    started.behave("exec sleep 60")
    supervised = Supervision(home, [0], 1, 300.0)
    supervised.begin()
    look_until(supervised, lambda: len(started.calls) == 1)
    supervised._began_s -= 200.0
    supervised._children[0].process.kill()
    look_until(supervised, lambda: len(started.calls) == 2)
    assert [call[-1] for call in started.calls] == ["300s", "100s"]
    supervised.end()


def test_a_pause_after_a_thousand_deaths_is_no_longer_than_others(home: Settings, started: Started) -> None:
    started.behave(f"exit {ExitCode.TRANSIENT.value}")
    supervised = Supervision(home, [0], 1)
    supervised.begin()
    supervised._children[0].deaths = 5_000
    assert look_until(supervised, lambda: len(started.calls) > 1)
    supervised.end()


def test_a_worker_that_never_comes_to_work_is_given_up_and_the_others_go_on(home: Settings, started: Started) -> None:
    started.behave(f'case "$*" in *"--worker 0"*) exit {ExitCode.BUG.value};; esac; exec sleep 60')
    supervised = Supervision(home, [0, 1], 2)
    supervised.begin()
    first = [f"--worker {index}" for index in range(2)]
    assert look_until(supervised, lambda: len(started.calls) == MOST_DEATHS + 1 and supervised.look())
    for _ in range(20):
        assert supervised.look()
        time.sleep(0.01)
    calls = [" ".join(call) for call in started.calls]
    assert [sum(worker in call for call in calls) for worker in first] == [MOST_DEATHS, 1]
    assert supervised.end() is ExitCode.BUG


def test_stores_that_are_away_are_waited_for(home: Settings, started: Started) -> None:
    started.behave(f"exit {ExitCode.TRANSIENT.value}")
    supervised = Supervision(home, [0], 1)
    supervised.begin()
    assert look_until(supervised, lambda: len(started.calls) > 2 * MOST_DEATHS)
    started.behave(f"exit {ExitCode.OK.value}")
    look_until(supervised, lambda: not supervised.look())
    assert supervised.end() is ExitCode.OK


def test_a_death_at_work_begins_the_count_anew(home: Settings, started: Started) -> None:
    started.behave("exec sleep 60")
    supervised = Supervision(home, [0], 1)
    supervised.begin()
    for count in range(1, MOST_DEATHS + 2):
        look_until(supervised, lambda count=count: len(started.calls) == count)  # type: ignore[misc]
        process = started.calls[-1][0]
        with closing(Board(home)) as board:
            board.put("worker/0", {"writer": f"{writer_id().rpartition(':')[0]}:{process}"}, life=count)
        supervised._children[0].process.kill()  # as a machine that runs out of memory does
    assert look_until(supervised, lambda: len(started.calls) == MOST_DEATHS + 2)
    supervised.end()


@pytest.mark.parametrize(("began_ms", "calls"), [(1_000, 1), (-1_000, 2)])
def test_a_worker_that_dies_when_a_successor_is_at_work_does_not_take_over_again(
    home: Settings, started: Started, began_ms: int, calls: int
) -> None:
    """``began_ms`` is when the other one began, after this supervision did; one that began before is replaced."""
    started.behave("exec sleep 60")
    supervised = Supervision(home, [0], 1, 300.0)
    with closing(Board(home)) as board:
        board.put("worker/1", {"writer": "any"})
        _, now_ms = board.read()
        supervised.begin()
        supervised._began_s -= 10.0
        value = {"writer": "another", "began_ms": now_ms - 10_000 + began_ms, "ended": ""}
        board.put("worker/0", value, life=2)
    supervised._children[0].process.kill()
    runs = look_until(supervised, lambda: supervised._children[0].code is not None or len(started.calls) == 2)
    assert (runs, len(started.calls)) == (calls == 2, calls)
    assert supervised.end() is (ExitCode.OK if calls == 1 else ExitCode.TRANSIENT)


def test_a_worker_that_does_not_end_long_after_its_time_is_killed(home: Settings, started: Started) -> None:
    started.behave("trap '' TERM; while true; do sleep 1; done")
    supervised = Supervision(home, [0], 1, 300.0)
    supervised.begin()
    look_until(supervised, lambda: len(started.calls) == 1)
    supervised._began_s -= 300.0 + LATE_S - 5.0
    assert supervised.look()
    supervised._began_s -= 6.0
    assert not supervised.look()
    assert supervised.end() is ExitCode.OK
