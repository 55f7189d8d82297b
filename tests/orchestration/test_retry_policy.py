from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import (
    ConfigurationInvalid,
    ConflictsUnsettled,
    FencedByEpoch,
    FencedByGeneration,
    GuardRefused,
    HardLimit,
    InputMissing,
    NotLed,
    StaleState,
    TidemarkError,
    UnknownCollection,
    Unreachable,
)
from tidemark.exit_codes import ExitCode
from tidemark.orchestration.retry_policy import (
    FENCED_DELAY,
    NOT_LED_DELAY,
    RETRY_POLICY,
    ApplicationLost,
    application_failure,
    as_task_failure,
)
from tidemark.report import SUSPENDED, CollectionReport, ErrorReport, Outcome, Report


def report_of(
    error: TidemarkError | None = None, *, operation: str = "reconcile", **collections: TidemarkError | None
) -> dict[str, Any]:
    return Report(
        operation=operation,
        started_at=1,
        finished_at=2,
        generation=1,
        collections={
            name: CollectionReport(
                outcome=Outcome.FAILED if failure else Outcome.CORRECTED,
                error=ErrorReport.of(failure) if failure else None,
            )
            for name, failure in collections.items()
        },
        error=ErrorReport.of(error) if error else None,
    ).to_json()


def test_run_without_failures_succeeds() -> None:
    assert application_failure(0, report_of(planes=None), may_retry=True) is None


@pytest.mark.parametrize("error", [GuardRefused("too many"), InputMissing("no file"), FencedByGeneration("newer")])
def test_failure_of_one_collection_leaves_the_run_to_the_others(error: TidemarkError) -> None:
    report = report_of(planes=error, flights=None)
    assert application_failure(error.exit_code, report, may_retry=True) is None


@pytest.mark.parametrize("error", [ConflictsUnsettled("busy"), Unreachable("gone"), FencedByEpoch("newer attempt")])
def test_transient_failure_of_one_collection_is_tried_again_then_left_to_it(error: TidemarkError) -> None:
    report = report_of(airlines=GuardRefused("hides the transient one"), planes=error, flights=None)
    failure = application_failure(error.exit_code, report, may_retry=True)
    assert RETRY_POLICY.evaluate(failure, 1, 2).action is RetryAction.RETRY  # type: ignore[arg-type]
    assert "planes" in str(failure)
    assert application_failure(error.exit_code, report, may_retry=False) is None


@pytest.mark.parametrize("operation", ["append", "flush", "reconcile"])
def test_what_a_later_try_tells_anew_is_tried_again_for_one_collection(operation: str) -> None:
    report = report_of(operation=operation, planes=ConflictsUnsettled("busy"), flights=None)
    assert isinstance(application_failure(75, report, may_retry=True, others_wait=True), StaleState)


@pytest.mark.parametrize("operation", ["ingest", "persist", "maintain", "sink"])
def test_what_others_did_once_is_told_at_once(operation: str) -> None:
    report = report_of(operation=operation, planes=ConflictsUnsettled("busy"), flights=None)
    assert application_failure(75, report, may_retry=True) is None
    nothing_done = report_of(operation=operation, planes=ConflictsUnsettled("busy"), flights=GuardRefused("too many"))
    nothing_done["collections"]["paused"] = CollectionReport(outcome=Outcome.SKIPPED).to_json()
    assert isinstance(application_failure(65, nothing_done, may_retry=True), StaleState)
    assert application_failure(65, nothing_done, may_retry=True, others_wait=True) is None


def test_a_hard_limit_is_left_to_a_later_run() -> None:
    full = HardLimit("3 rows are open")
    assert full.exit_code == ExitCode.TRANSIENT
    assert application_failure(75, report_of(operation="ingest", planes=full), may_retry=True) is None
    assert RETRY_POLICY.evaluate(full, 1, 2).action is RetryAction.FAIL


def test_what_is_suspended_is_tried_again_by_a_later_run_and_others_do_not_wait() -> None:
    report = report_of(planes=Unreachable("gone"), flights=None)
    report["collections"]["planes"]["details"] = {SUSPENDED: "suspended since …"}
    assert application_failure(69, report, may_retry=True) is None


@pytest.mark.parametrize("error", [Unreachable("no route"), ConflictsUnsettled("busy"), FencedByEpoch("newer attempt")])
def test_whole_run_that_may_do_better_next_time_is_retried(error: TidemarkError) -> None:
    failure = application_failure(error.exit_code, report_of(error), may_retry=True)
    assert isinstance(failure, (Unreachable, StaleState, FencedByEpoch))
    assert RETRY_POLICY.evaluate(failure, 1, 2).action is RetryAction.RETRY


def test_migration_fences_first_and_then_keeps_tasks_waiting() -> None:
    fenced, waits = (
        RETRY_POLICY.evaluate(application_failure(error.exit_code, report_of(error), may_retry=True), 1, 2)  # type: ignore[arg-type]
        for error in (FencedByEpoch("opened since"), NotLed.at(7, "stash"))
    )
    assert (fenced.action, waits.action) == (RetryAction.RETRY, RetryAction.RETRY)
    assert (fenced.retry_delay, waits.retry_delay) == (FENCED_DELAY, NOT_LED_DELAY)


@pytest.mark.parametrize(
    "error",
    [
        UnknownCollection.named("plane", ["planes"]),
        ConfigurationInvalid("no such setting"),
        FencedByGeneration("a newer deployment leads"),
        TidemarkError("unexpected"),
    ],
)
def test_whole_run_that_cannot_do_better_fails_at_once(error: TidemarkError) -> None:
    failure = application_failure(error.exit_code, report_of(error), may_retry=True)
    assert isinstance(failure, AirflowFailException)
    assert str(error) in str(failure)
    assert error.hint in str(failure)


@pytest.mark.parametrize(("code", "final"), [(64, True), (70, True), (1, False), (137, False), (-9, False)])
def test_application_that_left_no_report(code: int, final: bool) -> None:  # noqa: FBT001 -- a table of cases
    failure = application_failure(code, None, may_retry=True)
    assert isinstance(failure, AirflowFailException if final else StaleState)
    assert str(code) in str(failure)


@pytest.mark.parametrize("fences", [True, False])
def test_a_lost_application_is_said_to_be_fenced_only_if_it_is(*, fences: bool) -> None:
    failure = application_failure(137, None, may_retry=True, fences_on_retry=fences)
    assert isinstance(failure, ApplicationLost)
    assert ("a new try raises the token first" in failure.hint) is fences


def test_unexpected_error_of_a_collection_is_its_own() -> None:
    report = report_of(planes=None)
    report["collections"]["planes"]["error"] = {"kind": "KeyError", "message": "'x'", "hint": "", "sample": []}
    assert application_failure(70, report, may_retry=True) is None


def test_preflight_errors_are_final_unless_they_may_pass() -> None:
    assert isinstance(as_task_failure(ConfigurationInvalid("no pool", hint="make one")), AirflowFailException)
    assert isinstance(as_task_failure(Unreachable("no route")), Unreachable)


def test_fenced_attempt_starts_over_sooner_than_a_transient_one() -> None:
    fenced = RETRY_POLICY.evaluate(FencedByEpoch("newer attempt"), 1, 2)
    transient = RETRY_POLICY.evaluate(Unreachable("no route"), 1, 2)
    assert fenced.retry_delay is not None
    assert transient.retry_delay is None  # the task's own backoff
