"""The demo, interrupted: nothing is left running. To its end it is run by `make check-demo`."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import httpx
import pytest

from tidemark.settings import PROJECT_ROOT
from tools.check_demo import AIRFLOW_IS_UP, airflow_sessions, left_running
from tools.local_airflow.standalone import COMPONENTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.live, pytest.mark.spark]
SQLITE_GIVES_UP_SECONDS = 5  # unless told otherwise


def test_interrupted_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", "--folder", str(tmp_path / "demo")],
        cwd=PROJECT_ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "SPARK_"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = next((line for line in demo.stdout or () if AIRFLOW_IS_UP in line), None)
        assert said, "it ended before Airflow was there"
        sessions = airflow_sessions(demo.pid)
        assert sessions
        with closing(sqlite3.connect(tmp_path / "demo" / "airflow" / "airflow.db", isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            time.sleep(SQLITE_GIVES_UP_SECONDS + 2)
            database.execute("COMMIT")
        log = (tmp_path / "demo" / "airflow" / "standalone.log").read_text(encoding="utf-8", errors="replace")
        assert "database is locked" not in log, "which ends components"
        health = httpx.get(f"{said.split()[-1].partition('/dags/')[0]}/api/v2/monitor/health", timeout=30.0).json()
        assert {name: health[name]["status"] for name in COMPONENTS} == dict.fromkeys(COMPONENTS, "healthy")
        demo.send_signal(signal.SIGTERM)  # which it makes the same interrupt of as Ctrl-C
        rest, _ = demo.communicate(timeout=120)
        assert "Stopped." in rest
        assert left_running(sessions) == []
    finally:
        demo.kill()
