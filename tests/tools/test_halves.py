"""Two halves of the tests beside each other: the verdict is that of the worse one, whatever becomes of the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # real processes

# In the place of pytest: each half prints a word, and does what its file says.
FAKE = """
import os, pathlib, sys, time
folder = pathlib.Path(__file__).parents[1]
half = "others" if any(argument.startswith("--ignore=") for argument in sys.argv) else "folders"
print(f"{half} ran", flush=True)
(folder / f"{half}.began").touch()
exec((folder / f"{half}.py").read_text())
"""


def start(place: Path, *, others: str, folders: str) -> subprocess.Popen[str]:
    (place / "pytest").mkdir()
    (place / "pytest" / "__init__.py").touch()
    (place / "pytest" / "__main__.py").write_text(FAKE)
    (place / "others.py").write_text(others)
    (place / "folders.py").write_text(folders)
    return subprocess.Popen(
        [sys.executable, "-m", "tools.halves", "tests/a"],
        cwd=PROJECT_ROOT,
        env={"PYTHONPATH": f"{place}:{PROJECT_ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background has told them, and so their children, to ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- no thread holds a lock
    )


KILLED = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("others", "folders", "code"),
    [("", "", 0), ("sys.exit(1)", "", 1), ("", "sys.exit(1)", 1), (KILLED, "", 9), ("", KILLED, 9)],
)
def test_the_worse_half_decides(tmp_path: Path, others: str, folders: str, code: int) -> None:
    halves = start(tmp_path, others=others, folders=folders)
    said, _ = halves.communicate(timeout=60)
    assert halves.returncode == code
    assert "others ran" in said
    assert "folders ran" in said


def test_an_interruption_ends_both(tmp_path: Path) -> None:
    waits = "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(2)"
    halves = start(tmp_path, others=waits, folders=waits)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*.began"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(halves.pid, signal.SIGINT)  # as a terminal does
    halves.communicate(timeout=30)
    assert halves.returncode == 2
