"""What runs record, and how a reader gets it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.collections.system.declarations import STATUS
from tidemark.collections.system.recorder import record_run
from tidemark.errors import GuardRefused, Unreachable
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from tests.support.homes import Home

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
OK = CollectionReport(outcome=Outcome.CORRECTED, inserted=2, retracted=1, seconds=0.5)
DOWN = CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(Unreachable("no answer", hint="start it")))
GUARDED = CollectionReport(outcome=Outcome.REFUSED, error=ErrorReport.of(GuardRefused("all rows would go")))


def run_report(result: CollectionReport, *names: str, operation: str = "reconcile") -> Report:
    reports = dict.fromkeys(names or ("planes",), result)
    return Report(operation=operation, started_at=0, finished_at=1, generation=1, collections=reports)


def record(home: Home, result: CollectionReport, *names: str, operation: str = "reconcile") -> None:
    """Record as a process of its own, a second after the one before."""
    home.clock.step(1_000)
    record_run(home.deployment, run_report(result, *names, operation=operation), clock=home.clock)


def stored(home: Home, name: str) -> list[dict[str, Any]]:
    """The rows by their time, as every reader gets them by the name alone."""
    rows: list[dict[str, Any]] = read_arrow(home.shards.open(name)).to_pylist()
    return sorted(rows, key=lambda row: row.get("occurred_at") or row["measured_at"])


def statuses(home: Home) -> list[tuple[str, str | None]]:
    return [(row["status"], row["error"]) for row in stored(home, STATUS)]
