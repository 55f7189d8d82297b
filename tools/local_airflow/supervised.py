"""Run a command so that nothing it started outlives it, whoever dies first.

    python tools/local_airflow/supervised.py [--detached] COMMAND…

Airflow puts every task into a process group of its own, and a Spark driver whose task was killed is adopted by init:
neither a group nor a parent finds them all (nor a mark in the environment: Airflow overwrites that with process
titles). What they all keep is the session, so the supervisor leads one, and at the end kills whatever is in it. The end
is: the command ended, a signal came, or, unless detached, standard input was closed, which is what happens when the
process that started us dies, however it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own

from tidemark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_SECONDS = 10.0
SUPERVISOR = str(Path(__file__).resolve())  # run as a file: a process elsewhere cannot import `tools`


class Supervised:
    """A command under a supervisor process of its own; stops with this object, or when this process dies."""

    def __init__(self, command: Sequence[str], *, detached: bool = False, **options: Any) -> None:
        flags = ["--detached"] if detached else []
        self.process = subprocess.Popen(
            [sys.executable, "-P", SUPERVISOR, *flags, *command],
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C meant for us must not reach it half-way through its own clean-up
            **options,
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Stop the command and everything it started; returns when all of it is gone."""
        if self.process.stdin:
            self.process.stdin.close()
        else:
            self.process.terminate()
        self.process.wait(timeout=3 * GRACE_SECONDS)


def kill_session() -> None:
    """Kill every other process of this session, until none is left."""
    while others := [process for process in psutil.process_iter() if _is_ours(process)]:
        for process in others:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(others, timeout=1)


def _is_ours(process: psutil.Process) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) == os.getsid(0)
    except (psutil.Error, OSError):  # gone meanwhile, or somebody else's
        return False


def supervise(command: Sequence[str], *, detached: bool) -> int:
    """Run ``command`` to its end, or until told to stop; then make sure that nothing of it is left."""
    if os.getsid(0) != os.getpid():
        raise UsageError("the supervisor must lead a session of its own: start it with `Supervised`")
    ended = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: ended.set())
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch_command() -> None:
        process.wait()
        ended.set()

    def watch_parent() -> None:
        while os.read(0, 4096):
            pass
        ended.set()

    for watch in (watch_command,) if detached else (watch_command, watch_parent):
        threading.Thread(target=watch, daemon=True).start()
    ended.wait()
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # `airflow standalone` stops its children on this signal only
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    kill_session()
    return process.wait()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    detached = arguments[:1] == ["--detached"]
    sys.exit(supervise(arguments[1:] if detached else arguments, detached=detached))
