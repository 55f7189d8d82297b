"""The copy with Spark: both directions, on files and on servers, killed, overtaken, and run twice."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.conftest import ROOT, settings_in
from tests.support.catalog.interruptions import once
from tests.support.catalog.interventions import RELIC, put_garbage, show_config
from tests.support.catalog.migration_parts import Workflow
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tests.support.postgres_server import running_postgres
from tidemark.catalog.items.kinds import SETTING
from tidemark.catalog.migration import spark_copy as large_copy
from tidemark.catalog.persist.records import SHARD
from tidemark.catalog.stash import transactions as stash_transactions
from tidemark.errors import FencedByEpoch, Unreachable
from tidemark.iceberg.log import LogUpdate
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.iceberg.staging import frames as staging
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.spark

TRUTH = {MIGRATE: "persist", ROLLBACK: "stash"}
OTHER = {MIGRATE: ROLLBACK, ROLLBACK: MIGRATE}
DIRECTIONS = pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
# Of a kind that there is not, a config that contradicts itself, and a row that is there less than not at all.
GARBAGE = (
    RELIC,
    LogUpdate("config", '"leader_epoch"', "77", 1),
    LogUpdate("setting", '{"name":"row 9"}', '{"value":"v","version":1}', -1),
)
ROWS = {f"row {number}" for number in range(40)} | {"it's quoted", 'and "twice"'}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home: two files."""
    return Home(settings_in(tmp_path))


def started(home: Home, direction: Direction) -> Workflow:
    """Rows in the truth, some of them unconsolidated, and garbage on the other side; each copy is made with Spark."""
    home.open(MIGRATE, add=["garbage", *sorted(ROWS)[:10]])
    home.open(ROLLBACK)
    if direction is ROLLBACK:
        home.open(MIGRATE)
    with home.catalog.join() as leader:
        put(leader, *ROWS, "for a while")
        leader.transact(
            lambda transaction: transaction.delete(SETTING, lambda key, _: key.name in {"garbage", "for a while"})
        )

    @contextmanager
    def session() -> Iterator[SparkSession]:
        with spark_session(home.settings, app_name="tidemark-tests") as spark:
            spark.conf.set("spark.sql.shuffle.partitions", "2")
            yield spark

    return Workflow(home, direction, open_spark=session, large_above=0)


def staged(home: Home) -> list[str]:
    return list(Shards.connect(home.settings).open(SHARD, SYSTEM).load().staged_branches)


@DIRECTIONS
def test_only_what_differs_is_written(jvm: SparkSession, any_home: Home, direction: Direction) -> None:
    workflow = started(any_home, direction)
    if direction is MIGRATE:
        put_garbage(any_home, *GARBAGE)
    workflow.run("plan", "fence", "look")
    engine, inserted, retracted = workflow.run("copy")
    assert engine == "spark"
    assert len(ROWS) - 10 <= inserted < len(ROWS) + 10, "settings, an allocator, config; not what is there already"
    assert 1 <= retracted < 10
    assert "relic" not in any_home.counts_of("persist"), "of what no kind is known, neither"
    workflow.run("verify", *(["flip"] if direction is MIGRATE else []), "announce", "check")
    assert (any_home.truth(), any_home.setting_names()) == (TRUTH[direction], ROWS)
    assert any_home.setting_names_of("stash") == any_home.setting_names_of("persist") == ROWS, "the garbage is gone"
    assert staged(any_home) == []
    for then in (OTHER[direction], direction):  # what Spark wrote is what everything else reads and writes on
        any_home.open(then, add=[then.value])
    assert any_home.setting_names() == ROWS | {"migrate", "rollback"}


