"""What a scheduled append does: holes alone are filled, and small files need no JVM, with the same rows as Spark's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import CLOCK, switch
from tests.support.hourly import HALF_HOURS, Events, hour_range, hours
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.interval import append_all, append_small, shared_parts
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

LEDGER = Ledger((Range(10, 20), Range(30, 40)))


@pytest.fixture
def events(home: Settings, tmp_path: Path) -> Events:
    found = Events(home, tmp_path)
    found.declare()
    return found


def test_hours_come_in_any_order_and_only_holes_are_filled(events: Events) -> None:
    assert (events.append(4, 5).outcome, events.append(1, 2).inserted) == ("appended", 2)
    whole = events.append(0, 6)
    assert (whole.outcome, whole.batches, whole.inserted) == ("appended", 3, 8)
    assert whole.details == {"ranges": {"source": [list(hour_range(0, 6))]}}
    assert events.times() == HALF_HOURS
    batches = {row[-1] for row in events.rows()}
    assert batches == {hour_range(hour, 6)[0] for hour in (0, 1, 2, 4, 5)}


def test_interval_that_is_there_is_skipped_and_says_what_is_published(events: Events) -> None:
    events.append(0, 6)
    again = events.append(2, 3)
    assert (again.outcome, again.inserted, again.batches) == ("skipped", 0, 0)
    assert again.details == {"ranges": {"source": [list(hour_range(2, 3))]}}
    assert events.times() == HALF_HOURS


def test_while_read_only_holes_are_staged_once(events: Events, home: Settings) -> None:
    events.append(0, 1)
    switch(home, Mode.READ_ONLY)
    for inserted_rows in (10, None):
        staged = events.append(0, 6)
        assert (staged.outcome, staged.rows_source) == ("staged", inserted_rows)
        assert staged.details == {
            "ranges": {"source": [list(hour_range(0, 1))]},
            "staged_ranges": {"source": [list(hour_range(1, 6))]},
        }
    assert events.times() == HALF_HOURS[:2]
    switch(home, Mode.READ_WRITE)
    flush_all(events.shards, deployment_of(home), [], clock=CLOCK)
    assert (events.append(0, 6).outcome, events.times()) == ("skipped", HALF_HOURS)


def test_hour_without_rows_is_delivered_too(events: Events) -> None:
    assert (events.append(100, 101).outcome, events.rows()) == ("appended", Counter())
    assert events.shards.open("events").load().state.ledgers == {"source": Ledger((hour_range(100, 101),))}


def test_damaged_staged_batch_is_restaged(events: Events, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    events.append(0, 1)
    shard = events.shards.open("events")
    [branch] = shard.load().staged_branches
    table = shard.load().table
    table.append(table.scan(snapshot_id=shard.load().staged_branches[branch]).to_arrow(), branch=branch)
    assert events.append(0, 1).rows_source == 2


@pytest.mark.parametrize(
    "source",
    [
        {"where": "at >= '{start}' AND at < '{end}' AND extra = 0"},
        {"where": "extra >= '{start}' AND extra < '{end}'"},
        {"where": "at >= '{start}' AND extra < '{end}'"},
        {"options": {"mergeSchema": "true"}},
    ],
    ids=["more conditions", "not a time", "two columns", "options"],
)
def test_what_might_differ_is_left_to_spark(home: Settings, tmp_path: Path, source: dict[str, Any]) -> None:
    events = Events(home, tmp_path)
    declaration = events.declare(source=source)
    report, left = append_small(events.shards, deployment_of(home), [declaration], hours(0, 1), clock=CLOCK)
    assert (report.collections, left) == ({}, ["events"])


def test_wrong_kind_is_said_without_a_jvm(home: Settings, tmp_path: Path) -> None:
    declaration = Events(home, tmp_path).declare(source={"where": None})
    report, left = append_small(Shards.connect(home), deployment_of(home), [declaration], hours(0, 1), clock=CLOCK)
    assert left == []
    error = report.collections["events"].error
    assert error is not None
    assert (error.kind, "cut by an interval" in error.message) == ("UsageError", True)


@pytest.mark.spark
def test_spark_cuts_the_same_rows(home_spark: SparkSession, home: Settings, tmp_path: Path) -> None:
    pairs, declarations = [], []
    for name, zone in (("utc", "UTC"), ("new_york", "America/New_York"), ("local", None)):
        small, large = (Events(home, tmp_path, f"{name}_{size}", zone=zone) for size in ("small", "large"))
        small.declare()
        declarations.append(large.declare())
        pairs.append((small, large))
        small.append(1, 2)
        small.append(0, 4)
    shards = Shards.connect(home)
    append_all(home_spark, shards, deployment_of(home), declarations, hours(1, 2), clock=CLOCK)
    reports = append_all(home_spark, shards, deployment_of(home), declarations, hours(0, 4), clock=CLOCK).collections
    for small, large in pairs:
        assert (reports[large.name].batches, reports[large.name].inserted) == (2, 6)
        assert small.rows() == large.rows()
        assert len(small.times()) == 8


@pytest.mark.parametrize(
    ("wanted", "holes"),
    [
        (Range(0, 50), ((0, 10), (20, 30), (40, 50))),
        (Range(10, 20), ()),
        (Range(15, 35), ((20, 30),)),
        (Range(20, 30), ((20, 30),)),
        (Range(0, 5), ((0, 5),)),
    ],
)
def test_holes_are_what_the_ledger_lacks(wanted: Range, holes: tuple[tuple[int, int], ...]) -> None:
    assert LEDGER.holes(wanted) == holes


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=8), st.integers(0, 40), st.integers(1, 30))
def test_holes_and_shared_parts_make_up_the_whole(added: list[tuple[int, int]], start: int, length: int) -> None:
    ledger = Ledger()
    for place, size in added:
        new = Range(place, place + size)
        ledger = ledger if ledger.overlaps(new) else ledger.add(new)
    wanted = Range(start, start + length)
    holes, shared = ledger.holes(wanted), shared_parts(ledger, wanted)
    numbers = [number for part in sorted([*holes, *shared]) for number in range(*part)]
    assert numbers == list(range(*wanted))
    assert not any(ledger.overlaps(hole) for hole in holes)
    assert all(ledger.covers(part) for part in shared)
