"""Run ``make demo DEMO_ARGS=--exit`` to its end, and check what it says and that it leaves nothing running.

python -m tools.check_demo  # a check of its own: it takes minutes, and needs nothing of the tests
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own

from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.supervised import SUPERVISOR

COMMAND = ("make", "demo", "DEMO_ARGS=--exit")
POLL_SECONDS = 0.2
AIRFLOW_IS_UP = "Airflow is at http://localhost:"
WORDS = (
    "~ AA: name American Airlines Inc. → American Airlines Group",
    "+ N0TIDE:",
    "336,776",
    "no other row was touched",
    "the truth is the persist",
    "The catalog holds what it held before",
    "monthly_weather started by itself; months computed: 6",
    "2013-01: 2,212 observations",
)


def airflow_sessions(pid: int) -> set[int]:
    """Return the sessions that descendants of a process lead an Airflow in: whatever it starts stays in one of them."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True) if SUPERVISOR in child.cmdline()}


def left_running(sessions: set[int]) -> list[str]:
    """Return the processes of these sessions that are still there."""
    left = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {process.cmdline()}")
        except (psutil.Error, OSError):  # it is gone meanwhile, or somebody else's
            continue
    return left


def main() -> int:
    """Run the demo, show what it says, and return 0 if all was as it must be."""
    said, sessions, ended = "", set[int](), False
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Through a file: what is left running would keep a pipe open.
    with tempfile.NamedTemporaryFile() as log, Path(log.name).open(encoding="utf-8") as output:
        demo = subprocess.Popen(COMMAND, cwd=PROJECT_ROOT, env=environment, stdout=log)
        while not ended:
            time.sleep(POLL_SECONDS)
            ended = demo.poll() is not None  # before the last look, which then sees everything
            more = output.read()
            said += more
            sys.stdout.write(more)
            sys.stdout.flush()
            if AIRFLOW_IS_UP in said and not sessions and not ended:
                sessions = airflow_sessions(demo.pid)
    wrong = [f"it did not say {words!r}" for words in WORDS if words not in said]
    wrong += [f"it left running {process}" for process in left_running(sessions)]
    wrong += [] if sessions else ["it started no Airflow"]
    wrong += [f"it ended with {demo.returncode}"] if demo.returncode else []
    for sentence in wrong:
        sys.stderr.write(f"the demo: {sentence}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
