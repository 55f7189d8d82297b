"""Storage workers in the process of a test: their main loops take turns, their dataflows are threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tidemark.storage.processes.process import End, WorkerProcess
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home


class Workers:
    """The workers of one home; one that is ``lost`` takes no turn any more, and nobody is told."""

    def __init__(self, home: Home, count: int) -> None:
        self.home, self.count = home, count
        self.running: dict[int, WorkerProcess] = {}
        self.lost: list[WorkerProcess] = []
        self.ended: list[tuple[int, End]] = []
        for index in range(count):
            self.begin(index)

    def begin(self, index: int) -> WorkerProcess:
        """Start a worker; if one of that index runs, it is left to find out by itself."""
        if index in self.running:
            self.lost.append(self.running[index])
        self.running[index] = WorkerProcess(self.home.settings, index, self.count, self.home.clock)
        return self.running[index]

    def lose(self, index: int) -> None:
        """Let a worker go without a word: it neither turns nor takes a step any more."""
        process = self.running.pop(index)
        for dataflow in process.dataflows.values():
            dataflow.stop()
        self.lost.append(process)

    def turn(self) -> None:
        for index, process in list(self.running.items()):
            why, _ = process.turn()
            if why is not None:
                self.end(index, why)

    def run_until(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
        until_s = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until_s, self.view()
            self.turn()
            time.sleep(0.01)

    def run_until_drained(self) -> None:
        self.run_until(lambda: all(process.is_drained() for process in self.running.values()))

    def end(self, index: int, why: End = End.STOPPED) -> None:
        self.running.pop(index).end(why)
        self.ended.append((index, why))

    def is_replaced(self, process: WorkerProcess) -> bool:
        return process.turn()[0] is End.HANDED_OVER

    def close(self) -> None:
        for index in list(self.running):
            self.end(index)
        for process in self.lost:
            for dataflow in process.dataflows.values():
                dataflow.stop()

    def view(self) -> dict[str, Any]:
        return read_view(self.home.settings)

    def workers_of(self, name: str) -> list[int]:
        """Return the workers that run an object; none while it is started anew."""
        return next((each["workers"] for each in self.view()["objects"] if each["name"] == name), [])

    def object(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.view()["objects"] if each["name"] == name]
        return found
