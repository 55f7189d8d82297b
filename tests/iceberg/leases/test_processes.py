"""Processes that are stopped or killed, as others see them by their leases."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import Started, die_at, start
from tests.support.leases import compute, leased, leases_of, live_operations, wait_for
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.leases import statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.crash


@pytest.fixture
def process(any_store: Settings) -> Iterator[Started]:
    """A process that computes, and holds a lease meanwhile."""
    with leased(any_store, "reconcile", ("planes",)) as started:
        yield started


def test_a_process_that_is_stopped_lets_its_lease_run_out_and_gets_it_back(
    any_store: Settings, process: Started
) -> None:
    assert live_operations(any_store) == {"reconcile"}
    process.signal(signal.SIGSTOP)
    assert live_operations(any_store) == set()
    process.signal(signal.SIGCONT)
    assert live_operations(any_store) == {"reconcile"}


def test_a_process_that_is_killed_lets_its_lease_run_out(any_store: Settings, process: Started) -> None:
    process.signal(signal.SIGKILL)
    assert live_operations(any_store) == set()
    assert len(leases_of(any_store)) == 1, "whose it was can still be seen"


def test_a_process_that_ends_takes_its_lease_with_it(any_store: Settings, tmp_path: Path) -> None:
    started = start("", compute, any_store, "reconcile", ("planes",), tmp_path / "end")
    wait_for(lambda: leases_of(any_store))
    (tmp_path / "end").touch()
    assert started.exit_code() == 0
    assert leases_of(any_store) == []


def test_a_process_that_dies_once_it_has_made_the_table_leaves_an_empty_one(
    any_store: Settings, tmp_path: Path
) -> None:
    arguments = (any_store, "reconcile", ("planes",), tmp_path / "end")
    assert die_at(statements.FAIL_POINTS[0], compute, *arguments) == FAIL_POINT_EXIT
    assert leases_of(any_store) == []
    with leased(any_store, "reconcile", ("planes",)):
        assert live_operations(any_store) == {"reconcile"}
