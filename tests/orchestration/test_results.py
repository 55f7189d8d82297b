from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from tidemark.orchestration.results import CHANGED, COLLECTIONS, announce_changes, published_facts, show, show_result
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
        ("replay", "unchanged", {}),
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


def test_a_source_that_changed_without_a_trace_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    show(result("reconcile", "corrected", unnoticed="it has other rows"))
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["weather: it has other rows"]


@pytest.mark.parametrize("operation", ["maintain", "replay"])
def test_rows_that_a_retention_let_go_or_a_replay_replaced_are_told(operation: str) -> None:
    facts = published_facts(result(operation, "corrected"))
    assert facts is not None
    assert (facts["outcome"], facts["upper"]) == ("corrected", 2)


@pytest.mark.parametrize("outcome", ["corrected", "unchanged"])
def test_reconcile_tells_its_frontiers(outcome: str) -> None:
    facts = published_facts(result("reconcile", outcome))
    assert facts is not None
    assert (facts["lower"], facts["upper"], "ranges" in facts) == (1, 2, False)


def test_each_closed_or_reopened_partition_is_an_event_of_its_own() -> None:
    closed = [
        {"partition": "2013-01-03T04", "rows": 3, "late_rows": 1},
        {"partition": "2013-01-03T05", "rows": 2, "late_rows": 0},
    ]
    events = OutletEventAccessors()
    reopened = [{"partition": "2013-01-03T03", "late_rows": 1}]
    show_result.function(result("ingest", "unchanged", closed=closed, reopened=reopened), outlet_events=events)
    found = [(event.dest_asset_key.name, event.extra) for event in events[COLLECTIONS].asset_alias_events]
    assert found[:2] == [("tidemark_weather_closed", each) for each in closed]
    assert found[2:] == [("tidemark_weather_reopened", each) for each in reopened]


def test_a_run_announces_all_that_it_changed_at_once() -> None:
    changed, other, staged = (result("reconcile", outcome) for outcome in ("corrected", "unchanged", "staged"))
    events = OutletEventAccessors()
    results = [changed, other | {"name": "planes"}, staged | {"name": "events"}]
    assert announce_changes.function(results, outlet_events=events) == ["planes", "weather"]
    assert events[CHANGED].extra == {
        "collections": {"planes": published_facts(other), "weather": published_facts(changed)}
    }
    with pytest.raises(AirflowSkipException, match="no collection has changed"):
        announce_changes.function([staged])


def test_what_a_flush_has_published_is_announced_although_it_failed_with_the_rest() -> None:
    published, failed = result("flush", "flushed", ranges=RANGES), result("flush", "failed")
    events = OutletEventAccessors()
    assert announce_changes.function([published, failed], outlet_events=events) == ["weather"]
    assert events[CHANGED].extra == {"collections": {"weather": published_facts(published)}}
