"""The demo as a person runs it, to its end and interrupted; nothing is left running after either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.supervised import SUPERVISOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.live, pytest.mark.spark]
SECONDS = 1_800.0  # far more than it takes, whatever runs beside


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "SPARK_"))}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", "--folder", str(folder), *arguments],
        cwd=PROJECT_ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def airflow_sessions(demo: subprocess.Popen[str]) -> set[int]:
    """The sessions that the demo leads its Airflow in: whatever it starts stays in one of them."""
    children = psutil.Process(demo.pid).children()
    return {child.pid for child in children if SUPERVISOR in child.cmdline()}


def left_running(sessions: set[int]) -> list[str]:
    left = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {process.cmdline()}")
        except (psutil.Error, OSError):
            continue
    return left


def read_until(demo: subprocess.Popen[str], words: str, lines: list[str]) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if words in line:
            return
    pytest.fail(f"ended before it said {words!r}:\n{''.join(lines)}")


def test_it_corrects_exactly_the_edited_rows_and_ends_by_itself(tmp_path: Path) -> None:
    lines = list[str]()
    demo = start_demo(tmp_path / "demo", "--exit")
    read_until(demo, "Airflow is at http://localhost:", lines)
    sessions = airflow_sessions(demo)
    assert sessions
    rest, _ = demo.communicate(timeout=SECONDS)
    said = "".join([*lines, rest])
    assert demo.returncode == 0, said
    for row in ("~ AA: name American Airlines Inc. → American Airlines Group", "+ N0TIDE:", "336,776"):
        assert row in said
    assert "no other row was touched" in said
    assert "the truth is the persist" in said
    assert "The catalog holds what it held before" in said
    assert left_running(sessions) == []


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_middle_it_leaves_nothing(tmp_path: Path, signal_number: signal.Signals) -> None:
    lines = list[str]()
    # A shell starts background jobs with SIGINT ignored, and so would be the demo of such tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    demo = start_demo(tmp_path / "demo")
    read_until(demo, "Airflow is at http://localhost:", lines)
    sessions = airflow_sessions(demo)
    demo.send_signal(signal_number)
    rest, _ = demo.communicate(timeout=120)
    assert "Stopped." in rest
    assert left_running(sessions) == []
