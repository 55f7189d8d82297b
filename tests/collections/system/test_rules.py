"""Which status a run gives an object, and which measures: exhaustively, without a store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.collections.deployment import CatalogObject, StatusKind
from tidemark.collections.objects.standing import ObjectState, Standing
from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS
from tidemark.collections.system.rules import CARRYING, Status, StatusChange, stalled, statistics_of, status_after
from tidemark.errors import Dropped
from tidemark.exit_codes import ExitCode
from tidemark.report import CollectionReport, ErrorReport, Outcome

KNOWN = CatalogObject(StatusKind.INGESTION, 7)
UPKEEP = ("persist", "maintain", "compact", "retain", "unload")
DONE = set(Outcome) - {Outcome.SKIPPED, Outcome.REFUSED, Outcome.FAILED}


def refused(code: ExitCode) -> CollectionReport:
    error = ErrorReport(kind="Odd", message="it is odd", hint="make it even", exit_code=code)
    return CollectionReport(outcome=Outcome.FAILED, error=error)


@pytest.mark.parametrize("operation", sorted(CARRYING))
@pytest.mark.parametrize("outcome", sorted(DONE))
def test_an_object_that_rows_came_into_runs(operation: str, outcome: Outcome) -> None:
    assert status_after(operation, CollectionReport(outcome=outcome)) == StatusChange(status=Status.RUNNING)


@pytest.mark.parametrize("operation", sorted(CARRYING))
def test_an_object_that_was_left_out_is_as_before(operation: str) -> None:
    assert status_after(operation, CollectionReport(outcome=Outcome.SKIPPED)) is None


@pytest.mark.parametrize("code", [code for code in ExitCode if code not in {ExitCode.OK, ExitCode.DIFFERENCES}])
def test_failures_stall_unless_they_are_about_the_caller(code: ExitCode) -> None:
    change = status_after("ingest", refused(code))
    if code in {ExitCode.USAGE, ExitCode.FENCED}:
        assert change is None
        return
    assert change is not None
    assert (change.status, change.error) == (Status.STALLED, "Odd: it is odd")
    assert json.loads(change.details or "") == {
        "hints": ["make it even"],
        "namespaced": {"operation": "ingest", "exit_code": str(int(code))},
    }


def test_the_failure_of_a_dropped_object_says_nothing_of_what_has_its_name_now() -> None:
    result = CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(Dropped.meanwhile("events")))
    assert status_after("ingest", result) is None
    assert statistics_of("ingest", "events", KNOWN, result) is None


@pytest.mark.parametrize("operation", UPKEEP)
def test_upkeep_says_nothing_about_whether_rows_come(operation: str) -> None:
    assert status_after(operation, CollectionReport(outcome=Outcome.UNCHANGED)) is None
    assert status_after(operation, refused(ExitCode.BUG)) is None


@pytest.mark.parametrize("operation", [*sorted(CARRYING), *UPKEEP])
@pytest.mark.parametrize("result", [CollectionReport(outcome=Outcome.SKIPPED), refused(ExitCode.UNREACHABLE)])
def test_what_rests_has_the_status_that_the_catalog_says(operation: str, result: CollectionReport) -> None:
    paused = Standing(state=ObjectState.PAUSED, since_ms=0, who="ada", reason="a check")
    change = status_after(operation, result, paused)
    assert change is not None
    assert (change.status, change.error, change.namespaced) == (Status.PAUSED, "a check", {"who": "ada"})
    suspended = Standing(
        state=ObjectState.SUSPENDED, since_ms=0, error="Odd", reason="it is odd", attempts=2, retry_at_ms=60_000
    )
    change = status_after(operation, result, suspended)
    assert change is not None
    assert (change.status, change.error) == (Status.SUSPENDED, "Odd: it is odd")
    assert change.namespaced == {"attempts": "2", "retry_at": "1970-01-01 00:01:00"}
    assert change.hints == (("make it even",) if result.error else ())


def test_no_details_are_null() -> None:
    assert StatusChange(status=Status.RUNNING).details is None
    without_hint = stalled("ingest", ErrorReport(kind="K", message="m", exit_code=ExitCode.BUG))
    assert "hints" not in json.loads(without_hint.details or "")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (CollectionReport(outcome=Outcome.SKIPPED), None),
        (CollectionReport(outcome=Outcome.CORRECTED, inserted=3, retracted=2), (5, None, None, None)),
        (
            CollectionReport(
                outcome=Outcome.APPENDED,
                inserted=2,
                details={"sequencers": {"0": {"lag_ms": 5, "read_bytes": 10}, "1": {"lag_ms": 9, "read_bytes": 1}}},
            ),
            (2, 11, 9, None),
        ),
        (CollectionReport(outcome=Outcome.APPENDED, details={"bytes": 4, "lag_ms": 0}), (0, 4, 0, None)),
        (refused(ExitCode.BUG), (0, None, None, "Odd")),
    ],
)
def test_measures_of_a_run(result: CollectionReport, expected: tuple[Any, ...] | None) -> None:
    measured = statistics_of("ingest", "events", KNOWN, result)
    if expected is None:
        assert measured is None
        return
    assert measured is not None
    assert tuple(measured[name] for name in ("rows", "bytes", "lag_ms", "error")) == expected
    assert (measured["object"], measured["object_id"], measured["kind"]) == ("events", 7, "ingestion")


def test_what_is_measured_are_the_declared_columns() -> None:
    measured = statistics_of("ingest", "events", KNOWN, CollectionReport(outcome=Outcome.UNCHANGED)) or {}
    declared = {column.name for column in SYSTEM_DECLARATIONS["system_statistics"].known_columns or ()}
    assert declared == measured.keys() | {"measured_at", "generation"}
