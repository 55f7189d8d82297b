"""Starts workers as processes of their own, and starts one that dies again.

A worker that comes to its end by itself is not started again. One that was at work when it died is started at once, and
one that dies before it comes to work after a pause; after the fifth time in a row it is given up: the others go on, and
the result tells. One that dies when a successor has taken over is not started again, which would take the work back.
One that is not at its end two minutes after its time is killed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.errors import Unreachable
from tidemark.exit_codes import PASSING, ExitCode, most_severe
from tidemark.iceberg.leases.holding import writer_id
from tidemark.retry import back_off_s
from tidemark.settings import Settings
from tidemark.storage.board import look_once
from tidemark.storage.sharing import find_live, place_of

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
MOST_DEATHS: Final = 5  # in a row, of which each came before the worker was at work
LATE_S: Final = 120.0  # after its time; a worker ends within 75 s, with the steps in hand


@dataclass(slots=True)
class _Child:
    index: int
    process: subprocess.Popen[bytes]
    deaths: int = 0  # in a row, before it was at work
    again_s: float | None = None  # when to start it again; None: it runs, or has ended for good
    code: int | None = None  # how the worker ended for good


@dataclass(slots=True)
class Supervision:
    """Some of the workers: ``begin``, then ``look`` again and again, then ``end``."""

    settings: Settings
    indexes: Sequence[int]
    workers: int  # in all
    seconds: float | None = None  # for which they work, from their first start; None: without end
    arguments: Sequence[str] = ()  # of each worker, besides those that name it
    environment: Mapping[str, str] | None = None  # None: that of this process
    in_own_session: bool = False  # whether signals to this process's group pass the workers by
    _children: list[_Child] = field(default_factory=list)
    _began_s: float = 0.0

    def begin(self) -> None:
        """Start the workers."""
        self._began_s = time.monotonic()
        for index in self.indexes:
            self._children.append(_Child(index, self._spawn(index)))

    def look(self) -> bool:
        """Start again what died; return whether a worker still runs."""
        for child in self._children:
            if child.again_s is not None:
                if time.monotonic() >= child.again_s:
                    child.process, child.again_s = self._spawn(child.index), None
            elif child.code is None and (code := child.process.poll()) is not None:
                self._bury(child, code)
            elif child.code is None and self._is_late():
                log.error("storage worker %s does not end, though its time is over: it is killed", child.index)
                child.process.kill()
                child.process.wait()
                child.code = ExitCode.OK  # what was in hand comes again, to the workers of the next run
        return any(child.code is None for child in self._children)

    def end(self, *, grace_s: float = 75.0) -> ExitCode:
        """Ask the workers that still run to end, and kill those that do not; return the most severe exit code."""
        for child in self._children:
            child.again_s = None
            if child.process.poll() is None:
                child.process.terminate()
        until_s = time.monotonic() + grace_s
        for child in self._children:
            try:
                child.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("storage worker %s does not end, and is killed", child.index)
                child.process.kill()
                child.process.wait()
            child.code = child.process.returncode if child.code is None else child.code
        return most_severe(_exit_code(child.code) for child in self._children)

    def _spawn(self, index: int) -> subprocess.Popen[bytes]:
        named = ["--worker", str(index), "--workers", str(self.workers), "--parent", str(os.getpid())]
        if self.seconds is not None:  # one that is started again has what is left
            named += ["--for", f"{max(1, round(self.seconds - self._age_s()))}s"]
        return subprocess.Popen(
            [sys.executable, "-m", "tidemark", "storage", "run", *named, *self.arguments],
            env=None if self.environment is None else dict(self.environment),
            start_new_session=self.in_own_session,
        )

    def _bury(self, child: _Child, code: int) -> None:
        is_away = code in PASSING  # stores that come back, however late
        if code in set(ExitCode) and code != ExitCode.BUG and not is_away:  # its own word
            child.code = code
            return
        was_at_work, is_replaced = self._look_at(child)
        if is_replaced:
            log.warning("storage worker %s died (%s), and a successor has taken over", child.index, code)
            child.code = ExitCode.OK
            return
        child.deaths = 0 if was_at_work else child.deaths + 1
        if child.deaths >= MOST_DEATHS and not is_away:
            log.error("storage worker %s died %s times before it was at work: given up", child.index, child.deaths)
            child.code = code
            return
        pause_s = back_off_s(child.deaths, longest_s=LONGEST_PAUSE_S) if child.deaths else 0.0
        log.warning("storage worker %s died (%s), and is started again in %.0f s", child.index, code, pause_s)
        child.again_s = time.monotonic() + pause_s

    def _look_at(self, child: _Child) -> tuple[bool, bool]:
        """Tell whether the board has a word of the process, and whether one that began later is at work instead."""
        place = place_of(child.index)
        try:
            entries, now_ms = look_once(self.settings, place)
        except Unreachable:
            return False, False
        wrote = f"{writer_id().rpartition(':')[0]}:{child.process.pid}"
        if any(entry.place == place and entry.value["writer"] == wrote for entry in entries):
            return True, False
        live = find_live(entries, now_ms=now_ms).get(child.index)
        return False, live is not None and live.value["began_ms"] > now_ms - self._age_s() * 1000

    def _age_s(self) -> float:
        return time.monotonic() - self._began_s

    def _is_late(self) -> bool:
        return self.seconds is not None and self._age_s() > self.seconds + LATE_S


def _exit_code(code: int | None) -> ExitCode:
    """Return the exit code of a worker; one that a signal ended may be tried again."""
    return ExitCode(code) if code is not None and code in set(ExitCode) else ExitCode.TRANSIENT
