"""Every run leaves out what is paused, and says so; nobody appends to it, and what is staged for it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.collections.objects.test_drop import EVENTS, append
from tests.support.clock import SteppedClock
from tests.support.events import append_numbers, rows_table
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.maintenance.retain import retain_all
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import Paused, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.report import ErrorReport, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport, Report
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

DAY_MS = 86_400_000


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path)


def pause(place: Home, *names: str) -> None:
    place.deployment.objects.pause(names, why="a new source")


def resume(place: Home, *names: str) -> None:
    place.deployment.objects.resume(names)


def skipped(report: CollectionReport) -> str:
    assert (report.outcome, report.exit_code) == (Outcome.SKIPPED, ExitCode.OK)
    return str(report.details["skipped_because"])


def test_an_ingestion_goes_on_where_it_was(place: Home) -> None:
    place.declare_reader()
    place.declare_reader("others")
    place.send_rows(0, 2)
    pause(place, "events")
    report = place.ingest_all()
    assert "paused since 1970-01-01 00:00:01: a new source; `tidemark resume events`" in skipped(
        report.collections["events"]
    )
    assert (place.ids("others"), list(report.collections)) == ([0, 1], ["events", "others"])
    assert place.rows() == []
    resume(place, "events")
    place.ingest_all("events")
    assert place.ids() == [0, 1]


def test_a_suspended_object_is_tried_again_at_its_time(place: Home) -> None:
    place.declare_reader()
    place.send_rows(0, 1)
    object_id = place.registry.objects()["events"].id
    place.deployment.objects.suspend("events", object_id, ErrorReport.of(Unreachable("no answer")))
    assert "suspended since" in skipped(place.ingest_all().collections["events"])
    place.clock.step(60_000)
    assert place.ingest_all().collections["events"].outcome is Outcome.APPENDED
    assert place.deployment.objects.recover("events", object_id)


def test_nobody_appends_to_a_paused_collection(place: Home) -> None:
    place.declare(EVENTS)
    append(place, 0, 1)
    with_writer = Appenders(place.shards, place.deployment, place.clock, "web")
    with_writer.register("events")
    appender = with_writer.monotonic_appender("events")
    pause(place, "events")
    with pytest.raises(Paused, match=r"'events' is paused since .*: a new source"):
        append(place, 1, 2)
    with pytest.raises(Paused):
        appender.append(rows_table([(8, "b")]))
    resume(place, "events")
    appender.append(rows_table([(9, "c")]))
    with_writer.close()
    assert (append(place, 1, 2), place.ids()) == (Outcome.APPENDED, [0, 1, 9])


def test_what_is_staged_for_it_waits_while_others_are_flushed(place: Home) -> None:
    place.declare(EVENTS + EVENTS.partition("collections:\n")[2].replace("events", "others"))
    place.switch(Mode.READ_ONLY)
    for name in ("events", "others"):
        append_numbers(place.shard(name), place.settings, 0, 2)
    place.switch(Mode.READ_WRITE)
    pause(place, "events")
    report = flush_all(place.shards, place.deployment, [], clock=place.clock)
    assert skipped(report.collections["events"])
    assert report.collections["others"].outcome is Outcome.FLUSHED
    assert [batch.collection for batch in list_batches(place.shards, [])] == ["events"]
    resume(place, "events")
    flush_all(place.shards, place.deployment, [], clock=place.clock)
    assert place.ids() == [0, 1]


def test_maintenance_goes_on_and_keeps_its_rows(place: Home) -> None:
    retention = EVENTS.replace('string"', 'string, at timestamp", retention: {age: 1d, column: at}')
    place.declare(retention)
    append_old(place)
    pause(place, "events")
    clock = SteppedClock(400 * DAY_MS)
    declared = [place.registry.get("events")]
    assert skipped(retain_all(place.shards, place.deployment, declared, clock=clock).collections["events"])
    assert maintain(place, clock).collections["events"].retracted == 0
    assert place.ids() == [1]
    resume(place, "events")
    assert maintain(place, clock).collections["events"].retracted == 1


def maintain(place: Home, clock: SteppedClock) -> Report:
    return maintain_all(None, place.deployment, ["events"], clock=clock)


def append_old(place: Home) -> None:
    rows = rows_table([(1, "old")])
    rows = rows.append_column("at", pa.array([0], pa.timestamp("us")))
    append_rows(place.shard(), BatchName("p", Range(0, 1)), rows, deployment=place.deployment, clock=place.clock)


@pytest.mark.spark
def test_a_reconcile_leaves_it_out_and_what_reads_it(home_spark: SparkSession, home: Settings, tmp_path: Path) -> None:
    from tidemark.collections.reconcile.run import reconcile_all

    place = Home(home, tmp_path)
    place.write_lines("a", "id", "1")
    source = "source: {format: csv, path: a.csv, options: {header: true}, schema: 'id bigint'}"
    inputs = "source: {inputs: {a: {collection: a}}, sql: 'SELECT id FROM a'}"
    place.declare(
        "version: 1\ncollections:\n"
        f"  a: {{kind: differential, {source}}}\n  b: {{kind: differential, {source}}}\n"
        f"  c: {{kind: differential, schema: 'id bigint', {inputs}}}\n"
    )
    pause(place, "a")
    report = reconcile_all(home_spark, place.deployment, [], clock=place.clock).collections
    assert "paused since" in skipped(report["a"])
    assert "it reads a" in skipped(report["c"])
    assert report["b"].outcome is Outcome.CORRECTED
    assert reconcile_all(home_spark, place.deployment, ["a"], dry_run=True).collections["a"].inserted == 1
    resume(place, "a")
    report = reconcile_all(home_spark, place.deployment, ["a", "c"], clock=place.clock).collections
    assert [each.inserted for each in report.values()] == [1, 1]
