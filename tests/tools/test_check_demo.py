"""The check of the demo finds a word that is missing, and a process that is left running."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tidemark.settings import PROJECT_ROOT
from tools import check_demo
from tools.check_demo import WORDS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # it starts processes that start processes

MAKE = """#!{python}
import os, sys, time
sys.path.insert(0, {project!r})
from tools.local_airflow.supervised import Supervised
assert sys.argv[1:] == ["demo", "DEMO_ARGS=--exit"]
airflow = Supervised(["sleep", "1000"], detached={left})
print("Airflow is at http://localhost:1", flush=True)
time.sleep(0.5)
print({words!r}, flush=True)
if not {left}:
    airflow.stop()
"""


@pytest.mark.parametrize(
    ("words", "left", "complaint"),
    [(WORDS, False, ""), (WORDS[1:], False, f"it did not say {WORDS[0]!r}"), (WORDS, True, "it left running")],
)
def test_only_a_demo_that_says_all_and_leaves_nothing_passes(  # noqa: PLR0917 -- three of them are fixtures
    words: tuple[str, ...],
    left: bool,  # noqa: FBT001 -- a parameter of the test
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = tmp_path / "make"
    make.write_text(MAKE.format(python=sys.executable, project=str(PROJECT_ROOT), words=" ".join(words), left=left))
    make.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    try:
        assert check_demo.main() == bool(complaint)
        assert complaint in capsys.readouterr().err
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if "--detached" in (process.info["cmdline"] or []) and "1000" in process.info["cmdline"]:
                process.terminate()
