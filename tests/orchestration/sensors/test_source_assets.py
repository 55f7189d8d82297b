"""The schedule of `reconcile_collections`: what is declared of events when its file is parsed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pendulum
import pytest
from airflow.sdk import AssetOrTimeSchedule, CronDataIntervalTimetable
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from tidemark_triggers import FilesTrigger

from tests.support.homes import Home
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.orchestration.sensors.source_assets import KEPT, build_assets, find_declared, or_when_sources_change
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Asset

DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
DECLARATIONS = """version: 1
collections:
  orders:
    kind: differential
    key: [id]
    source: {format: csv, path: orders, schema: "id int", watch: 10s, asset: order_files}
  totals:
    kind: differential
    schema: "n bigint"
    source:
      inputs:
        o: {collection: orders}
        p: {format: csv, path: prices, schema: "id int", watch: 1m}
        q: {format: csv, path: "s3a://lake/quotas", schema: "id int", watch: 5m, asset: {name: q, uri: "s3://lake/q"}}
      sql: "SELECT count(*) AS n FROM o, p, q"
  silent:
    kind: differential
    source: {format: csv, path: silent.csv, schema: "id int"}
"""


@pytest.fixture
def home(installation: Path, tmp_path: Path) -> Home:
    """A home that Airflow's connections lead to; nothing is declared yet."""
    return Home(Settings.load({"TIDEMARK_HOME": str(installation)}), tmp_path)


def watched(assets: list[Asset]) -> dict[str, FilesTrigger]:
    return {asset.name: watcher.trigger for asset in assets for watcher in asset.watchers}


def test_without_events_the_schedule_is_the_clock_alone_and_nothing_is_written(home: Home) -> None:
    assert or_when_sources_change(DAILY) is DAILY
    assert not home.settings.home.exists()
    home.declare(DECLARATIONS[: DECLARATIONS.index("  orders")] + DECLARATIONS[DECLARATIONS.index("  silent") :])
    assert or_when_sources_change(DAILY) is DAILY


def test_the_assets_are_those_that_applied_sources_name_or_have_watched(home: Home) -> None:
    home.declare(DECLARATIONS)
    assets = build_assets(find_declared())
    assert [(asset.name, asset.uri) for asset in assets] == [
        ("order_files", "order_files"),
        ("q", "s3://lake/q"),
        ("tidemark_source:orders", "x-tidemark://sources/orders"),
        ("tidemark_source:totals", "x-tidemark://sources/totals"),
    ]
    triggers = watched(assets)
    assert triggers["tidemark_source:orders"].serialize()[1] == {
        "collection": "orders", "paths": [str(home.folder / "orders")], "poll_seconds": 10.0,
    }  # fmt: skip
    assert triggers["tidemark_source:totals"].paths == [str(home.folder / "prices"), "s3a://lake/quotas"]
    assert triggers["tidemark_source:totals"].poll_seconds == 60.0


@pytest.mark.slow  # the catalog is written twice
def test_a_schedule_with_events_has_the_intervals_of_the_clock(home: Home) -> None:
    home.declare(DECLARATIONS)
    schedule = or_when_sources_change(DAILY)
    assert isinstance(schedule, AssetOrTimeSchedule)
    both, clock = coerce_to_core_timetable(schedule), coerce_to_core_timetable(DAILY)
    assert both.periodic, "or Airflow refuses backfills"
    now = pendulum.datetime(2026, 3, 4, 5)
    assert both.infer_manual_data_interval(run_after=now) == clock.infer_manual_data_interval(run_after=now)
    for last in (None, DataInterval(now.subtract(days=2).start_of("day"), now.subtract(days=1).start_of("day"))):
        for catchup in (False, True):  # a backfill asks as if it caught up
            asked: dict[str, Any] = {
                "last_automated_data_interval": last,
                "restriction": TimeRestriction(now.subtract(days=9), now, catchup=catchup),
            }
            assert both.next_dagrun_info(**asked) == clock.next_dagrun_info(**asked)

    plan = plan_drop(home.shards, home.deployment, ["totals", "orders"], clock=home.clock)
    drop(home.shards, home.deployment, plan, clock=home.clock)
    assert or_when_sources_change(DAILY) is DAILY


def test_a_catalog_that_does_not_answer_takes_nothing_out_of_the_schedule(home: Home, installation: Path) -> None:
    home.declare(DECLARATIONS)
    found = find_declared()
    for name in ("catalog.db", "stash.db"):
        (installation / name).rename(installation / f"{name}.away")
        (installation / name).mkdir()  # a database that cannot be opened
    assert find_declared() == found
    (installation / KEPT).write_text("{")
    assert find_declared() == {}, "only the clock is left"


def test_a_wrong_setting_leaves_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_GENERATION", "none")
    assert or_when_sources_change(DAILY) is DAILY


def test_a_worker_asks_for_no_schedule(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.declare(DECLARATIONS)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "reconcile_collections")
    assert find_declared() == {}


def test_what_is_kept_is_replaced_when_something_else_is_declared(home: Home, installation: Path) -> None:
    home.declare(DECLARATIONS)
    find_declared()
    before = (installation / KEPT).stat()
    find_declared()
    assert (installation / KEPT).stat() == before, "parsing again writes nothing"
    home.declare(DECLARATIONS.replace("watch: 10s, ", ""))
    assert find_declared()["orders"]["paths"] == []
    assert json.loads((installation / KEPT).read_text()) == find_declared()


def test_an_asset_that_airflow_refuses_takes_no_other_one_away() -> None:
    assets = [{"name": "odd", "uri": "AIRFLOW:odd"}, {"name": "good", "uri": "good"}, {"name": "ip", "uri": "x://[y"}]
    declared = {"orders": {"assets": assets, "paths": []}}
    assert [asset.name for asset in build_assets(declared)] == ["good"]
