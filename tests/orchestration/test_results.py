from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.orchestration.results import published_facts, show_result
from tidemark.report import CollectionReport, Outcome

RANGES = {"source": [[0, 10]]}


def result(operation: str, outcome: str, **details: Any) -> dict[str, Any]:
    report = CollectionReport(outcome=Outcome(outcome), lower=1, upper=2, inserted=3, details=details)
    return {"name": "weather", "operation": operation, "generation": 1, **report.to_json()}


@pytest.mark.parametrize(
    ("operation", "outcome", "details"),
    [
        ("append", "staged", {"staged_ranges": RANGES}),
        ("append", "skipped", {}),
        ("append", "forwarded", {"forwarded_ranges": RANGES}),
        ("flush", "unchanged", {}),
        ("reconcile", "staged", {}),
        ("reconcile", "skipped", {"skipped_because": "it reads orders"}),
        ("maintain", "unchanged", {}),
    ],
)
def test_what_moved_nothing_is_no_event(operation: str, outcome: str, details: dict[str, Any]) -> None:
    assert published_facts(result(operation, outcome, **details)) is None


@pytest.mark.parametrize(
    ("operation", "outcome"), [("append", "appended"), ("append", "skipped"), ("flush", "flushed")]
)
def test_published_ranges_are_told_by_whatever_try_came_last(operation: str, outcome: str) -> None:
    facts = published_facts(result(operation, outcome, ranges=RANGES))
    assert facts is not None
    assert (facts["ranges"], facts["upper"], facts["outcome"]) == (RANGES, 2, outcome)


def test_collection_that_was_skipped_is_shown_so_with_the_reason() -> None:
    skipped = result("reconcile", "skipped", skipped_because="it reads orders, which failed")
    with pytest.raises(AirflowSkipException, match="weather: it reads orders, which failed"):
        show_result.function(skipped)
    assert show_result.function(result("append", "skipped"), outlet_events={}) == result("append", "skipped")


def test_rows_that_a_retention_let_go_are_told() -> None:
    facts = published_facts(result("maintain", "corrected"))
    assert facts is not None
    assert (facts["outcome"], facts["upper"]) == ("corrected", 2)


@pytest.mark.parametrize("outcome", ["corrected", "unchanged"])
def test_reconcile_tells_its_frontiers(outcome: str) -> None:
    facts = published_facts(result("reconcile", outcome))
    assert facts is not None
    assert (facts["lower"], facts["upper"], "ranges" in facts) == (1, 2, False)
