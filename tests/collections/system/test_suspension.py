"""An ingestion that fails rests for a while and is tried again by itself; a clock is stepped, nothing is mocked."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tests.support.recorded import NOW_MS, statuses
from tidemark.collections.deployment import Mode
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.status_table import ObjectStatus, read_status_table
from tidemark.collections.system.suspension import settle
from tidemark.errors import Dropped, FencedByEpoch, UpperMismatch
from tidemark.ingest.parts.ingesting import Engine
from tidemark.ingest.run import choose_ingested, ingest_all
from tidemark.report import SKIPPED_BECAUSE, SUSPENDED, CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def reading(home: Settings) -> Home:
    """A home where `events` reads a buffer that is gone, and `others` reads the buffer of the home."""
    made = Home(home, now_ms=NOW_MS)
    made.send_rows(0, 2)
    shutil.copytree(made.buffer_folder, lost(made))
    made.declare_reader("events", source={"buffer": lost(made).as_uri()})
    made.declare_reader("others")
    made.switch(Mode.READ_WRITE)
    shutil.move(lost(made), elsewhere(made))
    return made


def lost(home: Home) -> Path:
    return home.folder / "lost"


def elsewhere(home: Home) -> Path:
    return home.folder / "elsewhere"


def run(home: Home, *asked_for: str) -> dict[str, CollectionReport]:
    """One run of the scheduler, or of a person who names objects, as a process of its own."""
    deployment = replace(home.deployment, asked_for=frozenset(asked_for))
    chosen = choose_ingested(deployment, asked_for)
    report, _ = ingest_all(home.shards, deployment, chosen, clock=home.clock, engine=Engine(), silent={})
    report = settle(deployment, report)
    record_run(deployment, report, clock=home.clock)
    return report.collections


def shown(home: Home) -> ObjectStatus:
    (events,) = read_status_table(home.deployment, ["events"])
    return events


def test_it_rests_for_longer_each_time_and_others_go_on(reading: Home) -> None:
    first = run(reading)
    assert (first["events"].outcome, first["others"].outcome) == (Outcome.FAILED, Outcome.APPENDED)
    assert "tried again at" in first["events"].details[SUSPENDED]
    rests = []
    for _ in range(8):
        resting = shown(reading)
        assert resting.status == "suspended"
        assert resting.since_ms == NOW_MS
        assert resting.retry_at_ms is not None
        rests.append(resting.retry_at_ms - reading.clock.now_ms())
        reading.clock.step(rests[-1] - 1)
        left_out = run(reading)
        assert left_out["events"].outcome is Outcome.SKIPPED
        assert left_out["events"].details[SKIPPED_BECAUSE].startswith("suspended since ")
        assert left_out["others"].error is None
        reading.clock.step(1)
        assert run(reading)["events"].outcome is Outcome.FAILED
    assert rests == [MINUTE_MS << doubled for doubled in range(6)] + [HOUR_MS] * 2
    assert [status for status, _ in statuses(reading)].count("suspended") == 1, "one change, however often it is tried"


def test_it_recovers_by_itself_with_what_has_come_meanwhile(reading: Home) -> None:
    run(reading)
    shutil.move(elsewhere(reading), lost(reading))
    assert run(reading)["events"].outcome is Outcome.SKIPPED
    reading.clock.step(MINUTE_MS)
    assert run(reading)["events"].inserted == 2
    events = shown(reading)
    assert (events.status, events.since_ms, events.reason) == ("running", NOW_MS + MINUTE_MS, None)
    assert not reading.deployment.objects.read()
    shutil.move(lost(reading), elsewhere(reading))
    run(reading)
    resting = shown(reading)
    assert (resting.retry_at_ms or 0) - reading.clock.now_ms() == MINUTE_MS, "the count began anew"


def test_a_clock_that_was_ahead_keeps_nothing_from_running(reading: Home) -> None:
    reading.clock.step(30 * 24 * HOUR_MS)
    run(reading)
    reading.clock.step(-30 * 24 * HOUR_MS)
    assert run(reading)["events"].outcome is Outcome.FAILED, "it was tried"
    assert (shown(reading).since_ms, shown(reading).retry_at_ms) == (NOW_MS, NOW_MS + 2 * MINUTE_MS)
    reading.clock.step(2 * MINUTE_MS)
    shutil.move(elsewhere(reading), lost(reading))
    assert run(reading)["events"].outcome is Outcome.APPENDED
    assert shown(reading).status == "running"


def test_a_person_who_names_it_runs_it_at_once(reading: Home) -> None:
    run(reading)
    assert run(reading, "events")["events"].outcome is Outcome.FAILED
    assert reading.deployment.objects.read()["events"].attempts == 2
    shutil.move(elsewhere(reading), lost(reading))
    assert run(reading, "events")["events"].inserted == 2
    assert shown(reading).status == "running"


def test_whose_run_a_time_limit_ends_is_suspended_and_what_comes_after_waits(reading: Home) -> None:
    class TimeIsUp(BaseException):
        pass

    def take_long(_: object) -> CollectionReport:
        raise TimeIsUp("5 hours")

    chosen = choose_ingested(reading.deployment, [])
    for limits, expected in (((TimeIsUp,), nullcontext()), ((), pytest.raises(TimeIsUp))):
        deployment = replace(reading.deployment, time_limits=limits)
        with expected:
            report, _ = run_one_by_one(
                "ingest", chosen, take_long, deployment=deployment, clock=reading.clock, started_at=0
            )
    report = settle(deployment, report)
    record_run(deployment, report, clock=reading.clock)
    assert [each.outcome for each in report.collections.values()] == [Outcome.FAILED, Outcome.SKIPPED]
    assert "with 'events'" in report.collections["others"].details[SKIPPED_BECAUSE]
    assert (shown(reading).status, shown(reading).reason) == (
        "suspended",
        "OutOfTime: the time limit ended the run after 0 s: 5 hours",
    )
    assert list(reading.deployment.objects.read()) == ["events"]


def test_only_the_ingest_rests(reading: Home) -> None:
    run(reading)
    (declaration,) = choose_ingested(reading.deployment, ["events"])
    for operation, outcome in (
        ("ingest", Outcome.SKIPPED),
        ("persist", Outcome.UNCHANGED),
        ("flush", Outcome.UNCHANGED),
    ):
        report, _ = run_one_by_one(
            operation,
            [declaration],
            lambda _: CollectionReport(outcome=Outcome.UNCHANGED),
            deployment=reading.deployment,
            clock=reading.clock,
            started_at=0,
        )
        assert report.collections["events"].outcome is outcome


def test_what_is_paused_meanwhile_stays_paused(reading: Home) -> None:
    run(reading)
    reading.deployment.objects.pause(["events"], why="a check")
    reading.clock.step(HOUR_MS)
    assert run(reading, "events")["events"].outcome is Outcome.SKIPPED
    report = failed_run(ErrorReport(kind="Odd", message="m"))
    assert settle(reading.deployment, report) == report, "a run that had begun before the pause"
    assert shown(reading).status == "paused"


def test_what_is_dropped_meanwhile_is_not_suspended(reading: Home) -> None:
    reading.deployment.objects.drop(reading.deployment.objects.look(["events"]))
    report = failed_run(ErrorReport(kind="Odd", message="m"))
    assert settle(reading.deployment, report) == report
    assert not reading.deployment.objects.read()


def test_what_is_made_anew_under_the_name_is_not_suspended(reading: Home) -> None:
    report = failed_run(ErrorReport.of(Dropped.meanwhile("events")))
    assert settle(reading.deployment, report) == report
    assert not reading.deployment.objects.read()


def test_who_is_fenced_or_overtaken_and_who_is_read_only_suspend_nothing(reading: Home) -> None:
    for error in (FencedByEpoch("another one leads"), UpperMismatch(1, 2)):
        overtaken = failed_run(ErrorReport.of(error))
        assert settle(reading.deployment, overtaken) == overtaken
    reading.switch(Mode.READ_ONLY)
    failed = failed_run(ErrorReport(kind="Odd", message="m"))
    assert settle(reading.deployment, failed) == failed
    assert not reading.deployment.objects.read()
    reading.switch(Mode.READ_WRITE)
    assert SUSPENDED in settle(reading.deployment, failed).collections["events"].details, "nothing else was in the way"


def test_what_does_not_follow_a_source_is_not_suspended(reading: Home) -> None:
    report = replace(failed_run(ErrorReport(kind="Odd", message="m")), operation="reconcile")
    assert settle(reading.deployment, report) == report


def test_what_cannot_be_stored_does_not_fail_the_run(reading: Home, caplog: pytest.LogCaptureFixture) -> None:
    deployment = reading.deployment
    reading.of_generation(2).switch(Mode.READ_WRITE)
    report = failed_run(ErrorReport(kind="Odd", message="m"))
    assert settle(deployment, report) == report
    assert "not stored: FencedByGeneration" in caplog.text


def failed_run(error: ErrorReport) -> Report:
    reports = {"events": CollectionReport(outcome=Outcome.FAILED, error=error, object_id=1)}
    return Report(operation="ingest", started_at=0, finished_at=1, generation=1, collections=reports)
