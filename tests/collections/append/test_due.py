"""What a scheduled run of the appends takes: what is declared, over, and not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.damage import damage_metadata
from tests.support.events import CLOCK
from tests.support.hourly import HALF_HOURS, HOUR_MS, START_MS, Events, hours
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.due import due_intervals
from tidemark.collections.append.interval import append_small
from tidemark.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

SIX_HOURS = {"start": "2013-01-01", "end": "2013-01-01T06:00:00"}


@pytest.fixture
def events(home: Settings, tmp_path: Path) -> Events:
    return Events(home, tmp_path)


def due(events: Events, interval: Interval, *, names_all: bool = False) -> Interval | None:
    deployment = deployment_of(events.settings)
    declared = [deployment.registry.get(events.name)]
    return due_intervals(events.shards, deployment, declared, interval, names_all=names_all).get(events.name)


def test_run_appends_all_that_is_over_and_the_next_one_goes_on(events: Events, home: Settings) -> None:
    declaration = events.declare(intervals=SIX_HOURS)
    assert due(events, hours(-1, 0)) is None, "nothing is over yet"
    found = due(events, Interval(hours(3, 4).start_ms, hours(3, 4).end_ms + 1))
    assert found == hours(0, 4), "whole hours"
    append_small(events.shards, deployment_of(home), [declaration], {"events": found}, clock=CLOCK)
    assert events.times() == HALF_HOURS[:8]
    assert due(events, hours(4, 5)) == hours(4, 5)
    assert due(events, hours(5, 6)) == hours(4, 6), "the run before it failed"
    assert due(events, hours(100, 101)) == hours(4, 6), "not beyond the declared end"


def test_where_nothing_is_missing_the_run_is_about_its_own_interval(events: Events) -> None:
    events.declare(intervals=SIX_HOURS)
    events.append(0, 6)
    assert due(events, hours(3, 4)) == hours(3, 4)
    assert due(events, hours(100, 101)) is None
    assert due(events, hours(100, 101), names_all=True) == hours(0, 6), "what an earlier try may not have told"


def test_days_are_appended_when_they_are_over(events: Events) -> None:
    events.declare(intervals={"start": "2013-01-01", "every": "day"})
    assert due(events, hours(22, 23)) is None
    assert due(events, hours(24, 25)) == hours(0, 24)
    assert due(events, Interval(START_MS, START_MS + 50 * HOUR_MS)) == hours(0, 48)


def test_without_declared_intervals_a_run_takes_its_own(events: Events) -> None:
    events.declare()
    assert due(events, hours(3, 4)) == hours(3, 4)


def test_damage_of_one_collection_is_left_to_its_append(events: Events) -> None:
    events.declare(intervals=SIX_HOURS)
    damage_metadata(events.shards.open("events"), "cut")
    assert due(events, hours(3, 4)) == hours(0, 4)
