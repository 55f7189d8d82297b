"""The JSON interface of the page: each view over real stores, errors, and that nothing is read twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.damage import damage_metadata
from tests.support.page_home import DAY_MS, PageHome, corrected
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.protocol import FENCE_STASH
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.errors import Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard import state_reader
from tidemark.orchestration.status_page import observed
from tidemark.orchestration.status_page.history import DAYS
from tidemark.report import CollectionReport, ErrorReport, Outcome

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from tidemark.settings import Settings

API = "/api/v1"


@pytest.fixture
def page(home: Settings) -> PageHome:
    return PageHome(home, now_ms=SystemClock().now_ms())


def ask(client: TestClient, path: str) -> dict[str, Any]:
    answer = client.get(f"{API}/{path}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def needs(client: TestClient) -> list[tuple[str, str]]:
    return [(need["what"], need["name"]) for need in ask(client, "overview")["needs"]]


def test_overview_has_each_object_with_its_last_run(logged_in: TestClient, page: PageHome) -> None:
    overview = ask(logged_in, "overview")
    assert overview["needs"] == []
    flights, planes = overview["objects"]
    assert (planes["name"], planes["kind"], planes["status"], planes["rows"]) == ("planes", "collection", "running", 3)
    assert (planes["last_run_ms"], planes["seconds"]) == (page.now_ms - DAY_MS, 1.5)
    assert planes["upper"] == page.home.upper("planes")
    assert [len(each["rows_by_day"]) for each in (flights, planes)] == [DAYS, DAYS]
    assert planes["rows_by_day"][-4:] == [9, 6, 3, 0]


def test_what_needs_a_person_comes_with_why_since_when_and_what_to_do(logged_in: TestClient, page: PageHome) -> None:
    page.refuse_flights()
    page.carry_planes()
    page.change_planes()
    objects = page.home.deployment.objects
    objects.pause(["planes"], why="<b>a check</b>")
    away = ErrorReport(kind="Unreachable", message="no answer", exit_code=ExitCode.UNREACHABLE)
    objects.suspend("copies", page.home.registry.objects()["copies"].id, away)
    page.home.apply(page.home.declaration("ailing", key=["id"]))
    damage_metadata(page.home.shard("ailing"), "cut")
    found = ask(logged_in, "overview")["needs"]
    assert [need["what"] for need in found][:3] == ["damaged", "failed", "suspended"]
    by_what = {need["what"]: need for need in found}
    assert by_what["failed"]["why"] == "GuardRefused: 3 of 4 rows would go, and max_delete_ratio is 0.5"
    assert by_what["failed"]["since_ms"] == page.now_ms
    assert "max-delete-ratio" in by_what["failed"]["hint"]
    assert (by_what["suspended"]["name"], by_what["suspended"]["why"]) == ("copies", "Unreachable: no answer")
    assert by_what["paused"]["why"].endswith("<b>a check</b>"), "the page shows it as text"
    assert by_what["damaged"]["hint"] == "tidemark repair ailing"


def test_a_collection_whose_runs_stay_away_is_late(logged_in: TestClient, home: Settings) -> None:
    now_ms = SystemClock().now_ms()
    PageHome(home, now_ms=now_ms - 9 * DAY_MS, days=4)
    late = ask(logged_in, "overview")["needs"]
    assert [(need["what"], need["name"]) for need in late] == [("late", "flights"), ("late", "planes")]
    assert late[0]["since_ms"] == now_ms - 9 * DAY_MS, "a day after the last run, as usual"
    assert late[0]["why"] == "no run for 10 d; usually there is one every 24 h"
    assert late[0]["hint"] == "see in Airflow whether `reconcile_collections` is paused, or what it waits for"


def test_while_the_leader_is_read_only_that_is_the_one_need(logged_in: TestClient, home: Settings) -> None:
    now_ms = SystemClock().now_ms()
    page = PageHome(home, now_ms=now_ms - 9 * DAY_MS, days=4)
    page.home.clock.step(3 * DAY_MS)
    page.home.switch(Mode.READ_ONLY)
    (need,) = ask(logged_in, "overview")["needs"]
    assert (need["what"], need["name"], need["since_ms"]) == ("read-only", "deployment 1", page.home.clock.now_ms())
    assert need["why"] == "tests made it read-only: a test; what runs bring is staged, and no run is recorded"
    assert "`tidemark mode read-write` in deployment 1" in need["hint"]
    page.home.clock.step(5 * DAY_MS)
    page.home.switch(Mode.READ_WRITE)
    late = ask(logged_in, "overview")["needs"]
    assert [need["what"] for need in late] == ["late", "late"]
    assert late[0]["since_ms"] == now_ms - 4 * DAY_MS, "a day after the switch"
    assert late[0]["why"].startswith("no run for 5 d, since the deployment became read-write;")
    page.home.clock.step(4 * DAY_MS)
    page.home.switch(Mode.READ_ONLY)
    page.home.switch(Mode.READ_WRITE)
    assert needs(logged_in) == [], "the first run after that mode is not due yet"


def test_a_promotion_that_died_in_the_middle_leaves_a_deployment_that_only_stages(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.home.of_generation(2).open()
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    (need,) = ask(logged_in, "overview")["needs"]
    assert (need["what"], need["name"], need["since_ms"]) == ("read-only", "deployment 2", None)
    assert need["hint"] == "run `promote_deployment` again in deployment 2"


def test_a_sink_whose_last_run_left_much_is_late(logged_in: TestClient, page: PageHome) -> None:
    page.carry_planes()
    page.record("sink", days_ago=1, copies=CollectionReport(outcome=Outcome.CARRIED, details={"lag_ms": 2 * 3_600_000}))
    (need,) = ask(logged_in, "overview")["needs"]
    assert (need["what"], need["name"], need["since_ms"]) == ("late", "copies", page.now_ms - DAY_MS - 2 * 3_600_000)
    assert need["why"] == "what it had not carried at the end of its last run, 24 h ago, had waited for 2 h"
    assert need["hint"] == "run `run_sinks` now, or more often if it stays late"


def test_collection_tells_what_it_is_and_who_reads_it(logged_in: TestClient, page: PageHome) -> None:
    page.carry_planes()
    planes = ask(logged_in, "collections/planes")
    assert [(column["name"], column["type"], column["system"]) for column in planes["schema"]][:3] == [
        ("id", "long", False),
        ("name", "string", False),
        ("_time", "long", True),
    ]
    assert planes["guards"]["max_delete_ratio"] == 0.25
    assert [run["rows"] for run in planes["runs"]] == [9, 6, 3]
    assert planes["history"][-1]["upper"] == planes["upper"]
    assert [hold["reader"] for hold in planes["holds"]] == ["sink-copies"]
    assert {(edge[0].split(":")[0], edge[1].split(":")[0]) for edge in planes["lineage"]["edges"]} == {
        ("source", "collection"),
        ("collection", "sink"),
        ("sink", "target"),
    }
    assert planes["dags"][0] == "reconcile_collections"
    copies = ask(logged_in, "collections/copies")
    assert (copies["kind"], copies["layout"]) == ("sink", None)


def test_corrections_stand_before_and_after_each_other(logged_in: TestClient, page: PageHome) -> None:
    page.change_planes()
    removed, changed, loaded = ask(logged_in, "collections/planes/corrections")["corrections"]
    assert (removed["inserted"], removed["retracted"]) == (0, 1)
    assert (changed["time_ms"], changed["inserted"], changed["retracted"]) == (page.now_ms - DAY_MS // 2, 2, 1)
    assert changed["samples"] == [
        {"before": {"id": 2, "name": "Airbus A320"}, "after": {"id": 2, "name": "Airbus A321"}},
        {"before": None, "after": {"id": 4, "name": "<b>Concorde</b>"}},
    ]
    assert loaded["inserted"] == 3


def test_contents_are_those_of_now_or_of_a_time(logged_in: TestClient, page: PageHome) -> None:
    page.change_planes()
    now = ask(logged_in, "collections/planes/contents")
    assert (now["columns"], len(now["rows"])) == (["id", "name"], 3)
    then = ask(logged_in, f"collections/planes/contents?as_of={page.now_ms - DAY_MS}&limit=2")
    assert len(then["rows"]) == 2
    assert all(name != "<b>Concorde</b>" for _, name in then["rows"])


def test_a_refused_run_shows_the_rows_that_were_refused(logged_in: TestClient, page: PageHome) -> None:
    page.refuse_flights()
    (report,) = ask(logged_in, "collections/flights")["reports"]
    assert (report["dag_id"], report["outcome"], report["error"]["kind"]) == (
        "reconcile_collections",
        "refused",
        "GuardRefused",
    )
    assert report["error"]["sample"] == [{"id": 7, "name": "<b>AA 7</b>"}]


def test_a_failed_run_is_over_once_a_later_one_has_carried_rows(logged_in: TestClient, page: PageHome) -> None:
    page.refuse_flights()
    refused = page.settings.reports / "reconcile_collections.json"
    compacted = refused.with_name("maintain_collections.json")
    compacted.write_text(refused.read_text().replace('"reconcile"', '"maintain"'))

    def over() -> dict[str, bool]:
        reports = ask(logged_in, "collections/flights")["reports"]
        return {report["dag_id"]: report["is_over"] for report in reports}

    assert over() == {"maintain_collections": False, "reconcile_collections": False}
    page.record("flush", days_ago=-0.1, flights=corrected(1))
    assert over() == {"maintain_collections": False, "reconcile_collections": True}, "a flush compacts nothing"


def test_links_lead_to_the_tasks_that_changed_a_collection(logged_in: TestClient, page: PageHome) -> None:
    scheduled, manual = ask(logged_in, "collections/planes/tasks")["tasks"]
    run = "dags/reconcile_collections/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00"
    assert (scheduled["run_path"], scheduled["path"]) == (run, f"{run}/tasks/show_result/mapped/3")
    assert manual["path"] == "dags/reconcile_collections/runs/manual__1/tasks/show_result"
    assert ask(logged_in, "collections/flights/tasks") == {"tasks": []}


def test_staged_batches_say_since_when_and_what_they_wait_for(logged_in: TestClient, page: PageHome) -> None:
    assert ask(logged_in, "staged")["batches"] == []
    page.stage_weather()
    shown = ask(logged_in, "staged")
    assert (shown["mode"], shown["mode_why"]) == ("read-only", "a test")
    assert [(each["collection"], each["range"], each["rows"]) for each in shown["batches"]] == [
        ("weather", [0, 10], 10),
        ("weather", [10, 20], 10),
    ]
    assert shown["batches"][0]["waits_for"] == "1 staged by deployment 1 wait until deployment 1 flushes"
    assert len(ask(logged_in, "collections/weather")["staged_batches"]) == 2


def test_buffers_show_how_far_each_collection_is(logged_in: TestClient, page: PageHome) -> None:
    page.ingest_events()
    shown = ask(logged_in, "buffers")
    (buffer,) = shown["buffers"]
    assert [(each["collection"], each["sequencer"], each["lag"]) for each in buffer["progress"]] == [
        ("events", 0, 3),
        ("events", 1, 0),
    ]
    lags = shown["lags"]["events"]
    assert {number: len(points) for number, points in lags.items()} == {"0": 2, "1": 2}, "after the ingest, and now"
    assert lags["0"][0] == [page.now_ms, 0]
    assert lags["0"][1][1] > 0 == lags["1"][1][1]
    page.home.declare_reader("others", source={"buffer": "unset"})
    by_name = {each["name"]: each for each in ask(logged_in, "buffers")["buffers"]}
    assert by_name["unset"]["error"]["kind"] == "ConfigurationInvalid"


def test_partitions_by_event_time_have_their_rows(logged_in: TestClient, page: PageHome) -> None:
    page.ingest_visits()
    found = ask(logged_in, "collections/visits")["partitions"]
    assert [(each["partition"], each["rows"], each["late_rows"]) for each in found] == [
        ("2023-01-01", 2, 0),
        ("2023-01-02", 1, 0),
    ]


def test_catalog_tells_the_truth_the_leader_and_who_changed_what(logged_in: TestClient, page: PageHome) -> None:
    page.home.deployment.objects.pause(["planes"], why="a check")
    shown = ask(logged_in, "catalog")
    assert (shown["truth"], shown["leader"]["generation"], shown["problems"]) == ("stash", 1, [])
    newest = shown["audit"][0]
    assert (newest["did"], newest["kind"], newest["what"], newest["why"]) == (
        "pause",
        "collection",
        "planes",
        "a check",
    )


def test_deployments_say_whether_this_one_may_be_promoted(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(logged_in, "deployments")["state"] == "is-leader"
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    shown = ask(logged_in, "deployments")
    assert (shown["generation"], shown["leader"], shown["ready"]) == (2, 1, False)
    whys = {each["why"] for each in shown["objects"]}
    assert whys == {"no run of this deployment has looked at it yet, or not for two days"}
    page.stand_by()
    ready = ask(logged_in, "deployments")
    assert (ready["state"], ready["ready"]) == ("ready-to-promote", True)
    assert [(each["name"], each["state"]) for each in ready["objects"]] == [
        ("flights", "caught up"),
        ("planes", "caught up"),
    ]


def test_deployments_that_stand_by_are_listed_with_their_last_run(logged_in: TestClient, page: PageHome) -> None:
    assert ask(logged_in, "deployments")["standing_by"] == []
    at_ms = page.stand_by()
    shown = ask(logged_in, "deployments")
    assert shown["standing_by"] == [{"generation": 2, "last_run_ms": at_ms}]
    assert [each["generation"] for each in shown["deployments"]] == [1], "which the catalog knows"


def test_a_promotion_in_the_middle_is_told_to_both_deployments(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.home.of_generation(2).open()
    replaced = ask(logged_in, "deployments")
    assert (replaced["state"], replaced["leader"], replaced["ready"]) == ("deposed", 2, False)
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    shown = ask(logged_in, "deployments")
    assert (shown["state"], shown["leader"], shown["obstacle"]) == ("promoting", 2, None)


def test_while_the_catalog_is_opened_nobody_can_tell_who_may_be_promoted(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.home.die_after(Direction.MIGRATE, FENCE_STASH)
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    shown = ask(logged_in, "deployments")
    assert (shown["state"], shown["leader"], shown["ready"]) == (None, 1, False)
    assert shown["obstacle"]["kind"] == "NotLed"
    assert "tidemark catalog open" in shown["obstacle"]["hint"]


def test_lineage_has_all_nodes_and_edges(logged_in: TestClient, page: PageHome) -> None:
    lineage = ask(logged_in, "lineage")
    assert {node["id"] for node in lineage["nodes"]} >= {"collection:planes", "collection:flights"}
    assert all(len(edge) == 2 for edge in lineage["edges"])


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("collections/plane", 404, "UnknownObject"),
        ("collections/plane/contents", 404, "UnknownCollection"),
        ("collections/<b>/corrections", 404, "UnknownCollection"),
        ("collections/planes/contents?as_of=tomorrow", 400, "UsageError"),
        ("collections/planes/contents?limit=1000", 400, "UsageError"),
        ("collections/planes/contents?as_of=9999999999999", 400, "NotYetAvailable"),
        ("collection", 404, "UsageError"),
        ("collections/planes/content", 404, "UsageError"),
    ],
)
def test_errors_say_what_is_wrong(logged_in: TestClient, page: PageHome, path: str, status: int, kind: str) -> None:
    answer = logged_in.get(f"{API}/{path}")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind)
    assert answer.json()["error"]["message"]


def test_what_nobody_expected_is_told_in_one_line(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug\nwith a second line")

    monkeypatch.setattr(observed, "ask_catalog", fail)
    answer = logged_in.get(f"{API}/overview")
    error = answer.json()["error"]
    assert (answer.status_code, error["kind"], error["message"]) == (500, "ZeroDivisionError", "a bug")
    assert "the log of Airflow's API server" in error["hint"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_a_stored_report_without_collections_is_left_out(logged_in: TestClient, page: PageHome) -> None:
    page.refuse_flights()
    (page.settings.reports / "maintain_collections.json").write_text("{}")
    (report,) = ask(logged_in, "collections/flights")["reports"]
    assert report["dag_id"] == "reconcile_collections"


def test_unknown_names_come_with_near_ones(logged_in: TestClient, page: PageHome) -> None:
    assert logged_in.get(f"{API}/collections/plane").json()["error"]["hint"] == "did you mean 'planes'?"


def test_a_store_that_does_not_answer_is_a_bad_gateway(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unreachable("no answer", hint="check TIDEMARK_CATALOG_URI")

    monkeypatch.setattr(observed, "ask_catalog", away)
    answer = logged_in.get(f"{API}/overview")
    assert (answer.status_code, answer.json()["error"]["hint"]) == (502, "check TIDEMARK_CATALOG_URI")


def test_a_catalog_that_cannot_be_read_leaves_the_collections(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_STASH_URI", "postgresql://127.0.0.1:1/none")
    overview = ask(logged_in, "overview")
    assert overview["needs"][0]["what"] == "catalog"
    assert [each["name"] for each in overview["objects"]] == ["flights", "planes"]


def test_only_what_has_changed_is_read_again(
    logged_in: TestClient, page: PageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logged_in.get(f"{API}/overview")
    read: list[str] = []
    look = state_reader._read_metadata
    monkeypatch.setattr(
        state_reader, "_read_metadata", lambda location, name: read.append(name) or look(location, name)
    )
    again = logged_in.get(f"{API}/overview", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, read) == (304, [])
    page.change_planes()
    assert ask(logged_in, "overview")["objects"][1]["upper"] == page.home.upper("planes")
    assert set(read) <= {"planes"}
    page.record("reconcile", days_ago=-0.1, planes=corrected(1))
    assert ask(logged_in, "collections/planes")["runs"][-1]["rows"] == 1
