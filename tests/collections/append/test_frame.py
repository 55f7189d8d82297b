"""Batches that Spark writes: staged on a branch always, then published in one commit where the deployment may write."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.crash import die_in_fork
from tests.support.events import CLOCK, append_numbers, create_events, numbers, switch, visible
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append import frame as frame_append
from tidemark.collections.append.append import FAIL_POINTS as APPEND_FAIL_POINTS
from tidemark.collections.append.frame import append_frame
from tidemark.collections.append.interval import append_all, append_interval, choose_appended
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import RangeOverlap, ReadOnly, Refused, SchemaMismatch, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import frames as staging
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.interval import Interval
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
LATER_MS = 10**15


@pytest.fixture
def events(home: Settings) -> Shard:
    return create_events(home)


def frame(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end).selectExpr("'p' AS name", "id")


def append_rows(shard: Shard, settings: Settings, rows: DataFrame, start: int, end: int) -> CollectionReport:
    return append_frame(shard, BatchName("p", Range(start, end)), rows, deployment=deployment_of(settings), clock=CLOCK)


def test_frame_is_appended_once(home_spark: SparkSession, events: Shard, home: Settings) -> None:
    done = append_rows(events, home, frame(home_spark, 0, 3), 0, 3)
    assert (done.outcome, done.inserted) == (Outcome.APPENDED, 3)
    assert append_rows(events, home, frame(home_spark, 0, 3), 0, 3).outcome is Outcome.SKIPPED
    with pytest.raises(RangeOverlap):
        append_rows(events, home, frame(home_spark, 2, 5), 2, 5)
    head = events.load()
    assert visible(events) == Counter(numbers(0, 3))
    assert (head.staged_branches, head.state.ledgers) == ({}, {"p": Ledger((Range(0, 3),))})
    assert set(head.table.scan().to_arrow()["_batch"].to_pylist()) == {0}


def test_frames_and_files_are_flushed_together(home_spark: SparkSession, events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    for _ in range(2):
        assert append_rows(events, home, frame(home_spark, 0, 3), 0, 3).outcome is Outcome.STAGED
    append_numbers(events, home, 3, 5)
    assert visible(events) == Counter()
    assert [each.rows for each in list_batches(Shards.connect(home), [])] == [3, 2]
    switch(home, Mode.READ_WRITE)
    flush_all(Shards.connect(home), deployment_of(home), [], clock=CLOCK)
    assert visible(events) == Counter(numbers(0, 5))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "mode"),
    [*product(staging.FAIL_POINTS, Mode), *((point, Mode.READ_WRITE) for point in APPEND_FAIL_POINTS)],
)
def test_what_a_driver_that_died_has_written_is_nobodys_batch(
    home_spark: SparkSession, events: Shard, home: Settings, point: str, mode: Mode
) -> None:
    switch(home, mode)
    died = die_in_fork(point, lambda: append_rows(events, home, frame(home_spark, 0, 3), 0, 3))
    assert died == FAIL_POINT_EXIT, f"{point} was never reached"
    assert list_batches(Shards.connect(home), []) == []
    append_numbers(events, home, 0, 1)  # a part of it, under a name of its own
    assert append_rows(events, home, frame(home_spark, 1, 3), 1, 3).rows_source == 2
    switch(home, Mode.READ_WRITE)
    flush_all(Shards.connect(home), deployment_of(home), [], clock=CLOCK)
    assert visible(events) == Counter(numbers(0, 3))
    [left] = find_abandoned(events.load(), now_ms=LATER_MS, max_age_ms=0)
    drop_staged(events, [left])
    assert events.load().staged_branches == {}
    writer = Writer.lead(events, 1)
    expire(writer, older_than_ms=LATER_MS)
    forget_leases(home)
    remove_orphans(events, older_than_ms=LATER_MS)
    assert leftovers(home, events) == set()


def test_mode_that_ends_while_spark_writes_costs_no_second_look(
    home_spark: SparkSession, events: Shard, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(home, Mode.READ_WRITE)
    staged, switched = frame_append.stage, []

    def stage_and_switch(*arguments: Any, **named: Any) -> StagedBatch:
        found = staged(*arguments, **named)
        if not switched:
            switch(home, Mode.READ_ONLY)
        switched.append(found.snapshot_id)
        return found

    monkeypatch.setattr(frame_append, "stage", stage_and_switch)
    done = append_rows(events, home, frame(home_spark, 0, 3), 0, 3)
    assert (done.outcome, done.rows_source) == (Outcome.STAGED, 3)
    assert len(set(switched)) == 1, "the rows are written once"
    [queued] = list_batches(Shards.connect(home), [])
    assert list(events.load().staged_branches) == [queued.branch]


def test_frame_with_other_columns_is_refused(home_spark: SparkSession, events: Shard, home: Settings) -> None:
    with pytest.raises(SchemaMismatch, match="lacks the column 'name'"):
        append_rows(events, home, home_spark.range(3), 0, 3)
    assert events.load().staged_branches == {}


# -- the declared source -------------------------------------------------------------------------------------------


def declare(folder: Path, **more: object) -> Declaration:
    fields = {
        "name": "events",
        "kind": "append-only",
        "schema": "id bigint, name string",
        "source": {
            "format": "csv",
            "path": str(folder / "*.csv"),
            "options": {"header": True},
            "schema": "id bigint, name string, at timestamp",
            "where": "at >= '{start}' AND at < '{end}'",
        },
        **more,
    }
    return Declaration.model_validate(fields)


def apply(home: Settings, declaration: Declaration) -> Declaration:
    registry = deployment_of(home).registry
    registry.replace([declaration], seen=registry.read())
    return declaration


def write_hours(folder: Path, *lines: str) -> None:
    rows = [f"{number},p,1970-01-01 0{number}:00:00" for number in range(6)]
    (folder / "hours.csv").write_text("\n".join(["id,name,at", *rows, *lines]) + "\n", encoding="utf-8")


def test_slices_of_the_source_come_once_in_any_order(
    home_spark: SparkSession, events: Shard, home: Settings, tmp_path: Path
) -> None:
    write_hours(tmp_path)
    shards, declaration = Shards.connect(home), apply(home, declare(tmp_path))

    def append_hours(start: int, end: int) -> Outcome:
        interval = Interval(start * HOUR_MS, end * HOUR_MS)
        return append_interval(
            home_spark, shards, declaration, interval, deployment=deployment_of(home), clock=CLOCK
        ).outcome

    assert [append_hours(4, 5), append_hours(0, 2), append_hours(0, 2)] == [
        Outcome.APPENDED,
        Outcome.APPENDED,
        Outcome.SKIPPED,
    ]
    assert visible(events) == Counter([*numbers(0, 2), *numbers(4, 5)])
    append_hours(2, 4)
    assert events.load().state.ledgers == {"source": Ledger((Range(0, 5 * HOUR_MS),))}
    assert visible(events) == Counter(numbers(0, 5))


def test_source_that_evolves_widens_the_collection(
    home_spark: SparkSession, events: Shard, home: Settings, tmp_path: Path
) -> None:
    write_hours(tmp_path)
    declaration = apply(home, declare(tmp_path, on_schema_change="evolve"))
    interval = Interval(0, HOUR_MS)
    switch(home, Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        append_interval(
            home_spark, Shards.connect(home), declaration, interval, deployment=deployment_of(home), clock=CLOCK
        )
    switch(home, Mode.READ_WRITE)
    append_interval(
        home_spark, Shards.connect(home), declaration, interval, deployment=deployment_of(home), clock=CLOCK
    )
    assert [field.name for field in events.load().table.schema().fields] == ["id", "name", "at", "_producer", "_batch"]


def test_slice_that_does_not_parse_is_refused_and_leaves_nothing(
    home_spark: SparkSession, events: Shard, home: Settings, tmp_path: Path
) -> None:
    write_hours(tmp_path, "x,p,1970-01-01 00:30:00")
    declaration = apply(home, declare(tmp_path))
    with pytest.raises(Refused):
        append_interval(
            home_spark,
            Shards.connect(home),
            declaration,
            Interval(0, HOUR_MS),
            deployment=deployment_of(home),
            clock=CLOCK,
        )
    assert visible(events) == Counter()
    assert events.load().state.ledgers == {}


def test_source_that_no_interval_cuts_is_a_usage_error(
    home_spark: SparkSession, events: Shard, home: Settings, tmp_path: Path
) -> None:
    declaration = declare(tmp_path)
    assert declaration.source is not None
    whole = declaration.model_copy(update={"source": declaration.source.model_copy(update={"where": None})})
    for each in (whole, declaration.model_copy(update={"source": None})):
        with pytest.raises(UsageError):
            append_interval(
                home_spark, Shards.connect(home), each, Interval(0, 1), deployment=deployment_of(home), clock=CLOCK
            )


def test_one_bad_source_among_many_fails_alone(home_spark: SparkSession, home: Settings, tmp_path: Path) -> None:
    shards, registry = Shards.connect(home), deployment_of(home).registry
    declarations = []
    for name in ("bad", "good", "whole"):
        (tmp_path / name).mkdir()
        write_hours(tmp_path / name, *(["x,p,1970-01-01 00:30:00"] if name == "bad" else []))
        create_events(home, name)
        declarations.append(declare(tmp_path / name, name=name))
    declarations[2] = declare(tmp_path / "whole", name="whole", source=None)
    registry.replace(declarations, seen=registry.read())
    chosen = choose_appended(deployment_of(home), [])
    assert [each.name for each in chosen] == ["bad", "good"]
    report = append_all(home_spark, shards, deployment_of(home), chosen, Interval(0, HOUR_MS), clock=CLOCK)
    assert {name: each.outcome for name, each in report.collections.items()} == {
        "bad": Outcome.REFUSED,
        "good": Outcome.APPENDED,
    }
    assert (report.outcome, report.exit_code) == ("partial", ExitCode.REFUSED)
    assert visible(shards.open("good")) == Counter(numbers(0, 1))
