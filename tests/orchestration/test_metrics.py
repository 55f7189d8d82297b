"""The measures of runs, as a server of StatsD gets them from the task that shows a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tidemark.orchestration.metrics import measures_of
from tidemark.orchestration.results import show
from tidemark.report import CollectionReport, ErrorReport, Outcome

if TYPE_CHECKING:
    from tests.orchestration.conftest import StatsdServer


def result(operation: str, outcome: Outcome, **report: Any) -> dict[str, Any]:
    whole = CollectionReport(outcome=outcome, **report)
    return {"name": "planes", "operation": operation, "generation": 1, **whole.to_json()}


def test_a_result_that_is_shown_is_measured(statsd: StatsdServer) -> None:
    details = {"attempts": 3, "sequencers": {"0": {"lag_ms": 5}, "1": {"lag_ms": 7}}}
    show(result("ingest", Outcome.APPENDED, inserted=4, retracted=1, seconds=2.5, details=details))
    tags = "object=planes,operation=ingest"
    assert statsd.received() == {
        f"tidemark.run.seconds,{tags}": "2.5|g",
        f"tidemark.run.inserted,{tags}": "4|g",
        f"tidemark.run.retracted,{tags}": "1|g",
        f"tidemark.run.attempts,{tags}": "3|g",
        f"tidemark.run.lag_ms,{tags}": "7|g",
        f"tidemark.run.conflicts,{tags}": "2|c",
        f"tidemark.run.ended,{tags},outcome=appended": "1|c",
    }


def test_a_failure_is_counted_before_the_task_fails(statsd: StatsdServer) -> None:
    failed = result("reconcile", Outcome.FAILED, error=ErrorReport(kind="Unreachable", message="away"))
    with pytest.raises(AirflowFailException):
        show(failed)
    assert "tidemark.run.ended,object=planes,operation=reconcile,outcome=failed,error=Unreachable" in statsd.received()


def test_what_is_not_known_is_not_sent() -> None:
    assert "lag_ms" not in measures_of(result("reconcile", Outcome.CORRECTED))
    assert measures_of({"name": "planes", "operation": "reconcile", "outcome": "failed"}) == {"attempts": 1}
