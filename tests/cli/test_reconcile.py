"""`tidemark plan`: what it prints and how it exits, for reports made up here; no JVM."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.cli import reconcile as running
from tidemark.cli.app import app
from tidemark.errors import GuardRefused
from tidemark.exit_codes import ExitCode
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Callable

    Plan = Callable[[CollectionReport], int]

corrected = partial(CollectionReport, outcome=Outcome.CORRECTED)
unchanged = partial(CollectionReport, outcome=Outcome.UNCHANGED)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run `plan --detailed-exitcode` where the run reports what is given, and return its exit code."""

    def plan(report: CollectionReport) -> int:
        def run(*_arguments: Any, **_more: Any) -> Report:
            return Report(operation="plan", started_at=0, finished_at=1, generation=1, collections={"planes": report})

        monkeypatch.setattr(running, "_run", run)
        return app(["plan", "--detailed-exitcode"])

    return plan


def test_foreign_rows_that_a_run_would_drop_are_something_to_correct(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    found = "1 foreign commits, +0 rows: 4 written, 4 taken away"
    assert plan(corrected(details={"foreign_commits": found})) == ExitCode.DIFFERENCES
    assert f"planes: written by another engine: {found}" in capsys.readouterr().out


def test_foreign_rows_of_the_change_log_are_told_though_the_contents_are_right(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    found = "1 foreign commits, +1 rows: 1 written, 0 taken away"
    assert plan(unchanged(details={"foreign_updates": found})) == ExitCode.OK
    assert f"planes: written by another engine on the change log: {found}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("fallback", "planes: the whole source was read: because"),
        ("compared_because", "planes: the whole source was read: because"),
        ("unnoticed", "planes: because"),
    ],
)
def test_why_all_rows_were_compared_and_what_that_found_is_told(
    plan: Plan, capsys: pytest.CaptureFixture[str], detail: str, told: str
) -> None:
    assert plan(unchanged(details={detail: "because"})) == ExitCode.OK
    assert told in capsys.readouterr().out.splitlines()


def test_examples_show_old_and_new_values_side_by_side(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"k": 1, "v": 2.5, "w": float("nan"), "x": None, "y": "old"}
    sample = {
        "updated": [{"before": row, "after": {**row, "v": None, "y": "new"}}],
        "retracted": [{**row, "k": 3}],
        "inserted": [{**row, "k": 4}],
    }
    plan(corrected(inserted=2, retracted=2, details={"sample": sample}))
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert printed[-4:] == [
        ["k", "v", "w", "x", "y"],
        ["~", "1", "2.5", "→", "NULL", "NaN", "NULL", "old", "→", "new"],
        ["-", "3", "2.5", "NaN", "NULL", "old"],
        ["+", "4", "2.5", "NaN", "NULL", "old"],
    ]


def test_differences_are_something_to_correct_and_their_absence_is_not(plan: Plan) -> None:
    assert plan(corrected(inserted=1)) == ExitCode.DIFFERENCES
    assert plan(unchanged()) == ExitCode.OK


def test_refusal_is_said_before_differences(plan: Plan) -> None:
    error = ErrorReport.of(GuardRefused("no"))
    assert plan(CollectionReport(outcome=Outcome.REFUSED, inserted=1, error=error)) == ExitCode.REFUSED
