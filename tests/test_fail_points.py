from __future__ import annotations

import subprocess
import sys

import pytest

from tidemark.fail_points import FAIL_POINT_EXIT, fail_point
from tidemark.settings import PROJECT_ROOT

SCRIPT = """
from tidemark.fail_points import fail_point
try:
    for step in range(3):
        print(step, flush=True)
        fail_point("publish.before-commit")
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize(
    ("wanted", "exit_code", "printed"),
    [
        ("publish.before-commit", FAIL_POINT_EXIT, ["0"]),
        ("publish.before-commit:3", FAIL_POINT_EXIT, ["0", "1", "2"]),
        ("publish.before-commit:4", 0, ["0", "1", "2", "cleaned up"]),
        ("another.point", 0, ["0", "1", "2", "cleaned up"]),
        ("", 0, ["0", "1", "2", "cleaned up"]),
    ],
)
def test_a_process_dies_at_the_named_point_without_clean_up(wanted: str, exit_code: int, printed: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT]
    environ = {"TIDEMARK_FAIL_POINT": wanted, "PYTHONPATH": str(PROJECT_ROOT / "include")}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split("\n")[:-1]) == (exit_code, printed)


def test_without_the_variable_nothing_happens() -> None:
    fail_point("publish.before-commit")
