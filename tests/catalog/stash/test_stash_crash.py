"""Die at every fail point of the stash, each time it is reached, and run again: as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.items_of import collection_item, initialised
from tidemark.catalog.stash import handle as stash_handle
from tidemark.catalog.stash import stash
from tidemark.catalog.stash import transactions as stash_transactions
from tidemark.fail_points import FAIL_POINT_EXIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.catalog.stash_places import StashPlace

# Imports once, and runs the same few lines in a new process for each fail point that it is told.
PROGRAM = """
import os, sys
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.kinds import COLLECTION
from tidemark.catalog.stash.stash import Stash
from tests.support.clock import SteppedClock
from tidemark.settings import Settings
from tests.support.catalog.items_of import name, numbered

def change(transaction):
    transaction.put(COLLECTION, name("a"), numbered(2))
    transaction.put(COLLECTION, name("b"), numbered(1))
    transaction.put(COLLECTION, name("c"), None)

stash = Stash.of(Settings.load(os.environ))
for point in sys.stdin:
    child = os.fork()
    if child == 0:
        os.environ["TIDEMARK_FAIL_POINT"] = point.strip()
        with stash.open(OpenMode.WRITABLE, generation=1, clock=SteppedClock()) as handle:
            handle.transact(change)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
# The first write transaction fences, the second initialises, the third is the program's own.
POINTS = [
    *(f"{point}:{nth}" for point in stash_transactions.FAIL_POINTS for nth in (1, 2, 3)),
    *stash.FAIL_POINTS,
    *stash_handle.FAIL_POINTS,
]


@contextmanager
def program(place: StashPlace) -> Iterator[Callable[[str], int]]:
    """A function that runs the program with a fail point, or with none, and returns its exit code."""
    environ = {"TIDEMARK_HOME": str(place.settings.home), "TIDEMARK_STASH_URI": place.settings.stash_uri.reveal()}
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ | {"PYTHONPATH": "."}, **pipes) as process:

        def run(point: str) -> int:
            process.stdin.write(point + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


@pytest.mark.crash
@pytest.mark.parametrize("new", [True, False])
def test_a_killed_writer_leaves_all_or_nothing(place: StashPlace, *, new: bool) -> None:
    """On a stash that does not exist yet, and on one with other contents."""
    before = initialised(collection_item("a", 1), collection_item("c", 3))
    after = initialised(collection_item("a", 2), collection_item("b", 1))
    with program(place) as run:
        for point in POINTS[:-1] if new else POINTS:  # what is new has no retractions to consolidate
            if new and place.stash.head().epoch is not None:
                place.drop()
            elif not new:
                with place.open() as handle:
                    handle.replace_all(before)
            assert run(point) == FAIL_POINT_EXIT, point
            head = place.stash.head()
            if head.is_initialized:
                with place.join() as task:
                    assert task.snapshot() in ([initialised(), after] if new else [before, after]), point
            with place.open() as handle:
                assert handle.epoch == (head.epoch or 1) + 1, point
        assert run("") == 0
    with place.join() as task:
        assert task.snapshot() == after
    assert place.sql("SELECT COUNT(*) FROM data WHERE diff < 0") == [(0,)]
