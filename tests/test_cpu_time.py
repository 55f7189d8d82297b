"""The measure of CPU seconds: what it counts, and what it fails."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import cpu_time
from tests.support.cpu_time import CpuTime, cpu_seconds, folder_of
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"


def test_the_folder_of_a_test_is_at_most_two_levels_deep() -> None:
    assert folder_of("tests/catalog/stash/deep/test_a.py::test_b[a/b::c]") == "tests/catalog/stash"
    assert folder_of("tests/test_a.py::test_b") == "tests"


@pytest.mark.slow
def test_processes_count_while_they_live_and_once_they_are_dead() -> None:
    before = cpu_seconds()
    command = [sys.executable, "-c", f"{BURN}print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        alive = cpu_seconds() - before
    dead = cpu_seconds() - before
    assert 0.35 < alive <= dead < 5


def test_a_process_that_ends_while_it_is_measured_counts_nothing() -> None:
    gone = str(2**31 - 1)  # no system gives this number
    assert list(cpu_time._living_below(gone)) == []
    assert cpu_time._ticks(gone) == 0


def test_a_full_garbage_collection_is_not_the_fault_of_the_test() -> None:
    measured = CpuTime()
    gc.callbacks.append(measured._see_garbage_collection)
    try:
        gc.collect(1)
        assert measured._collected_s == 0
        gc.collect()
        assert measured._collected_s > 0
    finally:
        gc.callbacks.remove(measured._see_garbage_collection)


def test_a_folder_above_its_budget_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    class Session:
        exitstatus: int = pytest.ExitCode.OK
        config = request.config

    measured, session = CpuTime(), Session()
    measured._slowness = 1.0
    monkeypatch.setattr(cpu_time, "BUDGETS_S", {"tests/a": 2, "tests/b": 2})
    monkeypatch.setattr(request.config.option, "cpu_file", None)
    monkeypatch.setattr(request.config.option, "write_cpu_budgets", False)
    measured.folders |= {"tests/a": 1.9, "tests/c": 100.0}
    measured.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK
    measured.folders["tests/b"] = 2.1
    measured.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED


def test_every_folder_of_tests_has_a_budget() -> None:
    files = (path.relative_to(PROJECT_ROOT) for path in (PROJECT_ROOT / "tests").rglob("test_*.py"))
    assert {folder_of(f"{file.as_posix()}::test") for file in files} == cpu_time.BUDGETS_S.keys()


def test_a_slow_machine_is_given_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "yardstick_s", lambda: 1.5 * cpu_time.YARDSTICK_S)
    assert CpuTime()._slowness == 1.5
    monkeypatch.setattr(cpu_time, "yardstick_s", lambda: 0.5 * cpu_time.YARDSTICK_S)
    assert CpuTime()._slowness == 1


def test_each_half_writes_the_budgets_of_its_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "cpu_budgets.py"
    table.write_text('before = 1\nBUDGETS_S: dict[str, int] = {\n    "tests/b": 7,\n}\n', encoding="utf-8")
    monkeypatch.setattr(cpu_time.budgets, "__file__", str(table))
    cpu_time._write_budgets({"tests/a": 3.0})
    assert table.read_text(encoding="utf-8") == (
        'before = 1\nBUDGETS_S: dict[str, int] = {\n    "tests/a": 10,\n    "tests/b": 7,\n}\n'
    )
