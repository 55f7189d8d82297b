"""A real scheduler, in the order of a user's week; each test goes on from where the one before it left.

Here is what needs a scheduler; what params do is tested in tests/dags.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.live.conftest import RECONCILE, RUN_SECONDS

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark]

GOOD = ("airlines", "events", "planes", "weather")


def states(client: AirflowClient, run_id: str) -> dict[str, str]:
    return {label: instance["state"] for label, instance in client.tasks(RECONCILE, run_id).items()}


def outcomes(client: AirflowClient, run_id: str) -> dict[str, str]:
    return {result["name"]: result["outcome"] for result in client.xcom(RECONCILE, run_id, "list_results")}


@pytest.fixture(scope="module")
def scheduled_run(client: AirflowClient) -> str:
    """The run that the schedule starts as soon as the DAG is unpaused: the last complete interval."""
    client.unpause(RECONCILE)
    runs = client.wait_until(lambda: client.runs(RECONCILE), what="a scheduled run", timeout_s=60)
    assert runs[0]["run_type"] == "scheduled"
    run_id = str(runs[0]["dag_run_id"])
    client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS)
    return run_id


def test_one_bad_collection_fails_alone_and_the_grid_shows_which(
    client: AirflowClient, scheduled_run: str, installation: Home
) -> None:
    seen = states(client, scheduled_run)
    assert {label: state for label, state in seen.items() if state != "success"} == {
        "show_result[broken]": "failed",
        "list_events": "skipped",  # the clock has started it
        "show_event": "skipped",
    }
    assert {f"show_result[{name}]" for name in GOOD} < set(seen)
    assert [row["carrier"] for row in installation.user_rows("airlines")] == ["AA", "UA"]
    assert len(installation.user_rows("planes")) == 20
    assert len(installation.user_rows("weather")) == 3


def test_good_collections_emit_asset_events_with_their_frontiers(
    client: AirflowClient, scheduled_run: str, installation: Home
) -> None:
    events = client.asset_events(timeout_s=RUN_SECONDS)
    found = {event["name"]: event["extra"] for event in events if event["source_run_id"] == scheduled_run}
    assert set(found) == {f"tidemark_{name}" for name in (*GOOD, "changed")}
    assert found["tidemark_planes"]["upper"] == installation.upper("planes")
    assert found["tidemark_planes"]["inserted"] == 20


def test_cleared_run_repairs_the_bad_one_and_leaves_the_others_untouched(
    client: AirflowClient, scheduled_run: str, installation: Home
) -> None:
    installation.write_lines("broken", "id", "1")
    before = {name: installation.user_rows(name) for name in GOOD}
    client.clear(RECONCILE, scheduled_run)
    assert client.wait(RECONCILE, scheduled_run, timeout_s=RUN_SECONDS) == "success"
    assert installation.user_rows("broken") == [{"id": 1}]
    assert {name: installation.user_rows(name) for name in GOOD} == before
    assert outcomes(client, scheduled_run) == {**dict.fromkeys(GOOD, "unchanged"), "broken": "corrected"}


def test_manual_run_without_interval_takes_in_everything(client: AirflowClient, installation: Home) -> None:
    run_id = client.trigger(RECONCILE, conf={"collections": ["events"]})
    assert client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS) == "success"
    assert states(client, run_id)["show_result[events]"] == "success"
    assert len(installation.user_rows("events")) == 10, "a scheduled run touches yesterday only, this one all days"


def test_invalid_params_are_refused_before_a_run_exists(client: AirflowClient) -> None:
    from tidemark.errors import NotPossible

    with pytest.raises(NotPossible, match="400"):
        client.trigger(RECONCILE, conf={"max_delete_ratio": 7})


def test_backfill_repairs_its_days_alone(client: AirflowClient, installation: Home) -> None:
    installation.write_lines(
        "events", "day,id,value", *(f"2013-01-0{day},{id_},new" for day in range(1, 6) for id_ in (1, 2))
    )
    identifier = client.backfill(
        RECONCILE,
        start=datetime(2013, 1, 2, tzinfo=UTC),
        end=datetime(2013, 1, 3, tzinfo=UTC),
        conf={"collections": ["events"]},
    )
    client.wait_until(
        lambda: client.request("GET", f"backfills/{identifier}")["completed_at"],
        what="the end of the backfill",
        timeout_s=4 * RUN_SECONDS,
    )
    runs = [run for run in client.runs(RECONCILE) if run["run_type"] == "backfill"]
    assert [run["state"] for run in runs] == ["success", "success"]
    for run in runs:
        (result,) = client.xcom(RECONCILE, run["dag_run_id"], "list_results")
        assert result["inserted"] == 2
    repaired = {str(row["day"]) for row in installation.user_rows("events") if row["value"] == "new"}
    assert repaired == {"2013-01-02", "2013-01-03"}


def test_status_page_shows_what_is_stored_and_what_happened_last(client: AirflowClient) -> None:
    status = client.get_page("/tidemark/status").json()
    assert {collection["name"] for collection in status["collections"]} == {*GOOD, "broken"}
    assert status["reports"][RECONCILE]["operation"] == "reconcile"
    overview = client.get_page("/tidemark/api/v1/overview").json()
    assert "planes" in {each["name"] for each in overview["objects"]}
