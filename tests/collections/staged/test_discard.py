"""Staged batches are given up by name alone, and never without a record."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.discarding import discard
from tests.support.events import CLOCK, append_numbers, create_events, switch
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.discard import FAIL_POINTS, Selection
from tidemark.errors import FencedByGeneration, UnknownCollection, UsageError
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

PLACES = [("events", 0, 2), ("events", 2, 4), ("other", 0, 2)]


@pytest.fixture
def events(home: Settings) -> Shard:
    switch(home, Mode.READ_ONLY)
    shards = {name: create_events(home, name) for name in ("events", "other")}
    for name, start, end in PLACES:
        append_numbers(shards[name], home, start, end)
    return shards["events"]


def staged(settings: Settings) -> list[tuple[str, int, int]]:
    return [(each.collection, *each.name.range) for each in list_batches(Shards.connect(settings), [])]


def discard_now(settings: Settings, selection: Selection) -> list[tuple[str, int, int]]:
    gone = discard(Shards.connect(settings), deployment_of(settings), selection, who="me", why="a test", clock=CLOCK)
    return [(each.collection, *each.name.range) for each in gone]


@pytest.mark.parametrize(
    ("selection", "gone"),
    [
        (Selection(names=("events",)), PLACES[:2]),
        (Selection(names=("events",), range=Range(0, 2)), PLACES[:1]),
        (Selection(range=Range(0, 2)), [PLACES[0], PLACES[2]]),
        (Selection(range=Range(0, 1)), []),
        (Selection(producer="p"), PLACES),
        (Selection(producer="q"), []),
        (Selection(generation=1), PLACES),
        (Selection(generation=2), []),
        (Selection(everything=True), PLACES),
    ],
)
def test_selection_goes_and_the_rest_stays(
    events: Shard, home: Settings, selection: Selection, gone: list[tuple[str, int, int]]
) -> None:
    assert discard_now(home, selection) == gone
    assert staged(home) == [place for place in PLACES if place not in gone]
    records = deployment_of(home).discards.read()
    assert [(each["collection"], *each["range"]) for each in records] == gone
    assert all((each["who"], each["why"], each["rows"]) == ("me", "a test", 2) for each in records)


def test_nothing_selected_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing was selected"):
        Selection()


def test_unknown_collection_is_said(events: Shard, home: Settings) -> None:
    with pytest.raises(UnknownCollection):
        discard_now(home, Selection(names=("event",)))


def test_discarded_range_is_free_again(events: Shard, home: Settings) -> None:
    discard_now(home, Selection(names=("events",)))
    assert append_numbers(events, home, 1, 3).outcome is Outcome.STAGED
    discard_now(home, Selection(names=("events",)))
    assert [each["range"] for each in deployment_of(home).discards.read()] == [[0, 2], [2, 4], [1, 3]]


def test_replaced_deployment_discards_nothing(events: Shard, home: Settings) -> None:
    switch(replace(home, generation=2), Mode.READ_WRITE)
    with pytest.raises(FencedByGeneration):
        discard_now(home, Selection(everything=True))
    assert staged(home) == PLACES
    newer = replace(home, generation=2)
    assert discard_now(newer, Selection(generation=1)) == PLACES, "left behind by a deployment that is gone"


PROGRAM = """
import os
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tests.support.discarding import discard
from tidemark.collections.staged.discard import Selection
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
settings = Settings.load(os.environ)
everything = Selection(everything=True)
discard(Shards.connect(settings), deployment_of(settings), everything, who="w", why="y", clock=SystemClock())
"""


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_killed_discard_is_completed_under_one_record(events: Shard, home: Settings, point: str) -> None:
    environ = {"TIDEMARK_HOME": str(home.home), "PYTHONPATH": ".", "PATH": os.environ["PATH"]}
    run = [sys.executable, "-c", PROGRAM]
    killed = subprocess.run(run, env=environ | {"TIDEMARK_FAIL_POINT": point}, check=False, capture_output=True)
    assert killed.returncode == FAIL_POINT_EXIT, killed.stderr.decode()
    subprocess.run(run, env=environ, check=True, capture_output=True)
    assert staged(home) == []
    assert len(deployment_of(home).discards.read()) == len(PLACES)
