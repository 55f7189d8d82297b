"""What people see of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.cli.console import print_failures
from tidemark.errors import GuardRefused
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    import pytest


def test_rows_that_a_guard_refused_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"tailnum": "N1", "rows": 2}, {"tailnum": None}]
    failed = ErrorReport.of(GuardRefused("2 keys are there twice", hint="repair the source", sample=rows))
    collections = {"planes": CollectionReport(outcome=Outcome.FAILED, error=failed)}
    print_failures(Report(operation="reconcile", started_at=0, finished_at=1, generation=1, collections=collections))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:]] == [["tailnum", "rows"], ["N1", "2"], ["NULL"]]
