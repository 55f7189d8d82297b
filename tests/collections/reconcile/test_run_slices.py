"""Slices that read-only runs staged: published together, reconciled where they are stale, never out of date."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import die_in_fork
from tests.support.events import CLOCK, switch
from tests.support.homes import Home
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.reconcile import comparison, reconciliation, spark_corrections, stale
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.stale import reconcile_stale
from tidemark.collections.staged.batches import corrections_branch
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import GuardRefused
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.publisher import FAIL_POINTS as PUBLISHING
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.interval import Interval, milliseconds
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport, Report
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

COLUMNS = "day date, id int, value string"
FIRST = datetime(2013, 1, 1, tzinfo=UTC)
DAYS = range(3)


def days(start: int, end: int) -> Interval:
    return Interval(*(milliseconds(FIRST + timedelta(days=day)) for day in (start, end)))


def rows(*values: str) -> list[tuple[date, int, str]]:
    """Return two rows for each day, with that day's value."""
    return [((FIRST + timedelta(days=day)).date(), id_, value) for day, value in enumerate(values) for id_ in (1, 2)]


@pytest.fixture
def events(home: Settings, home_spark: SparkSession, tmp_path: Path) -> Home:
    """Three days of a collection that deployment 1 leads; all is stored as it is in the source."""
    made = Home(home, tmp_path, COLUMNS)
    made.write_rows("events", rows("a", "a", "a"))
    made.apply(made.declaration("events", key=["day", "id"], scope={"column": "day", "every": "day"}))
    switch(home, Mode.READ_WRITE)
    reconcile(home_spark, home, None)
    assert made.tuples("events") == rows("a", "a", "a")
    return made


def reconcile(spark: SparkSession, settings: Settings, interval: Interval | None) -> CollectionReport:
    CLOCK.step(1)
    return reconcile_all(spark, deployment_of(settings), [], interval=interval, clock=CLOCK).collections["events"]


def flush(settings: Settings, home: Home) -> Report:
    return flush_all(home.shards, deployment_of(settings), [], clock=CLOCK)


def flush_with_spark(settings: Settings, home: Home, spark: SparkSession) -> Report:
    flushed = flush(settings, home)
    return reconcile_stale(flushed, deployment_of(settings), start_spark=lambda: spark, clock=CLOCK)


