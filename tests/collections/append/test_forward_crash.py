"""Processes that die while they write batches into a buffer, or bring staged ones there: every row comes once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.crash import real_first, run_command, start_command
from tests.support.homes import Home
from tidemark.collections.append import append, forward
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.ingest.parts import steps
from tidemark.write_buffer.batches import batch_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

WRITES = (*append.FAIL_POINTS, *batch_log.FAIL_POINTS, *forward.FAIL_POINTS)
FLUSHES = ("flush.after-audit", *batch_log.FAIL_POINTS, *forward.FAIL_POINTS, "flush.after-publish")


@pytest.fixture
def forwarding(home: Settings, tmp_path: Path) -> Home:
    """Rows of some keys in two sequencers: a batch has entries in both."""
    opened = Home(home, tmp_path, now_ms=1_000_000)
    assert opened.buffer.logs
    opened.declare_writer()
    opened.declare_reader(source={"table": "gate"})
    return opened


def arguments(opened: Home, start: int, end: int) -> list[str]:
    path = opened.folder / f"{start}.csv"
    path.write_text("\n".join(["id,name", *(f"{id_},n{id_}" for id_ in range(start, end)), ""]), encoding="utf-8")
    return ["append", "gate", str(path), "--producer", "p", "--range", f"{start}:{end}"]


@pytest.mark.parametrize(("point", "run"), real_first(WRITES))
def test_killed_append_is_done_once(forwarding: Home, point: str, run: Callable[..., int]) -> None:
    command = arguments(forwarding, 0, 4)
    assert run(forwarding.settings, *command, point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    forwarding.ingest()
    before = forwarding.ids()
    assert before in ([], [0, 1, 2, 3]), "all of a batch, or nothing"
    assert run_command(forwarding.settings, *command) == ExitCode.OK
    forwarding.ingest()
    assert forwarding.ids() == [0, 1, 2, 3]
    assert run_command(forwarding.settings, *arguments(forwarding, 2, 6)) == ExitCode.REFUSED


def test_two_appends_at_once_are_one(forwarding: Home) -> None:
    command = arguments(forwarding, 0, 4)
    both = [start_command(forwarding.settings, *command) for _ in range(2)]
    assert [each.exit_code() for each in both] == [ExitCode.OK] * 2
    forwarding.ingest()
    assert forwarding.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("point", FLUSHES)
def test_killed_flush_brings_each_batch_once(forwarding: Home, point: str) -> None:
    forwarding.switch(Mode.READ_ONLY)
    for start in (0, 2):
        assert run_command(forwarding.settings, *arguments(forwarding, start, start + 2)) == ExitCode.OK
    forwarding.switch(Mode.READ_WRITE)
    assert run_command(forwarding.settings, "flush", point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    forwarding.ingest()
    assert run_command(forwarding.settings, "flush") == ExitCode.OK
    forwarding.ingest()
    assert forwarding.ids() == [0, 1, 2, 3]
    assert forwarding.branches() == set()


@pytest.mark.parametrize("point", steps.FAIL_POINTS)
def test_killed_ingest_of_a_batch_is_done_once(forwarding: Home, point: str) -> None:
    forwarding.declare_reader("short", source={"table": "gate"}, schema="id int, name string")
    (forwarding.folder / "big.csv").write_text("id,name\n1,a\n99999999999,b\n", encoding="utf-8")
    big = ["append", "gate", str(forwarding.folder / "big.csv"), "--producer", "q", "--range", "0:2"]
    assert run_command(forwarding.settings, *big) == ExitCode.OK
    assert run_command(forwarding.settings, "buffer", "ingest", "short", point=point) == FAIL_POINT_EXIT
    assert run_command(forwarding.settings, *arguments(forwarding, 4, 6)) == ExitCode.OK
    for _ in range(2):
        forwarding.ingest("short")
    assert (forwarding.ids("short"), len(forwarding.bad("short"))) == ([1, 4, 5], 1)
    assert forwarding.branches() == set()
