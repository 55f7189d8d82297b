"""A real scheduler, in the order of a user's week; each test goes on from where the one before it left."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.conftest import MAINTAIN, RECONCILE, RUN_SECONDS

if TYPE_CHECKING:
    from tests.live.conftest import Installation
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark]

GOOD = ("airlines", "events", "planes", "weather")


def run_manually(client: AirflowClient, **conf: Any) -> str:
    run_id = client.trigger(RECONCILE, conf=conf)
    client.wait(RECONCILE, run_id, timeout_s=RUN_SECONDS)
    return run_id


def states(client: AirflowClient, run_id: str) -> dict[str, str]:
    return {label: instance["state"] for label, instance in client.tasks(RECONCILE, run_id).items()}


def outcomes(client: AirflowClient, run_id: str) -> dict[str, str]:
    report = client.xcom(RECONCILE, run_id, "reconcile")
    return {name: result["outcome"] for name, result in report["collections"].items()}


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
    client: AirflowClient, scheduled_run: str, installation: Installation
) -> None:
    seen = states(client, scheduled_run)
    assert {label: state for label, state in seen.items() if state != "success"} == {"show_result[broken]": "failed"}
    assert {f"show_result[{name}]" for name in GOOD} < set(seen)
    assert [row["carrier"] for row in installation.rows("airlines")] == ["AA", "UA"]
    assert len(installation.rows("planes")) == 20
    assert len(installation.rows("weather")) == 3


def test_good_collections_emit_asset_events_with_their_frontiers(
    client: AirflowClient, scheduled_run: str, installation: Installation
) -> None:
    events = client.request("GET", "assets/events", params={"limit": 100})["asset_events"]
    found = {event["name"]: event["extra"] for event in events if event["source_run_id"] == scheduled_run}
    assert set(found) == {f"tidemark_{name}" for name in GOOD}
    assert found["tidemark_planes"]["upper"] == installation.upper("planes")
    assert found["tidemark_planes"]["inserted"] == 20


def test_cleared_run_repairs_the_bad_one_and_leaves_the_others_untouched(
    client: AirflowClient, scheduled_run: str, installation: Installation
) -> None:
    installation.write("broken", "id", "1")
    before = {name: installation.rows(name) for name in GOOD}
    client.clear(RECONCILE, scheduled_run)
    assert client.wait(RECONCILE, scheduled_run, timeout_s=RUN_SECONDS) == "success"
    assert installation.rows("broken") == [{"id": 1}]
    assert {name: installation.rows(name) for name in GOOD} == before
    assert outcomes(client, scheduled_run) == {**dict.fromkeys(GOOD, "unchanged"), "broken": "corrected"}


def test_manual_run_without_interval_takes_in_everything(client: AirflowClient, installation: Installation) -> None:
    run_id = run_manually(client, collections=["events"])
    assert states(client, run_id)["show_result[events]"] == "success"
    assert len(installation.rows("events")) == 10, "a scheduled run touches yesterday only, this one all days"


def test_dry_run_reports_and_changes_nothing(client: AirflowClient, installation: Installation) -> None:
    before = installation.rows("planes"), installation.upper("planes")
    installation.write("planes", "tailnum,seats", "N100,100")
    run_id = run_manually(client, collections=["planes"], dry_run=True)
    report = client.xcom(RECONCILE, run_id, "reconcile")
    assert set(report["collections"]) == {"planes"}
    assert (installation.rows("planes"), installation.upper("planes")) == before


def test_guard_refuses_until_a_manual_run_overrides_it(client: AirflowClient, installation: Installation) -> None:
    refused = run_manually(client, collections=["planes"])
    assert states(client, refused)["show_result[planes]"] == "failed"
    assert len(installation.rows("planes")) == 20
    allowed = run_manually(client, collections=["planes"], max_delete_ratio=1.0)
    assert states(client, allowed)["show_result[planes]"] == "success"
    assert installation.rows("planes") == [{"tailnum": "N100", "seats": 100}]


def test_unknown_collection_fails_at_once_with_near_matches(client: AirflowClient) -> None:
    run_id = run_manually(client, collections=["plane"])
    tasks = client.tasks(RECONCILE, run_id)
    assert (tasks["prepare"]["state"], tasks["prepare"]["try_number"]) == ("failed", 1)
    assert tasks["reconcile"]["state"] == "upstream_failed", "no JVM is started for a misspelt name"


def test_invalid_params_are_refused_before_a_run_exists(client: AirflowClient) -> None:
    from tidemark.errors import NotPossible

    with pytest.raises(NotPossible, match="400"):
        client.trigger(RECONCILE, conf={"max_delete_ratio": 7})


def test_backfill_repairs_its_days_alone_and_twice_is_once(client: AirflowClient, installation: Installation) -> None:
    edited = [f"2013-01-0{day},{id_},new" for day in range(1, 6) for id_ in (1, 2)]
    installation.write("events", "day,id,value", *edited)
    first, last = datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 4, tzinfo=UTC)
    repaired = [
        {"day": f"2013-01-0{day}", "value": "new" if 2 <= day <= 4 else "old"} for day in range(1, 6) for _ in (1, 2)
    ]
    for reprocess, inserted in (("none", 2), ("completed", 0)):
        runs = backfill(client, first, last, reprocess)
        assert len(runs) == 3
        for run_id in runs:
            assert client.xcom(RECONCILE, run_id, "reconcile")["collections"]["events"]["inserted"] == inserted
        rows = [{"day": str(row["day"]), "value": row["value"]} for row in installation.rows("events")]
        assert sorted(rows, key=repr) == sorted(repaired, key=repr)


def backfill(client: AirflowClient, first: datetime, last: datetime, reprocess: str) -> list[str]:
    identifier = client.backfill(
        RECONCILE, start=first, end=last, reprocess=reprocess, conf={"collections": ["events"]}
    )
    client.wait_until(
        lambda: client.request("GET", f"backfills/{identifier}")["completed_at"],
        what="the end of the backfill",
        timeout_s=4 * RUN_SECONDS,
    )
    runs = [run for run in client.runs(RECONCILE) if run["run_type"] == "backfill"]
    assert {run["state"] for run in runs} == {"success"}
    return [str(run["dag_run_id"]) for run in runs]


def test_maintenance_changes_no_contents(client: AirflowClient, installation: Installation) -> None:
    names = (*GOOD, "broken")
    before = {name: installation.rows(name) for name in names}
    client.unpause(MAINTAIN)
    runs = client.wait_until(lambda: client.runs(MAINTAIN), what="a scheduled run", timeout_s=60)
    run_id = str(runs[0]["dag_run_id"])
    assert client.wait(MAINTAIN, run_id, timeout_s=RUN_SECONDS) == "success"
    shown = {label for label in client.tasks(MAINTAIN, run_id) if label.startswith("show_result")}
    assert shown == {f"show_result[{name}]" for name in names}
    assert {name: installation.rows(name) for name in names} == before


def test_status_page_shows_what_is_stored_and_what_happened_last(client: AirflowClient) -> None:
    status = client.get_page("/tidemark/status").json()
    assert {each["name"] for each in status["collections"]} == {*GOOD, "broken"}
    assert status["reports"][RECONCILE]["operation"] == "reconcile"
    assert "planes" in client.get_page("/tidemark/").text
