"""What live storage workers run is left to them by scheduled runs and by the command line, without a gap."""

from __future__ import annotations

import logging
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.support.homes import Home
from tests.support.leases import run_sql
from tests.support.storage_board import show
from tidemark.collections.deployment import Mode
from tidemark.report import SKIPPED_BECAUSE, Outcome
from tidemark.storage.board import Board
from tidemark.storage.running import leave_to_workers, running_on_workers
from tidemark.storage.sharing import SILENT_MS

if TYPE_CHECKING:
    import pytest

    from tidemark.settings import Settings


def fall_silent(settings: Settings, worker: int, since_ms: int) -> None:
    run_sql(
        settings, f"UPDATE tidemark_storage SET written_ms = written_ms - {since_ms} WHERE place = 'worker/{worker}'"
    )


def test_nothing_runs_where_there_never_was_a_worker(home: Settings) -> None:
    assert running_on_workers(home) == frozenset()


def test_what_all_live_workers_say_counts_and_what_silent_ones_said_does_not(home: Settings) -> None:
    show(home, 0, "orders", "copies")
    show(home, 1, "orders", "planes")
    with closing(Board(home)) as board:
        board.put("workers", {"objects": ["others"]})
        board.put("part/orders/0", {"objects": ["others"]})
    assert running_on_workers(home) == {"orders", "copies", "planes"}
    fall_silent(home, 1, SILENT_MS // 2)
    assert running_on_workers(home) == {"orders", "copies", "planes"}
    fall_silent(home, 1, SILENT_MS)
    assert running_on_workers(home) == {"orders", "copies"}


def choose(settings: Settings, *names: str, mode: Mode = Mode.READ_WRITE) -> tuple[list[str], dict[str, str]]:
    """Return what a run does itself, and what it says of the others."""
    home = Home(settings)
    home.switch(mode)
    chosen = [SimpleNamespace(name=name) for name in ("copies", "orders", "planes")]
    left, reports = leave_to_workers(home.deployment, chosen, names)
    assert {report.outcome for report in reports.values()} <= {Outcome.SKIPPED}
    return [each.name for each in left], {name: report.details[SKIPPED_BECAUSE] for name, report in reports.items()}


def test_a_run_leaves_to_live_workers_what_they_run_and_says_so(
    home: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    show(home, 0, "orders", "of another catalog")
    with caplog.at_level(logging.INFO):
        chosen, others = choose(home)
    assert (chosen, [*others]) == (["copies", "planes"], ["orders"])
    assert others["orders"].startswith("a storage worker runs it all the time")
    assert "orders: skipped: a storage worker runs it" in caplog.text


def test_there_is_no_gap_without_a_live_worker_while_read_only_or_for_whoever_names_objects(home: Settings) -> None:
    everything = (["copies", "orders", "planes"], {})
    assert choose(home) == everything
    show(home, 0, "orders")
    assert choose(home, "copies", "orders", "planes") == everything
    assert choose(home, mode=Mode.READ_ONLY) == everything
    fall_silent(home, 0, SILENT_MS + 1)
    assert choose(home) == everything
