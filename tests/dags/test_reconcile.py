"""The whole DAG in this process: what its params do, and that what is right already is left untouched."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.airflow_runs import states
from tests.support.declared import EVENTS, HEAD, PLANES

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags
    from tests.support.warm_driver.start import WarmSpark

pytestmark = pytest.mark.spark

DAYS = range(1, 6)


@pytest.fixture
def reconcile(dags: Dags) -> Dags:
    dags.home.write_lines("planes", "tailnum,seats", *(f"N{number},{number}" for number in range(100, 120)))
    write_events(dags, "old")
    dags.home.declare(HEAD + EVENTS + PLANES)
    return dags


def write_events(dags: Dags, value: str) -> None:
    dags.home.write_lines(
        "events", "day,id,value", *(f"2026-01-0{day},{id_},{value}" for day in DAYS for id_ in (1, 2))
    )


def results(ran: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    return {result["name"]: result for result in ran["list_results"][1]}


def run(dags: Dags, **conf: Any) -> dict[str, Any]:
    """Run the DAG, which must succeed, and return the results by collection."""
    ran = dags.run("reconcile_collections", **conf)
    check_success(ran)
    return results(ran)


def check_success(ran: dict[str, tuple[str, Any]]) -> None:
    """Check that no task failed; Spark is left out where nothing has changed, and no event starts these runs."""
    others = {task: state for task, state in states(ran).items() if state != "success"}
    without_events = {"list_events": "skipped", "show_event": "skipped"}
    assert others in (without_events, {"reconcile": "skipped", **without_events})


def data_files(dags: Dags, name: str) -> set[str]:
    table = dags.home.shards.iceberg.load_table(("collections", name))
    return {task.file.file_path for task in table.scan().plan_files()}


def test_second_run_changes_nothing(reconcile: Dags, warm: WarmSpark) -> None:
    with warm.submitting_for_real():
        first = run(reconcile, collections=["planes"])["planes"]
    assert (first["outcome"], first["inserted"]) == ("corrected", 20)
    files = data_files(reconcile, "planes")
    second = run(reconcile, collections=["planes"])["planes"]
    assert (second["outcome"], second["inserted"], second["strategy"]) == ("unchanged", 0, "same-source")
    assert second["upper"] > first["upper"], "a run that changes nothing still moves the frontier"
    assert reconcile.home.upper("planes") == second["upper"]
    assert data_files(reconcile, "planes") == files


def test_interval_repairs_its_slice_alone_and_twice_is_once(reconcile: Dags) -> None:
    run(reconcile)
    assert len(reconcile.home.user_rows("events")) == 10, "without an interval a run takes in everything"
    write_events(reconcile, "new")
    for inserted in (2, 0):
        fourth = datetime(2026, 1, 4, tzinfo=UTC)  # whose run is about the day before
        ran = reconcile.run("reconcile_collections", logical_date=fourth, collections=["events"])
        check_success(ran)
        assert results(ran)["events"]["inserted"] == inserted
        repaired = {str(row["day"]) for row in reconcile.home.user_rows("events") if row["value"] == "new"}
        assert repaired == {"2026-01-03"}


def test_dry_run_reports_and_changes_nothing(reconcile: Dags) -> None:
    run(reconcile, collections=["planes"])
    before = reconcile.home.user_rows("planes"), reconcile.home.upper("planes")
    reconcile.home.write_lines("planes", "tailnum,seats", "N100,100")
    ran = reconcile.run("reconcile_collections", collections=["planes"], dry_run=True)
    assert set(results(ran)) == {"planes"}
    assert (reconcile.home.user_rows("planes"), reconcile.home.upper("planes")) == before


def test_guard_refuses_until_a_run_overrides_it(reconcile: Dags) -> None:
    run(reconcile, collections=["planes"])
    reconcile.home.write_lines("planes", "tailnum,seats", "N100,100")
    refused = reconcile.run("reconcile_collections", collections=["planes"])
    assert states(refused)["show_result0"] == "failed"
    assert len(reconcile.home.user_rows("planes")) == 20
    run(reconcile, collections=["planes"], max_delete_ratio=1.0)
    assert reconcile.home.user_rows("planes") == [{"tailnum": "N100", "seats": 100}]


def test_unknown_collection_fails_before_spark_starts(reconcile: Dags) -> None:
    ended = states(reconcile.run("reconcile_collections", collections=["plane"]))
    assert (ended["prepare"], ended["reconcile"]) == ("failed", "upstream_failed"), "no JVM for a misspelt name"


def test_maintenance_changes_no_contents(reconcile: Dags) -> None:
    run(reconcile)
    before = {name: reconcile.home.user_rows(name) for name in ("events", "planes")}
    maintained = reconcile.run("maintain_collections")
    others = {name: state for name, state in states(maintained).items() if state != "success"}
    assert others == {"announce_changes": "skipped"}
    assert {maintained[f"show_result{number}"][1]["name"] for number in (0, 1)} == set(before)
    assert {name: reconcile.home.user_rows(name) for name in before} == before
