"""Appends, flushes, switches and reconciles before, during and after a move of the truth: the same, or fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.events import CLOCK, switch
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tests.support.hourly import HALF_HOURS, Events, hours
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.opening.protocol import FENCE_STASH, SET_TOMBSTONE, WRITE_STASH
from tidemark.collections.append.interval import append_small
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import join_to_write, switch_mode
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import FencedByEpoch, NotLed
from tidemark.exit_codes import ExitCode
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.catalog.opening.opening import Direction, Step
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings


def append_stage_and_flush(events: Events, hour: int) -> None:
    """Append one hour, stage the next while read-only, and flush it."""
    assert events.append(hour, hour + 1).outcome is Outcome.APPENDED
    switch(events.settings, Mode.READ_ONLY)
    assert events.append(hour + 1, hour + 2).outcome is Outcome.STAGED
    switch(events.settings, Mode.READ_WRITE)
    flushed = flush_all(events.shards, deployment_of(events.settings), [], clock=CLOCK)
    assert flushed.collections["events"].outcome is Outcome.FLUSHED
    assert events.times() == HALF_HOURS[: 2 * (hour + 2)]


@pytest.mark.slow
def test_appends_and_flushes_are_the_same_on_either_side(any_home: Home, tmp_path: Path) -> None:
    events = Events(any_home.settings, tmp_path)
    events.declare()
    append_stage_and_flush(events, 0)
    any_home.open(MIGRATE)
    append_stage_and_flush(events, 2)
    any_home.open(ROLLBACK)
    append_stage_and_flush(events, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "step"), [(MIGRATE, FENCE_STASH), (MIGRATE, SET_TOMBSTONE), (ROLLBACK, WRITE_STASH)]
)
def test_during_a_move_nothing_is_written_and_a_retry_after_it_does_everything(
    home: Settings, tmp_path: Path, direction: Direction, step: Step
) -> None:
    catalog, events = Home(home), Events(home, tmp_path)
    declaration = events.declare()
    if direction is ROLLBACK:
        catalog.open(MIGRATE)
    events.append(0, 1)
    switch(home, Mode.READ_ONLY)
    events.append(1, 2)
    switch(home, Mode.READ_WRITE)
    begun = deployment_of(home)
    begun.registry.read()
    catalog.die_after(direction, step)
    for error, code, deployment in (
        (NotLed, ExitCode.TRANSIENT, deployment_of(home)),
        (FencedByEpoch, ExitCode.FENCED, begun),
    ):
        appended, _ = append_small(events.shards, deployment, [declaration], hours(2, 3), clock=CLOCK)
        assert appended.exit_code == code
        assert said(appended.collections["events"]) == error.__name__
        with pytest.raises(error):
            flush_all(events.shards, deployment, [], clock=CLOCK)
        with pytest.raises(error):
            switch_mode(events.shards, deployment, Mode.READ_ONLY, who="w", why="y")
    assert events.times() == HALF_HOURS[:2]
    assert len(list_batches(events.shards, [])) == 1
    catalog.open(direction)
    flush_all(events.shards, deployment_of(home), [], clock=CLOCK)
    events.append(2, 3)
    assert events.times() == HALF_HOURS[:6]


def test_a_writer_that_joined_before_a_migration_is_fenced_by_a_switch_after_it(home: Settings, tmp_path: Path) -> None:
    events = Events(home, tmp_path)
    events.declare()
    writer, mode = join_to_write(events.shards.open("events"), deployment_of(home))
    Home(home).open(MIGRATE)
    switch(home, Mode.READ_ONLY)
    assert mode is Mode.READ_WRITE
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=0, new_upper=1)


@pytest.mark.spark
def test_reconciles_are_the_same_on_either_side_and_fenced_in_between(
    home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    installation = Home(home, tmp_path)
    names = ("a", "b")
    for name in names:
        installation.write_rows(name, [(1, "x")])
    first, second = map(installation.declaration, names)
    installation.apply(first, second)

    def reconcile(rows: list[tuple[object, ...]]) -> dict[str, CollectionReport]:
        installation.write_rows("a", rows)
        return reconcile_all(home_spark, deployment_of(home), ["a"], clock=installation.clock).collections

    assert reconcile([(1, "x"), (2, "y")])["a"].outcome is Outcome.CORRECTED
    installation.die_after(MIGRATE, SET_TOMBSTONE)
    with pytest.raises(NotLed):
        reconcile([(1, "z"), (2, "y")])
    assert installation.tuples("a") == [(1, "x"), (2, "y")]
    installation.open(MIGRATE)
    assert reconcile([(1, "z"), (2, "y")])["a"].outcome is Outcome.CORRECTED

    def roll_back_at_its_start(name: str, report: CollectionReport | None) -> None:
        if report is None and name == "a":
            installation.open(ROLLBACK)

    installation.write_rows("a", [(1, "z")])
    report = reconcile_all(
        home_spark, deployment_of(home), ["a"], clock=installation.clock, progress=roll_back_at_its_start
    )
    assert (report.exit_code, said(report.collections["a"])) == (ExitCode.FENCED, "FencedByEpoch")
    assert installation.tuples("a") == [(1, "z"), (2, "y")]
    assert reconcile([(1, "z")])["a"].outcome is Outcome.CORRECTED
    assert installation.tuples("a") == [(1, "z")]


def said(report: CollectionReport) -> str:
    assert report.error is not None
    return report.error.kind
