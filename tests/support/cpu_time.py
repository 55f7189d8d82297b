"""What the tests cost, in CPU seconds: a table per folder, a limit per test, a budget per folder.

CPU time and not wall time, because wall time grows with whatever else the machine does. A test pays for this process
and for all processes below it: a JVM, a broker, commands. What several tests share, as a JVM's start, is counted as
``(shared)`` and is nobody's fault; so is a full garbage collection, which looks at what all tests before have left.
Without Linux's ``/proc``, processes that still run are not counted.
"""

from __future__ import annotations

import ast
import fcntl
import gc
import os
import resource
import sys
import time
from collections import defaultdict
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import cpu_budgets as budgets
from tests.cpu_budgets import BUDGETS_S, UNMARKED_TEST_S, YARDSTICK_S
from tests.support.exploration import is_soak

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SHARED = "(shared)"
HEADROOM, SPARE_S = 1.5, 5
_MOST_MODULES = 100  # that a test loads and still pays for
_TABLE = "BUDGETS_S: dict[str, int] = {"
_COSTLY_MARKS = {"spark", "postgres", "kafka", "live", "cluster", "crash", "slow"}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return what this process and every process below it, dead or alive, has used so far."""
    return _without_living() + sum(map(_ticks, _living_below("self"))) / _TICKS_PER_S


def _without_living() -> float:
    """Return what this process and the dead ones below it have used. A JVM that others share works at any time."""
    own, dead = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + dead.ru_utime + dead.ru_stime


def _living_below(pid: str) -> Iterator[str]:
    """Yield the processes below one, whose threads may end while they are asked for their children."""
    children: list[str] = []
    with suppress(OSError):  # the process has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += (thread / "children").read_text().split()
    for child in children:
        yield child
        yield from _living_below(child)


def _ticks(pid: str) -> int:
    """Return the ticks of a process and of those of its children that it has waited for."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except OSError:  # the process has ended meanwhile
        return 0
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))  # utime, stime, cutime, cstime


def folder_of(nodeid: str) -> str:
    """Return the folder of a test, at most two levels below ``tests``: ``tests/catalog/stash``."""
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:3])


def yardstick_s() -> float:
    """Return how long a fixed piece of work takes: the best of five, in CPU seconds."""

    def once() -> float:
        start = time.process_time()
        sum(number * number % 7 for number in range(300_000))
        return time.process_time() - start

    return min(once() for _ in range(5))


def slowness() -> float:
    """Return how many times as long as on the machine of the budgets a piece of work takes now; at least 1."""
    return max(1.0, yardstick_s() / YARDSTICK_S)


class CpuTime:
    """A pytest plugin that measures, prints, and fails what costs too much."""

    def __init__(self) -> None:
        self._slowness = slowness()
        self._mark = cpu_seconds()
        self._test_s = self._began_s = 0.0
        self._modules = 0  # loaded when the test began
        self._shared_depth = 0  # of shared fixtures that ask for others
        self.folders: defaultdict[str, float] = defaultdict(float)
        self.tests: dict[str, float] = {}
        self._over_budget: list[str] = []
        self._collecting_since_s = self._collected_s = 0.0  # in full garbage collections during this test

    def _see_garbage_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._collecting_since_s = time.process_time()
        else:
            self._collected_s += time.process_time() - self._collecting_since_s

    def _lap(self) -> float:
        """Return the CPU seconds since the last call. They cannot be less than none: an orphan takes its own along."""
        before, self._mark = self._mark, cpu_seconds()
        return max(0.0, self._mark - before)

    def pytest_collection_finish(self) -> None:
        self.folders["(collection)"] += self._lap()
        gc.freeze()  # what is loaded by now stays until the end: no garbage collection has to look at it
        gc.callbacks.append(self._see_garbage_collection)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        if self._shared_depth == 0:
            self._test_s += self._lap()
        self._shared_depth += 1
        try:
            return (yield)
        finally:
            self._shared_depth -= 1
            self.folders[SHARED] += self._lap()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.folders[SHARED] += self._lap()  # the end of what the last test shared
        self._test_s, self._modules, self._began_s, self._collected_s = 0.0, len(sys.modules), _without_living(), 0.0
        result = yield
        spent = self._test_s + self._lap() - self._collected_s
        self.folders[SHARED] += self._collected_s
        self.folders[folder_of(item.nodeid)] += spent
        self.tests[item.nodeid] = spent
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._test_s += self._lap()
        own_s = min(self._test_s, _without_living() - self._began_s) - self._collected_s
        is_first = len(sys.modules) - self._modules > _MOST_MODULES  # it loaded what all later ones use
        if (
            call.when == "call"
            and report.passed
            and own_s > UNMARKED_TEST_S * self._slowness
            and not (is_first or _is_costly(item))
            and own_s > UNMARKED_TEST_S * slowness()  # of this moment
        ):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {own_s:.1f} CPU-s, and a test without a mark may take {UNMARKED_TEST_S}: "
                "make it cheaper, or mark it with what it needs: slow, or another of the marks in pyproject.toml"
            )
        return report

    def pytest_unconfigure(self) -> None:
        gc.unfreeze()  # libraries would tell of leaks

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.folders[SHARED] += self._lap()
        if file := session.config.getoption("cpu_file"):
            Path(file).write_text(f"{sum(self.folders.values()):.0f}", encoding="utf-8")
        if session.config.getoption("write_cpu_budgets"):
            _write_budgets({name: spent for name, spent in self.folders.items() if not name.startswith("(")})
            return
        self._over_budget = [
            f"{folder} took {spent:.0f} CPU-s, and its budget is {BUDGETS_S[folder]}: see tests/cpu_budgets.py"
            for folder, spent in self.folders.items()
            if spent > BUDGETS_S.get(folder, spent) * self._slowness and not is_soak()
        ]
        if self._over_budget and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self.folders.values()) < 1 or not self.tests:
            return
        terminalreporter.section("CPU seconds")
        for folder, spent in sorted(self.folders.items()):
            budget = f" of {BUDGETS_S[folder]:5}" if folder in BUDGETS_S else ""
            terminalreporter.line(f"{folder:32} {spent:7.1f}{budget}")
        terminalreporter.line(f"{'together':32} {sum(self.folders.values()):7.1f}")
        most = terminalreporter.config.getoption("cpu")
        for test, spent in sorted(self.tests.items(), key=lambda pair: -pair[1])[:most]:
            terminalreporter.line(f"{spent:8.2f} {test}")
        for line in self._over_budget:
            terminalreporter.line(line, red=True)


def _write_budgets(spent: dict[str, float]) -> None:
    """Replace these folders' budgets; the other half of the tests writes those of its own folders."""
    with Path(budgets.__file__).open("r+", encoding="utf-8") as table:
        fcntl.flock(table, fcntl.LOCK_EX)  # the halves may end at the same time
        head, _, stored = table.read().partition(_TABLE)
        measured = {name: ceil(HEADROOM * used + SPARE_S) for name, used in spent.items()}
        written = ast.literal_eval("{" + stored) | measured
        lines = "".join(f'    "{name}": {budget},\n' for name, budget in sorted(written.items()))
        table.seek(0)
        table.truncate()
        table.write(f"{head}{_TABLE}\n{lines}}}\n")


def _is_costly(item: pytest.Item) -> bool:
    return is_soak() or any(mark.name in _COSTLY_MARKS for mark in item.iter_markers())
