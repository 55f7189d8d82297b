"""What the events that start a run become."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from tests.collections.reconcile.test_triggered import SHOP
from tidemark.collections.reconcile.choosing.triggered import watch_asset
from tidemark.orchestration.tasks.reconcile import choose_by_events, reconcile_arguments
from tidemark.orchestration.triggering_events import is_started_by_events, list_events, read_events


def event(asset: str, *, second: int = 0, payload: Any = None, source: str = "") -> AssetEventDagRunReferenceResult:
    dag_id, task_id, run_id = source.split("/") if source else (None, None, None)
    return AssetEventDagRunReferenceResult.model_validate(
        {
            "asset": {"name": asset, "uri": asset, "extra": {}},
            "extra": {} if payload is None else {"from_trigger": True, "payload": payload},
            "source_dag_id": dag_id,
            "source_task_id": task_id,
            "source_run_id": run_id,
            "source_map_index": None,
            "source_aliases": [{"name": "an_alias"}] if source else [],
            "timestamp": datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC),
        }
    )


def handed(*events: AssetEventDagRunReferenceResult) -> TriggeringAssetEventsAccessor:
    """Return the events as Airflow hands them to a task."""
    return TriggeringAssetEventsAccessor.build(events)


def test_events_are_told_in_words_in_order_and_once() -> None:
    seen = {"seen": "1 new (/in/b.csv); 2 files, 3 B there"}
    events = handed(
        event("tidemark_source:orders", second=3, payload=seen),
        event("deliveries", second=1, source="produce/load/manual__1"),
        event("price_list", second=2),
        event("price_list", second=4),
    )
    assert [str(each) for each in read_events(events)] == [
        "deliveries: produce.load, run manual__1",
        "price_list",
        "tidemark_source:orders: 1 new (/in/b.csv); 2 files, 3 B there",
    ]
    assert list_events.function(triggering_asset_events=events)[1] == "price_list"
    assert read_events(None) == []


@pytest.mark.parametrize("run_type", list(DagRunType))
def test_only_assets_start_a_run_by_events(run_type: DagRunType) -> None:
    started = SimpleNamespace(run_type=run_type)
    assert is_started_by_events(started) == (run_type is DagRunType.ASSET_TRIGGERED)
    assert not is_started_by_events(None)


def test_a_run_by_events_is_about_the_sources_of_these_and_what_reads_them() -> None:
    events, concerned = choose_by_events(SHOP, handed(event(watch_asset("orders"), payload={"seen": "1 new"})))
    assert list(concerned) == ["orders", "totals", "all_totals"]
    assert {str(each) for found in concerned.values() for each in found} == {str(events[0])}


def test_an_event_that_nobody_reads_leaves_nothing_to_do() -> None:
    events, concerned = choose_by_events(SHOP, handed(event("somebody_elses")))
    assert (len(events), concerned) == (1, {})


def test_a_run_whose_events_airflow_has_lost_is_about_all_sources_with_events() -> None:
    _, concerned = choose_by_events(SHOP, handed())
    assert set(concerned) == set(SHOP) - {"unrelated", "log"}


def test_what_a_data_interval_cuts_is_left_to_the_clock() -> None:
    cut = SHOP["totals"].model_copy(update={"source": SHOP["totals"].source.model_copy(update={"sql": "{start}"})})  # type: ignore[union-attr]
    _, concerned = choose_by_events(SHOP | {"totals": cut}, handed(event(watch_asset("orders"))))
    assert list(concerned) == ["orders", "all_totals"]


def test_the_application_gets_the_events() -> None:
    events = read_events(handed(event("deliveries")))
    arguments = reconcile_arguments(["stock"], {}, None, events=events)
    assert arguments == ["stock", "--triggered-by", '[{"asset": "deliveries", "seen": ""}]']
