from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

# A command with a grandchild that leaves the group and loses its parent.
WITH_ORPHAN = """
import os, pathlib, subprocess, sys, time
orphan = "import os, sys, time; os.setpgid(0, 0); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
starter = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])"
subprocess.run([sys.executable, "-c", starter, orphan, sys.argv[1] + "/orphan"])
pathlib.Path(sys.argv[1], "command").write_text(str(os.getpid()))
time.sleep(600)
"""


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path.name} never started"
        time.sleep(0.02)
    return int(path.read_text())


def wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, "something survived"
        time.sleep(0.05)


def test_nothing_survives_a_stop(tmp_path: Path) -> None:
    supervised = Supervised([sys.executable, "-c", WITH_ORPHAN, str(tmp_path)], cwd=PROJECT_ROOT)
    pids = wait_for(tmp_path / "command"), wait_for(tmp_path / "orphan")
    supervised.stop()
    wait_gone(*pids)


def test_nothing_survives_the_death_of_the_starter(tmp_path: Path) -> None:
    starter = (
        "import sys, time; from tools.local_airflow.supervised import Supervised;"
        f"Supervised([sys.executable, '-c', {WITH_ORPHAN!r}, {str(tmp_path)!r}]); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=PROJECT_ROOT)
    pids = wait_for(tmp_path / "command"), wait_for(tmp_path / "orphan")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_gone(*pids)
