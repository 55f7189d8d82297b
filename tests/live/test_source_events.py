"""A real scheduler and a real triggerer: a source that changes is reconciled at once, with no clock involved."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.conftest import DECLARATIONS, RECONCILE, RUN_SECONDS
from tools.local_airflow.client import FINISHED

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark]

WITH_EVENTS = """  orders:
    kind: differential
    key: [id]
    source: {format: csv, path: orders, options: {header: true}, schema: "id int, amount int", watch: 1s}
  totals:
    kind: differential
    schema: "orders bigint"
    source: {inputs: {o: {collection: orders}}, sql: "SELECT count(*) AS orders FROM o"}
  shipped:
    kind: differential
    key: [id]
    source: {format: csv, path: shipped.csv, options: {header: true}, schema: "id int", asset: shipments}
"""
SOURCE = "tidemark_source:orders"


def drop(installation: Home, name: str, *lines: str) -> None:
    """Let a file appear in the watched folder."""
    (installation.folder / "orders" / name).write_text("\n".join(["id,amount", *lines, ""]), encoding="utf-8")


def ended_runs(client: AirflowClient) -> dict[str, dict[str, Any]]:
    """Return all runs, by id, once none is under way and an event has started one."""

    def look() -> dict[str, dict[str, Any]]:
        runs = {run["dag_run_id"]: run for run in client.runs(RECONCILE)}
        is_over = all(run["state"] in FINISHED for run in runs.values())
        by_events = any(run["run_type"] == "asset_triggered" for run in runs.values())
        return runs if is_over and by_events else {}

    found: dict[str, dict[str, Any]] = client.wait_until(look, what="the end of all runs", timeout_s=RUN_SECONDS)
    return found


def next_run(client: AirflowClient, before: dict[str, dict[str, Any]]) -> str:
    """Return the one run that began since, once it has ended well; an event has started it."""

    def look() -> list[dict[str, Any]]:
        return [run for run in client.runs(RECONCILE) if run["dag_run_id"] not in before]

    [run] = client.wait_until(look, what="a run that an event starts", timeout_s=RUN_SECONDS)
    assert run["run_type"] == "asset_triggered"
    run_id = str(run["dag_run_id"])
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"
    return run_id


def results(client: AirflowClient, run_id: str) -> dict[str, dict[str, Any]]:
    return {result["name"]: result for result in client.xcom(RECONCILE, run_id, "list_results")}


@pytest.fixture(scope="module")
def sources(client: AirflowClient, installation: Home) -> Home:
    """One order, which is there already when somebody begins to watch."""
    (installation.folder / "orders").mkdir()
    drop(installation, "1.csv", "1,10")
    installation.write_lines("shipped", "id", "1")
    installation.write_lines("broken", "id", "1")  # or the run that the clock starts first would be tried again
    installation.declare(DECLARATIONS + WITH_EVENTS)
    client.unpause(RECONCILE)
    # Airflow knows the assets of a schedule, and starts their watchers, when it parses the file of the DAG.
    client.request("PUT", f"parseDagFile/{client.request('GET', f'dags/{RECONCILE}')['file_token']}")
    return installation


def test_a_file_that_is_dropped_is_in_the_collection_and_everybody_sees_why(
    client: AirflowClient, sources: Home
) -> None:
    before = ended_runs(client)
    assert sources.user_rows("orders") == [{"id": 1, "amount": 10}], "what was there before the first look came, too"

    drop(sources, "2.csv", "2,20", "3,30")
    run_id = next_run(client, before)
    assert [row["id"] for row in sources.user_rows("orders")] == [1, 2, 3]
    assert sources.user_rows("totals") == [{"orders": 3}]

    done = results(client, run_id)
    assert set(done) == {"orders", "totals"}, "nothing else was looked at"
    [event] = done["orders"]["details"]["triggered_by"]
    assert event.startswith(f"{SOURCE}: 1 new (file:///")
    assert "orders/2.csv" in event
    assert done["totals"]["details"]["triggered_by"] == [event]
    assert client.tasks(RECONCILE, run_id)[f"show_event[{event}]"]["state"] == "success"
    [told] = client.asset_events(f"dags/{RECONCILE}/dagRuns/{run_id}/upstreamAssetEvents", timeout_s=RUN_SECONDS)
    assert (told["name"], told["extra"]["payload"]["new"]) == (SOURCE, 1)


def test_the_event_of_an_asset_that_a_source_names_is_about_that_source_alone(
    client: AirflowClient, sources: Home
) -> None:
    before = ended_runs(client)
    sources.write_lines("shipped", "id", "1", "2")
    [asset] = client.request("GET", "assets", params={"name_pattern": "shipments"})["assets"]
    client.request("POST", "assets/events", json={"asset_id": asset["id"], "extra": {}})
    run_id = next_run(client, before)
    assert sources.user_rows("shipped") == [{"id": 1}, {"id": 2}]
    assert set(results(client, run_id)) == {"shipped"}
    assert "show_event[shipments]" in client.tasks(RECONCILE, run_id)


def test_a_backfill_of_a_dag_with_events_repairs_its_days_alone(client: AirflowClient, sources: Home) -> None:
    ended_runs(client)
    day = datetime(2013, 1, 4, tzinfo=UTC)  # which no other test has had repaired: Airflow makes no second run
    sources.write_lines("events", "day,id,value", *(f"2013-01-0{number},9,anew" for number in range(1, 6)))
    conf = {"collections": ["events"], "max_delete_ratio": 1}
    identifier = client.backfill(RECONCILE, start=day, end=day, conf=conf)
    client.wait_until(
        lambda: client.request("GET", f"backfills/{identifier}")["completed_at"],
        what="the end of the backfill",
        timeout_s=RUN_SECONDS,
    )
    [run] = [run for run in client.runs(RECONCILE) if run["run_type"] == "backfill" and run["conf"] == conf]
    assert (run["state"], run["data_interval_start"][:10], run["data_interval_end"][:10]) == (
        "success",
        "2013-01-04",
        "2013-01-05",
    )
    assert {str(row["day"]) for row in sources.user_rows("events") if row["value"] == "anew"} == {"2013-01-04"}
