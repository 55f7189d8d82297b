"""Sinks of real collections into files and Iceberg tables: whatever dies or races, each update arrives once."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.sinks.changes import change
from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.sinks.leftovers import take_the_way_out
from tests.sinks.renames import carry_renames
from tests.sinks.targets.conftest import KINDS, place, with_lake
from tests.sinks.targets.driving import Driven
from tests.support.crash import die_at
from tests.support.dying import interrupted_at, surviving
from tests.support.homes import Home
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.errors import ConfigurationInvalid
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.report import Outcome
from tidemark.sinks import carrying, run
from tidemark.sinks.inspection import read_statuses
from tidemark.sinks.reading import spooled_updates
from tidemark.sinks.removal import clear_sinks
from tidemark.sinks.targets.files import target as files
from tidemark.sinks.targets.iceberg import target as iceberg

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

OF_RUNS = (*run.FAIL_POINTS, *carrying.FAIL_POINTS)
POINTS = {"path": (*OF_RUNS, *files.FAIL_POINTS), "catalog": (*OF_RUNS, *iceberg.FAIL_POINTS)}
CASES = [
    (kind, point)
    for kind, form in (("partitioned files", "path"), ("own catalog", "catalog"))
    for point in POINTS[form]
]


def sinking(home: Home, kind: str, folder: Path, mode: str) -> Driven:
    """Three rows, and a sink; what is returned reads the target."""
    home.settings = with_lake(home.settings, folder)
    change(home, put={0: "a", 1: "b", 2: None})
    home.declare_sink(to=place(kind, folder), mode=mode)
    return Driven(home.settings, place(kind, folder), mode)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dies"), [("partitioned files", True), ("own catalog", False)])
def test_a_mirror_follows_columns_that_take_over_the_names_of_others(
    home: Settings, tmp_path: Path, kind: str, *, dies: bool
) -> None:
    to = place(kind, tmp_path)
    carry_renames(Home(home, tmp_path, now_ms=1_000_000), to, Driven(home, to).rows, dies=dies)


@pytest.mark.slow
def test_columns_that_are_left_are_got_rid_of_as_the_refusal_says(carrying: Home, tmp_path: Path) -> None:
    to = place("own catalog", tmp_path)
    identifier = tuple(to["table"].split("."))

    def drop_column() -> None:
        with carrying.shards.iceberg.load_table(identifier).update_schema() as update:
            update.delete_column("name")

    take_the_way_out(
        carrying, to, drop_column=drop_column, drop_table=lambda: carrying.shards.iceberg.drop_table(identifier)
    )
    assert Driven(carrying.settings, to).rows() == carrying.user_rows("events")


def contents(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a mirror, or what a log adds up to."""
    sums: dict[tuple[Any, Any], int] = {}
    for row in found:
        key = (row["id"], row["name"])
        sums[key] = sums.get(key, 0) + row.get("_diff", 1)
    assert set(sums.values()) <= {0, 1}
    return sorted(({"id": id_, "name": name} for (id_, name), count in sums.items() if count), key=repr)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_loads_and_the_next_ones_carry_changes(carrying: Home, tmp_path: Path, kind: str) -> None:
    target = sinking(carrying, kind, tmp_path, "mirror")
    loaded = carrying.run_sink()
    assert (loaded.outcome, loaded.inserted, loaded.upper) == (Outcome.CARRIED, 3, carrying.upper("events"))
    change(carrying, put={1: "B", 3: "c"}, delete=(0,))
    carried = carrying.run_sink()
    assert (carried.inserted, carried.retracted, carried.lower) == (2, 1, loaded.upper)
    assert target.rows() == carrying.user_rows("events")
    assert carrying.run_sink().outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("kind", KINDS)