@pytest.mark.parametrize("is_large", [False, True])
def test_slices_staged_beside_a_leader_are_published_at_once(
    events: Home, home: Settings, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:  # as if Spark had to write them
        monkeypatch.setattr(comparison, "candidates_fit_driver", lambda *_: False)
        for module in (comparison, spark_corrections):
            monkeypatch.setattr(module, "fits_driver", lambda **_: False)
    newer = replace(home, generation=2)
    events.write_rows("events", rows("b", "a", "c"))
    for day in DAYS:
        staged = reconcile(home_spark, newer, days(day, day + 1)).outcome
        assert staged is (Outcome.UNCHANGED if day == 1 else Outcome.STAGED)
        writer = Writer.raise_token(events.shard(), 1)
        upper = events.upper("events")
        writer.advance(lower=upper, new_upper=upper + 1)
    switch(newer, Mode.READ_WRITE)
    report = flush(newer, events)
    result = report.collections["events"]
    assert (report.exit_code, result.outcome, result.batches) == (ExitCode.OK, Outcome.FLUSHED, 2)
    assert (result.inserted, result.retracted) == (4, 4)
    assert (events.tuples("events"), events.branches()) == (rows("b", "a", "c"), set())
    assert check_invariant(events.shard()).holds
    by_spark = home_spark.table(events.shard().spark_name).select("day", "id", "value").collect()
    assert sorted(tuple(row) for row in by_spark) == rows("b", "a", "c"), "two files delete from one data file"
    again = reconcile(home_spark, newer, None)
    assert (again.outcome, again.strategy) == (Outcome.UNCHANGED, "digest"), "the digest was kept"


def test_stale_slices_are_reconciled_by_the_run_that_flushes(
    events: Home, home: Settings, home_spark: SparkSession
) -> None:
    newer = replace(home, generation=2)
    events.write_rows("events", rows("b", "c", "d"))
    for day in DAYS:
        reconcile(home_spark, newer, days(day, day + 1))
    assert reconcile(home_spark, home, days(0, 1)).outcome is Outcome.CORRECTED  # the leader goes on
    switch(newer, Mode.READ_WRITE)
    flushed = flush(newer, events)
    result = flushed.collections["events"]
    assert (flushed.exit_code, len(result.details["stale"])) == (ExitCode.TRANSIENT, 3)
    commands = result.details["next"].split(" && ")
    assert commands[0] == "tidemark reconcile events --interval 2013-01-01T00:00:00 2013-01-02T00:00:00"
    assert events.tuples("events") == rows("b", "a", "a")
    done = flush_with_spark(newer, events, home_spark)
    result = done.collections["events"]
    assert (done.exit_code, result.outcome, result.error) == (ExitCode.OK, Outcome.FLUSHED, None)
    assert (result.details, result.inserted) == ({"reconciled": commands}, 4)
    assert result.upper == events.upper("events")
    assert (events.tuples("events"), events.branches()) == (rows("b", "c", "d"), set())
    assert flush_with_spark(newer, events, home_spark).collections == {}


def test_refused_reconcile_of_a_stale_slice_is_the_error(
    events: Home, home: Settings, home_spark: SparkSession
) -> None:
    newer = replace(home, generation=2)
    events.write_rows("events", rows("b", "a", "a"))
    reconcile(home_spark, newer, days(0, 1))
    reconcile(home_spark, home, days(0, 1))
    events.write_rows("events", [])
    switch(newer, Mode.READ_WRITE)
    done = flush_with_spark(newer, events, home_spark)
    result = done.collections["events"]
    assert result.error is not None
    assert (done.exit_code, result.error.kind) == (ExitCode.REFUSED, GuardRefused.__name__)
    assert result.details["stale"] == [*events.branches()] != []


def test_run_that_finds_a_slice_right_removes_what_was_staged_for_it(
    events: Home, home: Settings, home_spark: SparkSession
) -> None:
    switch(home, Mode.READ_ONLY)
    events.write_rows("events", rows("b", "b", "a"))
    for day in DAYS:
        reconcile(home_spark, home, days(day, day + 1))
    events.write_rows("events", rows("a", "b", "a"))
    switch(home, Mode.READ_WRITE)
    first, second = (corrections_branch(1, (found.start_ms, found.end_ms)) for found in (days(0, 1), days(1, 2)))
    report = reconcile(home_spark, home, days(0, 1))
    assert (report.outcome, report.details["superseded"]) == (Outcome.UNCHANGED, [first])
    assert events.branches() == {second}, "the contents are the same, and it is about other rows"
    assert flush(home, events).collections["events"].outcome is Outcome.FLUSHED
    assert events.tuples("events") == rows("a", "b", "a")


@pytest.mark.parametrize("mode", [Mode.READ_ONLY, Mode.READ_WRITE])
def test_older_corrections_of_more_rows_are_out_of_date_once_a_slice_is_right(
    events: Home, home: Settings, home_spark: SparkSession, mode: Mode
) -> None:
    switch(home, Mode.READ_ONLY)
    events.write_rows("events", rows("b", "b", "a"))
    assert reconcile(home_spark, home, None).outcome is Outcome.STAGED
    events.write_rows("events", rows("a", "b", "a"))
    switch(home, mode)
    assert reconcile(home_spark, home, days(0, 1)).outcome is Outcome.UNCHANGED
    switch(home, Mode.READ_WRITE)
    result = flush(home, events).collections["events"]
    assert result.details["stale"] == [corrections_branch(1, None)]
    assert events.tuples("events") == rows("a", "a", "a")
    flush_with_spark(home, events, home_spark)
    assert (events.tuples("events"), events.branches()) == (rows("a", "b", "a"), set())


def test_run_that_looked_earlier_does_not_replace_what_a_later_one_staged(
    events: Home, home: Settings, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(home, Mode.READ_ONLY)
    events.write_rows("events", rows("b", "a", "a"))
    reached: list[str] = []

    def overtake(point: str) -> None:
        reached.append(point)
        if reached.count("reconcile.before-publish") == 1 and point == "reconcile.before-publish":
            events.write_rows("events", rows("c", "a", "a"))
            assert reconcile(home_spark, home, days(0, 1)).outcome is Outcome.STAGED

    monkeypatch.setattr(reconciliation, "fail_point", overtake)
    report = reconcile(home_spark, home, None)
    assert (report.outcome, report.details["attempts"]) == (Outcome.STAGED, 2)
    switch(home, Mode.READ_WRITE)
    flush(home, events)
    assert (events.tuples("events"), events.branches()) == (rows("c", "a", "a"), set())


@pytest.mark.parametrize("staged_beside", [True, False])
def test_run_that_finds_nothing_and_one_beside_it_leave_the_later_look(
    events: Home, home: Settings, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, staged_beside: bool
) -> None:
    """Of two runs one finds corrections that the other one's look makes out of date."""
    right, wrong = rows("a", "a", "a"), rows("b", "a", "a")
    switch(home, Mode.READ_ONLY)
    events.write_rows("events", right if staged_beside else wrong)
    reached: list[str] = []

    def meet(point: str) -> None:
        reached.append(point)
        if reached.count("reconcile.before-publish") == 1 and point == "reconcile.before-publish":
            events.write_rows("events", wrong if staged_beside else right)
            with ThreadPoolExecutor(1) as beside:  # with a lease of its own
                found = beside.submit(reconcile, home_spark, home, days(0, 1)).result()
            assert found.outcome is (Outcome.STAGED if staged_beside else Outcome.UNCHANGED)
            events.write_rows("events", right)

    monkeypatch.setattr(reconciliation, "fail_point", meet)
    report = reconcile(home_spark, home, days(0, 1))
    assert (report.outcome, report.details["attempts"]) == (Outcome.UNCHANGED, 2)
    switch(home, Mode.READ_WRITE)
    flush(home, events)
    assert (events.tuples("events"), events.branches()) == (right, set())


def test_hours_of_one_date_are_about_the_same_rows(home: Settings, home_spark: SparkSession, tmp_path: Path) -> None:
    events = Home(home, tmp_path, COLUMNS)
    events.write_rows("events", rows("a"))
    events.apply(events.declaration("events", key=["day", "id"], scope={"column": "day", "every": "hour"}))
    switch(home, Mode.READ_WRITE)
    switch(home, Mode.READ_ONLY)
    start = days(0, 1).start_ms
    for hour in range(2):
        reconcile(home_spark, home, Interval(start + hour * 3_600_000, start + (hour + 1) * 3_600_000))
    switch(home, Mode.READ_WRITE)
    result = flush(home, events).collections["events"]
    assert (result.inserted, len(result.details["superseded"])) == (2, 1)
    assert events.tuples("events") == rows("a")


@pytest.mark.crash
@pytest.mark.parametrize("point", [*stale.FAIL_POINTS, *PUBLISHING, "reconcile.published"])
def test_killed_flush_of_stale_slices_is_done_by_the_next(
    events: Home, home: Settings, home_spark: SparkSession, point: str
) -> None:
    newer = replace(home, generation=2)
    events.write_rows("events", rows("b", "c", "a"))
    for day in range(2):
        reconcile(home_spark, newer, days(day, day + 1))
    upper = events.upper("events")  # the leader says that the contents have changed
    Writer.join(events.shard(), 1).advance(lower=upper, new_upper=upper + 1, outdates_staged=True)
    switch(newer, Mode.READ_WRITE)
    died = die_in_fork(point, lambda: flush_with_spark(newer, events, home_spark))
    assert died == FAIL_POINT_EXIT, f"{point} was never reached"
    done = flush_with_spark(newer, events, home_spark)
    assert done.exit_code is ExitCode.OK
    shard = events.shard()
    assert (events.tuples("events"), events.branches()) == (rows("b", "c", "a"), set())
    assert check_invariant(shard).holds
    forget_leases(home)
    remove_orphans(shard, older_than_ms=10**15)
    assert leftovers(home, shard) == set()


@pytest.mark.crash
@pytest.mark.parametrize("point", [*PUBLISHING, "reconcile.published"])
def test_killed_run_has_removed_what_was_staged_with_its_commit(
    events: Home, home: Settings, home_spark: SparkSession, point: str
) -> None:
    switch(home, Mode.READ_ONLY)
    events.write_rows("events", rows("b", "a", "a"))
    reconcile(home_spark, home, days(0, 1))
    events.write_rows("events", rows("a", "a", "a"))
    switch(home, Mode.READ_WRITE)
    before = events.upper("events")
    assert die_in_fork(point, lambda: reconcile(home_spark, home, days(0, 1))) == FAIL_POINT_EXIT
    assert (events.branches() == set()) is (events.upper("events") > before)
    reconcile(home_spark, home, days(0, 1))
    flush(home, events)
    assert (events.tuples("events"), events.branches()) == (rows("a", "a", "a"), set())