@DIRECTIONS
def test_a_copy_that_died_at_any_point_is_made_again(
    jvm: SparkSession, home: Home, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it stops by an error that nobody handles, which leaves what a killed process leaves."""
    workflow = started(home, direction)
    workflow.run("plan", "fence", "look")
    for module, point in (
        ("tidemark.iceberg.staging.frames", "stage.after-branch"),
        ("tidemark.iceberg.staging.frames", "stage.after-rows"),
        ("tidemark.catalog.migration.spark_copy", "copy.after-stage"),
        (
            "tidemark.catalog.migration.copy",
            "catalog.after-write-persist" if direction is MIGRATE else "catalog.after-write-stash",
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.fail_point", interrupting(point))
            with pytest.raises(KeyboardInterrupt):
                workflow.run("copy")
        if point == "copy.after-stage":
            assert len(staged(home)) == 1
    workflow.run("copy", "verify", *(["flip"] if direction is MIGRATE else []), "announce", "check")
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], ROWS)
    assert staged(home) == []


def interrupting(wanted: str) -> Callable[[str], None]:
    def fail_point(name: str) -> None:
        if name == wanted:
            raise KeyboardInterrupt

    return fail_point


def in_between(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Do something once, when the difference is staged and nothing is written yet."""
    once(monkeypatch, large_copy, "copy.after-stage", what)


@DIRECTIONS
def test_whoever_fences_while_it_is_copied_wins(
    jvm: SparkSession, home: Home, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = started(home, direction)
    workflow.run("plan", "fence", "look")
    in_between(monkeypatch, lambda: home.open(OTHER[direction], add=["acknowledged"]))
    with pytest.raises(FencedByEpoch):
        workflow.run("copy")
    assert (home.truth(), home.setting_names()) == (TRUTH[OTHER[direction]], ROWS | {"acknowledged"})
    workflow.run()
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], ROWS | {"acknowledged"})
    assert staged(home) == []


@DIRECTIONS
def test_a_twin_of_the_copy_writes_nothing_twice(
    jvm: SparkSession, home: Home, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = started(home, direction)
    workflow.run("plan", "fence", "look")
    twin = Workflow(home, direction)  # without Spark, and so faster

    def overtake() -> None:
        twin.run("copy")
        if direction is MIGRATE:  # then no row is left to be written, and the head all the same
            show_config(home, colour=1)

    in_between(monkeypatch, overtake)
    workflow.run("copy", "verify", *(["flip"] if direction is MIGRATE else []), "announce", "check")
    assert (home.truth(), home.setting_names()) == (TRUTH[direction], ROWS)
    assert home.setting_names_of("stash") == home.setting_names_of("persist") == ROWS


def retried(workflow: Workflow, part: str) -> None:
    """Run a part as a task is run: again, while the server does not answer."""
    for _ in range(100):
        try:
            workflow.run(part)
        except Unreachable:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"{part} found no server for 10 s")


@pytest.mark.postgres
@pytest.mark.crash
def test_a_server_that_crashes_during_copy_and_flip_is_waited_for(
    jvm: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "postgres-migration"  # not below tmp_path, which the next pytest shuts to the server's user
    folder.mkdir()
    with running_postgres(folder / "data") as server:
        stash = server.create_database("stash")
        home = Home(settings_in(tmp_path, TIDEMARK_STASH_URI=stash))

        def crash() -> None:  # a backend that is killed takes the whole server into crash recovery
            with psycopg.connect(stash, autocommit=True) as connection:
                query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tidemark-stash'"
                os.kill(connection.execute(query).fetchone()[0], signal.SIGKILL)

        for direction in (MIGRATE, ROLLBACK):
            workflow = started(home, direction)
            workflow.run("plan", "fence", "look")
            with monkeypatch.context() as patch:  # gone for good, when Spark is about to read the stash
                once(patch, staging, "stage.after-branch", server.kill)
                with pytest.raises(Unreachable, match="the copy of the catalog"):
                    workflow.run("copy")
            server.start()
            in_between(monkeypatch, crash)
            retried(workflow, "copy")
            retried(workflow, "verify")
            if direction is MIGRATE:
                once(monkeypatch, stash_transactions, "stash.before-commit", crash)
                retried(workflow, "flip")
            retried(workflow, "announce")
            assert (home.truth(), home.setting_names()) == (TRUTH[direction], ROWS)
