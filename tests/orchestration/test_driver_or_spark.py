"""What a branch task did is told, whatever becomes of the task that does the rest."""

from __future__ import annotations

from typing import Any

from tests.orchestration.test_retry_policy import report_of
from tidemark.errors import ConfigurationInvalid
from tidemark.exit_codes import ExitCode
from tidemark.orchestration.driver_or_spark import check_left, list_both
from tidemark.report import CollectionReport, Outcome, Report

SMALL = report_of(operation="ingest", small=None)


def told(left: list[str], *others: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    results = list_both.function(SMALL, left, list(others))
    return [(result["name"], result["outcome"], result["operation"]) for result in results]


def test_reports_are_joined_by_name() -> None:
    large = report_of(operation="ingest", large=None)
    assert told(["large"], None, large) == [("large", "corrected", "ingest"), ("small", "corrected", "ingest")]
    assert told([], None, None) == [("small", "corrected", "ingest")]


def test_an_application_that_failed_takes_nothing_from_others() -> None:
    assert told(["large"], None) == [("large", "failed", "ingest"), ("small", "corrected", "ingest")]


def test_an_application_that_cannot_run_fails_for_what_is_left_to_it() -> None:
    small = CollectionReport(outcome=Outcome.APPENDED)
    done = Report(operation="ingest", started_at=1, finished_at=2, generation=1, collections={"small": small})

    def check() -> None:
        raise ConfigurationInvalid("no jars")

    report, left = check_left(done, ["large"], check)
    assert (report.collections["small"], left) == (small, [])
    assert report.collections["large"].exit_code == ExitCode.CONFIGURATION
    assert check_left(done, [], check) == (done, [])
    assert check_left(done, ["large"], lambda: None) == (done, ["large"])
