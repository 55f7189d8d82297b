"""Sinks that are dropped, declared anew, paused or overtaken while a run of them is under way, and sinks that fail."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.changes import change
from tests.sinks.targets.driving import Driven
from tests.support.crash import run_command
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.homes import Home
from tests.support.recorded import statuses
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.objects.drop import drop, finish_drops, plan_drop
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.status_table import read_status_table
from tidemark.collections.system.suspension import settle
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.leases.holding import writer_id
from tidemark.iceberg.leases.table import LeaseTable
from tidemark.iceberg.shards import DROPPED
from tidemark.report import SKIPPED_BECAUSE, SUSPENDED, CollectionReport, Outcome
from tidemark.sinks import carrying, history, lost_runs, turns
from tidemark.sinks.fencing import fence_sinks
from tidemark.sinks.lost_runs import note_lost_runs
from tidemark.sinks.reading.rows import cut_commits
from tidemark.sinks.removal import REMOVERS, clear_sinks
from tidemark.sinks.run import choose_sinks, run_sinks
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.collections.deployment import Deployment
    from tidemark.settings import Settings

TABLE = {"catalog": "tidemark", "table": "analytics.copies"}


@pytest.fixture
def sinking(carrying: Home) -> Home:
    change(carrying, put={0: "a", 1: "b", 2: None})
    carrying.declare_sink(to=folder(carrying))
    return carrying


def folder(home: Home, name: str = "out") -> dict[str, str]:
    return {"path": str(home.folder / name)}


def drop_sink(home: Home, *, clears: bool = True) -> list[str]:
    """Drop the sink as a command of its own, which dies before it cleans up unless it ``clears``."""
    deployment = home.deployment
    gone = drop(
        home.shards, deployment, plan_drop(home.shards, deployment, ["copies"], clock=home.clock), clock=home.clock
    )
    return clear_sinks(home.shards, deployment, gone) if clears else []


def holds(home: Home) -> dict[str, Any]:
    return dict(home.shard().load().state.holds)


# -- dropped, and declared anew ------------------------------------------------------------------------------------


def test_a_sink_that_was_dropped_before_its_turn_is_skipped(sinking: Home) -> None:
    deployment = sinking.deployment
    chosen = choose_sinks(deployment, ["copies"])
    drop_sink(sinking)
    sinking.declare_sink(to=folder(sinking, "another"))
    skipped = run_sinks(sinking.shards, deployment, chosen, clock=sinking.clock).collections["copies"]
    assert "was dropped" in skipped.details[SKIPPED_BECAUSE]
    assert holds(sinking) == {}
    assert not (sinking.folder / "out").exists()


@pytest.mark.parametrize(
    ("point", "is_first"),
    [("sink.claimed", False), ("sink.held", True), ("sink.carried", True), ("sink.carried", False)],
)
def test_a_sink_that_is_dropped_during_its_run_leaves_no_hold_and_no_progress(
    sinking: Home, point: str, *, is_first: bool
) -> None:
    if not is_first:
        sinking.run_sink()
        change(sinking, put={5: "e"})
    declared = sinking.registry.read().sinks["copies"].declaration
    with interrupted_at(point, lambda: drop_sink(sinking)) as failures:
        report = sinking.run_sink()
    assert not failures
    assert report.error is not None
    assert report.error.kind == "Dropped"
    assert holds(sinking) == {}
    with open_target(declared, sinking.settings) as target:
        assert target.look() is None
    sinking.declare_sink(to={**folder(sinking), "existing": "replace"})
    assert sinking.run_sink().error is None
    sinking.declare_sink("others", to=folder(sinking))
    assert "'copies'" in getattr(sinking.run_sink("others").error, "message", "")


def test_a_drop_that_died_releases_what_another_sink_of_the_name_does_not_need(sinking: Home) -> None:
    sinking.run_sink()
    sinking.declare_latest("others")
    drop_sink(sinking, clears=False)
    sinking.declare_sink(collection="others", to=folder(sinking, "another"))
    assert remove_dropped(sinking.shards, sinking.deployment, clock=sinking.clock, removers=REMOVERS).exit_code == 0
    assert holds(sinking) == {}


def test_a_run_that_dies_with_the_hold_of_its_dropped_sink_leaves_it_to_maintenance(
    sinking: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    def drop_and_let_die() -> None:
        assert drop_sink(sinking), "a run may be under way"
        monkeypatch.setattr(history, "is_applied", die)  # which the run asks once it has its hold

    with interrupted_at("publish.before-commit", drop_and_let_die), pytest.raises(Crash):
        sinking.run_sink()
    monkeypatch.undo()
    (left,) = sinking.deployment.objects.dropped()
    sinking.deployment.objects.forget(left)  # as if the run could not have stored its lease
    assert list(holds(sinking)) == ["sink-copies"]
    maintain_all(None, sinking.deployment, ["events"], clock=sinking.clock)
    assert holds(sinking) == {}


def test_a_drop_that_died_leaves_the_hold_to_maintenance_whoever_drops_and_applies_before(sinking: Home) -> None:
    sinking.run_sink()
    drop_sink(sinking, clears=False)
    sinking.declare_sink("others", to=folder(sinking, "another"))
    plans = plan_drop(sinking.shards, sinking.deployment, ["others"], clock=sinking.clock)
    clear_sinks(
        sinking.shards, sinking.deployment, drop(sinking.shards, sinking.deployment, plans, clock=sinking.clock)
    )
    report = maintain_all(None, sinking.deployment, [], clock=sinking.clock, removers=REMOVERS)
    assert report.exit_code == 0
    assert (holds(sinking), sinking.deployment.objects.dropped()) == ({}, [])


def test_a_table_that_a_drop_left_goes_though_its_sink_was_declared_anew(sinking: Home) -> None:
    sinking.run_sink()
    plans = plan_drop(sinking.shards, sinking.deployment, ["events", "copies"], clock=sinking.clock)
    with dying_at("drop.recorded"), pytest.raises(Crash):
        drop(sinking.shards, sinking.deployment, plans, clock=sinking.clock)
    finish_drops(sinking.shards, sinking.deployment, clock=sinking.clock)  # as an apply does
    sinking.declare_latest(delete_when={"op": "d"})
    sinking.declare_sink(to={**folder(sinking), "existing": "replace"})
    change(sinking, put={3: "c"})
    assert sinking.run_sink().error is None
    (table,) = sinking.shards.names(DROPPED)
    remove_dropped(sinking.shards, sinking.deployment, clock=sinking.clock, removers=REMOVERS)
    assert dict(sinking.shards.open(table, DROPPED).load().state.holds) == {}
    sinking.clock.step(SystemClock().now_ms() + 8 * 86_400_000)
    report = remove_dropped(sinking.shards, sinking.deployment, clock=sinking.clock, grace_ms=0, removers=REMOVERS)
    assert [result.strategy for result in report.collections.values()] == ["removed"]
    assert list(holds(sinking)) == ["sink-copies"], "of the sink that there is"
    change(sinking, put={4: "d"})
    assert sinking.run_sink().error is None


def test_a_target_that_cannot_be_named_any_more_is_given_up_after_the_grace(
    sinking: Home, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{sinking.folder}/lake.db"
    lake = {"TYPE": "sql", "URI": uri, "WAREHOUSE": f"file://{sinking.folder}/lake"}
    known = sinking.settings
    named = {f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in lake.items()}
    sinking.settings = replace(known, connections=named)
    drop_sink(sinking)
    sinking.declare_sink(to={"catalog": "lake", "table": "a.copies"})
    sinking.run_sink()
    sinking.settings = known
    (why,) = drop_sink(sinking)
    assert "is not set" in why
    for days, left in ((1, 1), (30, 0)):
        sinking.clock.step(days * 86_400_000)
        report = remove_dropped(sinking.shards, sinking.deployment, clock=sinking.clock, removers=REMOVERS)
        assert report.exit_code == 0
        assert len(sinking.deployment.objects.dropped()) == left
    assert "keeps the progress" in caplog.text


# -- suspended, and paused -----------------------------------------------------------------------------------------


def settled(home: Home) -> CollectionReport:
    """Run the sink as a process of its own."""
    deployment = home.deployment
    chosen = choose_sinks(deployment, ["copies"])
    report = run_sinks(home.shards, deployment, chosen, clock=home.clock)
    return settle(deployment, report).collections["copies"]


def test_a_sink_that_fails_is_suspended_and_goes_on_by_itself(sinking: Home) -> None:
    (sinking.folder / "out").write_text("in the way")
    failed = settled(sinking)
    assert "tried again at" in failed.details[SUSPENDED]
    assert settled(sinking).outcome is Outcome.SKIPPED
    (sinking.folder / "out").unlink()
    sinking.clock.step(60_000)
    carried = settled(sinking)
    assert carried.outcome is Outcome.CARRIED
    assert carried.details["bytes"] > 0
    assert carried.details["lag_ms"] == 0
    assert sinking.deployment.objects.read() == {}


def test_a_failure_suspends_only_the_sink_that_failed_and_not_its_successor(sinking: Home) -> None:
    (sinking.folder / "out").write_text("in the way")
    deployment = sinking.deployment
    report = run_sinks(sinking.shards, deployment, choose_sinks(deployment, []), clock=sinking.clock)
    assert report.collections["copies"].error is not None
    drop_sink(sinking)
    sinking.declare_sink(to=folder(sinking, "another"))
    settle(deployment, report)
    record_run(deployment, report, clock=sinking.clock)
    assert sinking.deployment.objects.read() == {}
    (successor,) = read_status_table(sinking.deployment, ["copies"])
    assert successor.reason is None


def test_a_sink_that_is_paused_while_another_one_runs_is_left_out(sinking: Home) -> None:
    sinking.declare_sink("later", to=folder(sinking, "later"))
    deployment = sinking.deployment
    chosen = choose_sinks(deployment, ["copies", "later"])
    with interrupted_at("sink.carried", lambda: deployment.objects.pause(["later"])):
        report = run_sinks(sinking.shards, deployment, chosen, clock=sinking.clock)
    assert [each.outcome for each in report.collections.values()] == [Outcome.CARRIED, Outcome.SKIPPED]


# -- a long backlog ------------------------------------------------------------------------------------------------


def test_a_backlog_of_batches_is_cut_between_commits_and_goes_on_after_a_crash(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending = Home(home, tmp_path, now_ms=1_000_000)
    appending.declare_reader()
    appending.declare_sink(mode="changes", to=TABLE)
    for count in (2, 2, 2, 3):
        appending.clock.step(1_000)
        appending.send_rows(0, count)
        appending.ingest()
        if appending.sent == 2:  # the first contents are one transaction in any case
            appending.run_sink()
    monkeypatch.setattr(carrying, "cut_commits", partial(cut_commits, rows=4))
    with pytest.raises(Crash), dying_at("sink.moved"):
        appending.run_sink()
    target = Driven(home, TABLE, "changes")
    assert sorted(row["id"] for row in target.rows()) == [0, 1, 2, 3, 4, 5]
    assert appending.run_sink().inserted == 3
    assert sorted(row["id"] for row in target.rows()) == appending.ids()


# -- a switch of the mode, other runs, other writers ---------------------------------------------------------------


@pytest.mark.parametrize("happening", ["switch", "drop"])
def test_the_first_load_into_a_table_that_is_not_there_is_stopped(
    sinking: Home, monkeypatch: pytest.MonkeyPatch, happening: str
) -> None:
    sinking.declare_sink("copies", to=TABLE)
    real = carrying.first_rows

    def first_rows(*arguments: Any, **more: Any) -> Iterator[Any]:
        yield from real(*arguments, **more)
        if happening == "drop":
            drop_sink(sinking)
            return
        sinking.switch(Mode.READ_ONLY)
        with another_run("elsewhere:1"):
            (said,) = fence_sinks(sinking.deployment)
        assert "'copies'" in said

    @contextmanager
    def another_run(writer: str) -> Iterator[None]:
        with leased(sinking, writer):
            yield

    monkeypatch.setattr(carrying, "first_rows", first_rows)
    stopped = sinking.run_sink()
    assert stopped.error is not None
    assert stopped.error.kind == {"switch": "ReadOnly", "drop": "Dropped"}[happening]
    assert not sinking.shards.iceberg.table_exists(("analytics", "copies"))


@contextmanager
def leased(home: Home, writer: str) -> Iterator[None]:
    """Let another process, of which only its lease is seen, run the sink."""
    table, sink = LeaseTable(home.settings), home.registry.read().sinks["copies"]
    table.enter("another", operation=f"sink copies ({sink.id})", collections=["events"], writer=writer)
    try:
        yield
    finally:
        table.end("another")
        table.close()


def test_a_second_run_is_skipped_while_another_process_runs_the_sink(
    sinking: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.0)
    sinking.declare_sink("others", to=folder(sinking, "others"))
    with leased(sinking, "elsewhere:1"):
        skipped = sinking.run_sink()
        assert sinking.run_sink("others").outcome is Outcome.CARRIED
    assert "since" in skipped.details[SKIPPED_BECAUSE]
    assert "elsewhere:1" in skipped.details[SKIPPED_BECAUSE]
    assert sinking.run_sink().outcome is Outcome.CARRIED


def test_a_run_that_was_killed_on_this_host_keeps_nobody_waiting(sinking: Home, killed_writer: str) -> None:
    with leased(sinking, killed_writer):
        assert sinking.run_sink().outcome is Outcome.CARRIED


# -- runs that ended without a word --------------------------------------------------------------------------------


@pytest.fixture
def killed_writer() -> str:
    """A process of this host that is gone."""
    killed = subprocess.Popen(["sleep", "0"])
    killed.wait()
    return writer_id().replace(str(os.getpid()), str(killed.pid))


def noted(home: Home) -> Deployment:
    """Begin a run of the sink as its task does."""
    deployment = home.deployment
    return note_lost_runs(deployment, choose_sinks(deployment, ["copies"]), clock=home.clock)


def test_a_lost_run_is_said_by_the_next_one_which_goes_on_at_once(sinking: Home, killed_writer: str) -> None:
    sinking.switch(Mode.READ_WRITE)
    with leased(sinking, killed_writer):
        deployment = noted(sinking)
        (shown,) = read_status_table(deployment, ["copies"])
        assert shown.status == "suspended"
        assert (shown.reason or "").startswith("RunLost: the run that began ")
        assert f"in {killed_writer} ended without a word" in (shown.reason or "")
        assert noted(sinking).asked_for == frozenset(), "said once"
    report = run_sinks(sinking.shards, deployment, choose_sinks(deployment, ["copies"]), clock=sinking.clock)
    report = settle(deployment, report)
    record_run(deployment, report, clock=sinking.clock)
    assert report.collections["copies"].outcome is Outcome.CARRIED
    (shown,) = read_status_table(deployment, ["copies"])
    assert (shown.status, shown.reason) == ("running", None)


def test_a_sink_whose_runs_are_lost_again_and_again_rests_for_longer_each_time(
    sinking: Home, killed_writer: str
) -> None:
    sinking.switch(Mode.READ_WRITE)
    for attempts in (1, 2, 3):
        with leased(sinking, killed_writer):
            assert noted(sinking).asked_for == {"copies"}
        with leased(sinking, killed_writer):
            assert noted(sinking).asked_for == frozenset(), "at rest"
            assert settled(sinking).outcome is Outcome.SKIPPED
            standing = sinking.deployment.objects.read()["copies"]
            rest_ms = (standing.retry_at_ms or 0) - sinking.clock.now_ms()
            assert (standing.attempts, rest_ms) == (attempts, 60_000 << attempts - 1)
            sinking.clock.step(rest_ms)


def test_who_dies_while_it_notes_a_lost_run_leaves_that_to_the_next(sinking: Home, killed_writer: str) -> None:
    sinking.switch(Mode.READ_WRITE)
    with leased(sinking, killed_writer):
        for point in lost_runs.FAIL_POINTS:
            with pytest.raises(Crash), dying_at(point):
                noted(sinking)
        assert read_status_table(sinking.deployment, ["copies"])[0].status == "suspended", "as the catalog says"
        sinking.clock.step(60_000)
        assert noted(sinking).asked_for == {"copies"}
        assert noted(sinking).asked_for == frozenset()


def test_a_lost_run_is_none_of_a_sink_that_is_declared_anew_nor_of_a_read_only_deployment(
    sinking: Home, killed_writer: str
) -> None:
    with leased(sinking, killed_writer):
        sinking.switch(Mode.READ_ONLY)
        assert noted(sinking).asked_for == frozenset()
        sinking.switch(Mode.READ_WRITE)
        drop_sink(sinking)
        sinking.declare_sink(to=folder(sinking, "another"))
        assert noted(sinking).asked_for == frozenset()
    assert sinking.deployment.objects.read() == {}


@pytest.mark.crash
def test_a_killed_command_is_said_by_the_next(sinking: Home) -> None:
    sinking.switch(Mode.READ_WRITE)
    assert run_command(sinking.settings, "sink", "run", point="sink.claimed") == FAIL_POINT_EXIT
    assert run_command(sinking.settings, "sink", "run") == ExitCode.OK
    assert [status for status, _ in statuses(sinking)] == ["suspended", "running"]
    assert sinking.deployment.objects.read() == {}


# -- what comes during a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mirror", "changes"])
@pytest.mark.parametrize("to", ["path", "catalog"])
def test_what_is_corrected_and_trimmed_during_a_run_arrives_once(sinking: Home, to: str, mode: str) -> None:
    place = folder(sinking, "corrected") if to == "path" else TABLE
    sinking.declare_sink("corrected", to=place, mode=mode)
    target = Driven(sinking.settings, place, mode)

    def correct() -> None:
        change(sinking, put={2: "zz", 8: "new"}, delete=(1,))
        downgrade_since(sinking.shard(), sinking.upper("events"), now_ms=sinking.clock.now_ms())

    for point in ("sink.held", "sink.carried"):  # of the first load, and of the updates
        with interrupted_at(point, correct) as failures:
            assert sinking.run_sink("corrected").error is None
        assert not failures
        sums = Counter[tuple[Any, Any]]()
        for row in target.rows():
            sums[row["id"], row["name"]] += row.get("_diff", 1)
        left = {key: count for key, count in sums.items() if count}
        assert left == {(row["id"], row["name"]): 1 for row in sinking.user_rows("events")}, "already after this run"
        change(sinking, put={1: point}, delete=(8,))