def test_a_mirror_that_lacks_very_much_is_loaded_anew(
    carrying: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("tidemark.sinks.carrying.MOST_IN_MEMORY", 3)
    target = sinking(carrying, kind, tmp_path, "mirror")
    loaded = carrying.run_sink()
    change(carrying, put={1: "B", 3: "c"}, delete=(0,))
    again = carrying.run_sink()
    assert (again.details["loaded"], again.lower, again.upper) == (3, loaded.upper, carrying.upper("events"))
    assert target.rows() == carrying.user_rows("events")
    change(carrying, put={1: "b"})
    little = carrying.run_sink()
    assert (little.inserted, "loaded" in little.details) == (1, False)
    assert target.rows() == carrying.user_rows("events")
    assert carrying.shard().load().state.holds["sink-copies"].since == carrying.upper("events") - 1


@pytest.mark.slow
def test_a_log_of_very_many_updates_is_summed_up_on_disk_in_the_same_order(
    carrying: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = sinking(carrying, "files", tmp_path, "changes")
    carrying.declare_sink("spooled", to={"path": str(tmp_path / "spooled")}, mode="changes")
    spooled = Driven(carrying.settings, {"path": str(tmp_path / "spooled")}, "changes")
    for name in ("copies", "spooled"):
        carrying.run_sink(name)
    change(carrying, put=dict.fromkeys(range(20), "x"))
    change(carrying, put=dict.fromkeys(range(10)), delete=(12, 13))
    carried = carrying.run_sink()
    monkeypatch.setattr("tidemark.sinks.carrying.MOST_IN_MEMORY", 0)
    monkeypatch.setattr(spooled_updates, "PART_UPDATES", 20)
    monkeypatch.setattr(spooled_updates, "_PIECE_ROWS", 3)
    report = carrying.run_sink("spooled")
    assert (report.inserted, report.retracted) == (carried.inserted, carried.retracted)
    assert report.inserted == 30
    assert spooled.rows() == target.rows()
    log = arrow_rows(files_of(tmp_path / "spooled", read_manifest(tmp_path / "spooled")))
    order = [(each["_time"], each["_diff"]) for each in log]
    assert order == sorted(order)


def test_sinks_are_declared_looked_at_and_run(carrying: Home, tmp_path: Path) -> None:
    change(carrying, put={0: "a", 1: "b/c"})
    sinks = """
sinks:
  copies: {from: events, to: {path: out, partition: [name]}, mode: mirror}
  table: {from: events, to: {catalog: tidemark, table: analytics.copies}, mode: changes}
"""
    carrying.declare("version: 1" + sinks)
    assert not (tmp_path / "out").exists(), "to apply writes nothing to the target"
    assert carrying.run_sink("copies").error is None
    assert carrying.run_sink("table").error is None
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.parquet")} == {"name=a", "name=b%2Fc"}
    applied = list(carrying.registry.read().sinks.values())
    statuses = read_statuses(carrying.settings, applied, now_ms=carrying.clock.now_ms())
    assert [status.time for status in statuses] == [carrying.upper("events")] * 2
    assert {status.error for status in statuses} == {""}


@pytest.mark.parametrize(
    "to",
    [
        "{path: s3://bucket/out}",
        "{path: out, partition: [gone]}",
        "{catalog: lake, table: a.b}",
        "{catalog: tidemark, table: collections.copies}",
    ],
)
def test_what_cannot_be_written_is_not_applied(carrying: Home, to: str) -> None:
    with pytest.raises(ConfigurationInvalid):
        carrying.declare(f"version: 1\nsinks:\n  copies: {{from: events, to: {to}, mode: mirror}}\n")
    assert not carrying.registry.read().sinks


def test_a_table_that_somebody_removed_is_made_anew(carrying: Home, tmp_path: Path) -> None:
    target = sinking(carrying, "own catalog", tmp_path, "mirror")
    carrying.run_sink()
    change(carrying, put={3: "c"})
    carrying.shards.iceberg.drop_table(("analytics", "copies"))
    assert carrying.run_sink().details["loaded"] == 4
    assert target.rows() == carrying.user_rows("events")


@pytest.mark.parametrize("point", [None, pytest.param("sink.held", marks=pytest.mark.crash)])
def test_a_folder_that_is_away_is_waited_for(carrying: Home, tmp_path: Path, point: str | None) -> None:
    target, out = sinking(carrying, "files", tmp_path, "mirror"), tmp_path / "out"
    if point is None:
        carrying.run_sink()
    else:
        assert die_at(point, carry, carrying.settings) == FAIL_POINT_EXIT
    held = carrying.shard().load().state.holds["sink-copies"]
    change(carrying, put={3: "c"})
    out.rename(tmp_path / "away")
    for makes_mount_point in (False, True):
        if makes_mount_point:
            out.mkdir()
        report = carrying.run_sink()
        assert (report.exit_code, report.error and report.error.kind) == (ExitCode.UNREACHABLE, "Unreachable")
        assert "nothing of the sink 'copies' is there" in (report.error.message if report.error else "")
        (status,) = read_statuses(carrying.settings, [*carrying.registry.read().sinks.values()], now_ms=2_000_000)
        assert "nothing of the sink 'copies' is there" in status.error
    assert carrying.shard().load().state.holds["sink-copies"] == held
    out.rmdir()
    (tmp_path / "away").rename(out)
    assert carrying.run_sink().error is None
    assert target.rows() == carrying.user_rows("events")


def test_a_folder_that_is_gone_for_good_is_loaded_after_a_drop(carrying: Home, tmp_path: Path) -> None:
    target = sinking(carrying, "files", tmp_path, "mirror")
    carrying.run_sink()
    shutil.rmtree(tmp_path / "out")
    deployment = carrying.deployment
    plan = plan_drop(carrying.shards, deployment, ["copies"], clock=carrying.clock)
    clear_sinks(carrying.shards, deployment, drop(carrying.shards, deployment, plan, clock=carrying.clock))
    carrying.declare_sink(to=place("files", tmp_path), mode="mirror")
    assert carrying.run_sink().details["loaded"] == 3
    assert target.rows() == carrying.user_rows("events")


def test_two_installations_do_not_take_one_target_from_each_other_again_and_again(
    carrying: Home, tmp_path: Path
) -> None:
    to = {"path": str(tmp_path / "out"), "existing": "replace"}
    (tmp_path / "other").mkdir()
    other = Home(settings_in(tmp_path / "other"), tmp_path / "other", now_ms=1_000_000)
    other.declare_latest(delete_when={"op": "d"})
    for home in (carrying, other):
        change(home, put={0: "a"})
        home.declare_sink(to=to)
    assert carrying.run_sink().error is None
    assert other.run_sink().error is None, "as after the first one was dropped"
    refused = carrying.run_sink()
    assert refused.exit_code is ExitCode.NOT_POSSIBLE
    assert other.run_sink().error is None


def test_a_run_that_is_overtaken_while_history_is_trimmed_is_fenced(carrying: Home, tmp_path: Path) -> None:
    target = sinking(carrying, "files", tmp_path, "changes")
    carrying.run_sink()
    change(carrying, put={1: "B"})

    def overtake() -> None:
        carrying.run_sink()
        downgrade_since(carrying.shard(), carrying.upper("events") - 1, now_ms=carrying.clock.now_ms())

    with interrupted_at("sink.claimed", overtake) as failures:
        overtaken = carrying.run_sink()
    assert not failures
    assert overtaken.exit_code is ExitCode.FENCED, "it lacks nothing that the other one has not carried"
    assert contents(target.rows()) == carrying.user_rows("events")


def test_a_target_that_is_ahead_of_a_restored_collection_is_66(carrying: Home, tmp_path: Path) -> None:
    target = sinking(carrying, "files", tmp_path, "mirror")
    carrying.run_sink()
    home, backup = carrying.settings.home, tmp_path / "backup"
    shutil.copytree(home, backup)
    change(carrying, put={3: "c"}, delete=(0,))
    carrying.run_sink()
    rows = target.rows()
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    restored = Home(carrying.settings, tmp_path, now_ms=1_000_000)
    failed = restored.run_sink()
    assert failed.exit_code is ExitCode.INPUT_MISSING
    assert failed.error is not None
    assert "restored" in failed.error.hint
    assert target.rows() == rows
    hold = restored.shard().load().state.holds["sink-copies"]
    assert hold.since < restored.upper("events")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["mirror", "changes"])
def test_the_target_equals_the_collection_after_any_changes(
    carrying: Home, tmp_path: Path, kind: str, mode: str
) -> None:
    target = sinking(carrying, kind, tmp_path, mode)
    chance = random.Random(15)  # noqa: S311 - a test
    for _ in range(12):
        ids = chance.sample(range(8), 4)
        change(carrying, put={id_: chance.choice(["x", "y", "", None]) for id_ in ids[:3]}, delete=(ids[3],))
        if chance.random() < 0.6:
            assert carrying.run_sink().error is None
            assert contents(target.rows()) == carrying.user_rows("events")


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "point"), CASES)
@pytest.mark.parametrize("mode", ["mirror", "changes"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_died_is_finished_by_the_next(
    carrying: Home, tmp_path: Path, kind: str, point: str, mode: str, *, is_first: bool
) -> None:
    target = sinking(carrying, kind, tmp_path, mode)
    if not is_first:
        carrying.run_sink()
        change(carrying, put={1: "B", 3: "c"}, delete=(0,))
    report, died = surviving(carrying.run_sink, point)
    assert died or (point == "sink.held" and not is_first), f"{point} was never reached"
    assert report.error is None  # type: ignore[attr-defined]
    found = target.rows()
    assert contents(found) == carrying.user_rows("events")
    assert len(found) == (7 if mode == "changes" and not is_first else 3), "each update once"
    assert target.target_time() == carrying.upper("events")
    assert carrying.shard().load().state.holds["sink-copies"].since == carrying.upper("events") - 1


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_process_that_is_killed_leaves_nothing_in_the_way(
    carrying: Home, tmp_path: Path, kind: str, point: str
) -> None:
    target = sinking(carrying, kind, tmp_path, "changes")
    assert die_at(point, carry, carrying.settings) == FAIL_POINT_EXIT, f"{point} was never reached"
    change(carrying, put={1: "B", 3: "c"}, delete=(0,))
    assert carrying.run_sink().error is None
    assert contents(target.rows()) == carrying.user_rows("events")
    has_landed = point.endswith(("-committed", ".carried", ".moved"))
    assert len(target.rows()) == (7 if has_landed else 3), "each update once"


def carry(settings: Settings) -> None:
    Home(settings).run_sink()


@pytest.mark.crash
@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_run_that_another_overtakes_writes_nothing_twice(
    carrying: Home, tmp_path: Path, kind: str, point: str
) -> None:
    target = sinking(carrying, kind, tmp_path, "changes")
    is_first = point == "sink.held"  # which only a first load passes
    if not is_first:
        carrying.run_sink()
    change(carrying, put={1: "B", 3: "c"}, delete=(0,))
    with interrupted_at(point, carrying.run_sink) as failures:
        report = carrying.run_sink()
    assert not failures
    assert report.error is None or report.exit_code in {ExitCode.FENCED, ExitCode.TRANSIENT}
    carrying.run_sink()
    assert len(target.rows()) == (3 if is_first else 7)
    assert contents(target.rows()) == carrying.user_rows("events")
