"""Which collections an event is about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.declared import csv_declaration
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.reconcile.choosing.triggered import (
    LONGEST_TOLD,
    SourceEvent,
    find_concerned,
    parse_events,
    tell_events,
    watch_asset,
    write_events,
)
from tidemark.report import CollectionReport, Outcome, Report


def over_csv(name: str, **events: Any) -> Declaration:
    declaration = csv_declaration(name)
    assert declaration.source is not None
    source = declaration.source.model_dump(mode="json", by_alias=True, exclude_none=True)
    return csv_declaration(name, source=source | events)


def over(name: str, *reads: str, **files: Any) -> Declaration:
    inputs: dict[str, Any] = {read: {"collection": read} for read in reads}
    if files:
        inputs["f"] = {"format": "parquet", "path": "/nowhere/f"} | files
    return Declaration.model_validate(
        {"name": name, "kind": "differential", "source": {"sql": "SELECT 1", "inputs": inputs}}
    )


def declared(*declarations: Declaration) -> dict[str, Declaration]:
    return {declaration.name: declaration for declaration in declarations}


def concerned(declarations: dict[str, Declaration], *assets: str) -> dict[str, list[str]]:
    found = find_concerned(declarations, [SourceEvent(asset) for asset in assets])
    return {name: [event.asset for event in events] for name, events in found.items()}


SHOP = declared(
    over("all_totals", "totals", "stock"),
    over("totals", "orders", "prices"),
    over_csv("orders", watch="5s"),
    over_csv("prices", asset="price_list"),
    over_csv("stock", asset="deliveries"),
    over_csv("unrelated"),
    over("rates", asset="price_list"),
    Declaration.model_validate({"name": "log", "kind": "append-only", "schema": "a int"}),
)


def test_an_event_is_about_what_names_its_asset_and_all_that_reads_this_inputs_first() -> None:
    found = concerned(SHOP, "price_list")
    assert found == {name: ["price_list"] for name in ("prices", "rates", "totals", "all_totals")}
    assert list(found).index("prices") < list(found).index("totals") < list(found).index("all_totals")


def test_a_watched_source_has_an_asset_of_its_own() -> None:
    assert set(concerned(SHOP, watch_asset("orders"))) == {"orders", "totals", "all_totals"}
    assert concerned(SHOP, "orders", "tidemark_orders") == {}, "the collection's own asset is another one"


def test_each_collection_knows_the_events_that_are_about_it_alone() -> None:
    found = concerned(SHOP, "deliveries", "price_list", "deliveries")
    assert found["stock"] == ["deliveries"]
    assert found["prices"] == ["price_list"]
    assert sorted(found["all_totals"]) == ["deliveries", "price_list"]
    assert "orders" not in found


def test_an_event_that_no_source_names_is_about_nothing() -> None:
    assert concerned(SHOP, "somebody_elses") == {}
    assert concerned(SHOP) == {}


def test_the_report_tells_the_events_of_each_collection() -> None:
    collections = {name: CollectionReport(outcome=Outcome.UNCHANGED, details={"a": 1}) for name in ("stock", "other")}
    report = Report(operation="reconcile", started_at=0, finished_at=1, generation=1, collections=collections)
    told = tell_events(report, {"stock": [SourceEvent("deliveries", "one came"), SourceEvent("deliveries")]})
    assert told.collections["stock"].details == {"a": 1, "triggered_by": ["deliveries: one came", "deliveries"]}
    assert told.collections["other"] == report.collections["other"]


def test_a_long_event_is_cut_and_survives_the_way_to_the_application() -> None:
    event = SourceEvent("deliveries", "x" * 2 * LONGEST_TOLD)
    assert len(str(event)) == LONGEST_TOLD
    assert parse_events(write_events([event])) == [event]
    with pytest.raises(ValueError, match="Expecting"):
        parse_events("deliveries")


def test_no_more_events_are_written_than_an_argument_holds() -> None:
    events = [SourceEvent("a" * 1500, "é" * 250)] * 100
    assert 0 < len(parse_events(write_events(events))) < 100
    assert len(write_events(events)) < 1 << 16
