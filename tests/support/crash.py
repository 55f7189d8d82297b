"""Processes that die at a fail point.

``die_at`` forks from a process that has imported everything and done nothing: the fork inherits no thread, no
connection and no cache, and starts in no time, where a new Python imports for a second. ``run_command`` is the command
line in such a fork, and ``run_real_command`` is `python -m tidemark` itself: one death of each command is a real one
(``real_first``). ``die_in_fork`` forks from the test, for the JVM that a Spark driver shares with it.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from tidemark import fail_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.process import BaseProcess

    from tidemark.settings import Settings

_ENDS_WITHIN_S = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pytest.__main__",  # what every child imports as its main module
        "tests.support.homes",
        "tests.support.statuses",
        "tidemark.cli.app",
        "tidemark.collections.maintenance.maintain",
        "tidemark.ingest.run",
    ]
)


def die_at(point: str, function: Callable[..., object], *arguments: Any) -> int:
    """Run a function of a module in a process that dies at ``point``; "" is nowhere.

    Returns:
        The exit code: ``FAIL_POINT_EXIT``, 0 if the function returned, 1 if it raised, what it gave to ``sys.exit``.
    """
    return start(point, function, *arguments).exit_code()


class Started:
    """A process that runs beside the test."""

    def __init__(self, process: BaseProcess, said: IO[str]) -> None:
        self._process, self._said = process, said

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Stop the process, let it go on, or kill it; nothing happens to one that is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def exit_code(self) -> int:
        """Wait for the end, and pass on what the process said, so that a failing test shows it."""
        self._process.join(_ENDS_WITHIN_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        with self._said as said:
            sys.stderr.write(said.read())
        assert self._process.exitcode is not None
        return self._process.exitcode


def start(point: str, function: Callable[..., object], *arguments: Any) -> Started:
    """Start a function of a module in a process that dies at ``point``."""
    said = tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed at its end
    environ = {**os.environ, "TIDEMARK_FAIL_POINT": point}
    process = _CONTEXT.Process(target=_run, args=(environ, said.name, function, arguments))
    process.start()
    return Started(process, said)


def _run(environ: dict[str, str], output: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    descriptor = os.open(output, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()  # the environment of the process that forked is that of the first test which asked it to
    os.environ |= environ
    function(*arguments)


def start_command(settings: Settings, *arguments: str, point: str = "") -> Started:
    """Start `tidemark ARGUMENTS` in a fork."""
    return start(point, _command_line, _command_environ(settings, point), arguments)


def run_command(settings: Settings, *arguments: str, point: str = "") -> int:
    """Run `tidemark ARGUMENTS` in a fork, and return its exit code."""
    return start_command(settings, *arguments, point=point).exit_code()


def run_real_command(settings: Settings, *arguments: str, point: str = "") -> int:
    """Run `python -m tidemark ARGUMENTS`, and return its exit code."""
    command = [sys.executable, "-m", "tidemark", *arguments]
    environ = _command_environ(settings, point)
    return subprocess.run(command, env=environ, check=False, timeout=_ENDS_WITHIN_S).returncode


def real_first(points: Iterable[str]) -> list[tuple[str, Callable[..., int]]]:
    """Return each point with the function that runs the command which dies there: a real one at the first point."""
    return [(point, run_command if place else run_real_command) for place, point in enumerate(points)]


def _command_environ(settings: Settings, point: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "TIDEMARK_HOME": str(settings.home),
        "TIDEMARK_GENERATION": str(settings.generation),
        "TIDEMARK_FAIL_POINT": point,
    }


def _command_line(environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    from tidemark.cli.app import app

    os.environ.clear()
    os.environ |= environ
    sys.exit(app(list(arguments)))


def die_in_fork(point: str, run: Callable[[], object]) -> int:
    """Run ``run`` in a fork of this process that dies at ``point``, and return how the fork ended.

    Spark has nothing under way between two steps of a driver, so that a driver's death is all that there is to see.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        os.environ["TIDEMARK_FAIL_POINT"] = point
        fail_points._reached.clear()  # tests in this process may have passed the point before
        run()
        code = 0
    except BaseException:  # noqa: BLE001 -- nothing may come back into pytest, which the fork is a copy of
        traceback.print_exc()
    finally:
        os._exit(code)
