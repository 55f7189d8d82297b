"""What runs leave in the collections of the system, in a real embedded installation; no JVM is needed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest

from tests.support.crash import die_at
from tests.support.homes import Home
from tests.support.recorded import DAY_MS, DOWN, GUARDED, NOW_MS, OK, record, run_report, statuses, stored
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.items.kinds import SINK, NamedKey, SinkValue
from tidemark.clock import SystemClock
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Add
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import Column, Primitive
from tidemark.collections.system import recorder
from tidemark.collections.system.declarations import KEPT_STATUSES, STATISTICS, STATUS
from tidemark.collections.system.recorder import (
    FAIL_POINTS,
    record_drops,
    record_left_drops,
    record_run,
    record_standings,
)
from tidemark.collections.system.status_table import read_status_table
from tidemark.entry_points import recording_failure, write_report
from tidemark.errors import ConfigurationInvalid, UnknownCollection
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.reading.spark import read
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import SYSTEM
from tidemark.report import CollectionReport, Outcome
from tidemark.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_status_is_stored_when_it_changes_and_measures_of_each_run(seen: Home) -> None:
    for result in (OK, OK, DOWN, DOWN, OK):
        record(seen, result)
    assert statuses(seen) == [("running", None), ("stalled", "Unreachable: no answer"), ("running", None)]
    first, second = stored(seen, STATUS)[:2]
    assert first["details"] is None
    assert json.loads(second["details"])["hints"] == ["start it"]
    assert (second["object"], second["kind"], second["generation"]) == ("planes", "collection", 1)
    measured = [(row["operation"], row["outcome"], row["rows"], row["seconds"]) for row in stored(seen, STATISTICS)]
    assert measured == [("reconcile", outcome, rows, seconds) for outcome, rows, seconds in
                        [("corrected", 3, 0.5)] * 2 + [("failed", 0, 0.0)] * 2 + [("corrected", 3, 0.5)]]  # fmt: skip


def test_another_reason_is_another_status(seen: Home) -> None:
    for result in (DOWN, GUARDED, GUARDED):
        record(seen, result)
    assert [error for _, error in statuses(seen)] == ["Unreachable: no answer", "GuardRefused: all rows would go"]


def test_all_statuses_of_a_run_are_one_commit_and_so_are_all_measures(seen: Home) -> None:
    seen.apply(seen.declaration("engines"))
    record(seen, OK, "planes", "engines", "planes_quarantine")
    for name in (STATUS, STATISTICS):
        assert sorted(row["object"] for row in stored(seen, name)) == ["engines", "planes"]
        assert len(seen.shards.open(name).load().table.metadata.snapshots) == 2 + 1, "genesis, token and one append"


def test_upkeep_is_measured_alone(seen: Home) -> None:
    record(seen, DOWN, operation="maintain")
    assert not seen.shards.exists(STATUS, SYSTEM), "made when there is something to say"
    assert [(row["operation"], row["error"]) for row in stored(seen, STATISTICS)] == [("maintain", "Unreachable")]


def test_a_table_of_an_older_version_gets_the_new_columns_with_the_first_append(seen: Home) -> None:
    older = "measured_at timestamp, object string, object_id bigint, operation string, outcome string, seconds double"
    columns = to_iceberg(parse_columns(older))
    shard = seen.shards.create(STATISTICS, schema=columns, layout=ShardKind.APPEND_ONLY, namespace=SYSTEM)
    known = seen.registry.objects()["planes"].id
    old = [(NOW_MS * 1_000, "planes", known, "reconcile", "corrected", 7.0)]
    rows = pa.Table.from_pylist([dict(zip(columns.column_names, row, strict=True)) for row in old], columns.as_arrow())
    with closing(Appenders(seen.shards, seen.deployment, seen.clock, producer="older")) as appenders:
        appenders.register(STATISTICS, namespace=SYSTEM, on_read_only=OnReadOnly.REJECT)
        appenders.monotonic_appender(STATISTICS).append(rows)
    (shown,) = read_status_table(seen.deployment)
    assert (shown.seconds, shown.lag_ms) == (7.0, None), "read before anything is altered"

    record(seen, OK)
    assert [(row["seconds"], row["rows"]) for row in stored(seen, STATISTICS)] == [(7.0, None), (0.5, 3)]
    alter_columns(shard, [Add(STATISTICS, Column("mood", Primitive("string")))])  # as a version after this one does
    record(seen, OK)
    assert [(row["rows"], row["mood"]) for row in stored(seen, STATISTICS)] == [(None, None), (3, None), (3, None)]


def test_a_read_only_deployment_records_nothing(seen: Home, caplog: pytest.LogCaptureFixture) -> None:
    seen.switch(Mode.READ_ONLY)
    with caplog.at_level("INFO"):
        record(seen, OK)
    assert "is read-only: nothing is recorded" in caplog.text
    assert not seen.shards.exists(STATUS, SYSTEM)


def test_a_deployment_that_stands_by_records_nothing(seen: Home) -> None:
    record(seen.of_generation(2), OK)
    assert not seen.shards.exists(STATUS, SYSTEM)


def test_what_cannot_be_recorded_is_in_the_log_alone(seen: Home, caplog: pytest.LogCaptureFixture) -> None:
    record(seen, OK)
    seen.of_generation(2).switch(Mode.READ_WRITE)
    record(seen, DOWN)
    assert "the run 'reconcile': not stored: FencedByGeneration" in caplog.text
    assert statuses(seen) == [("running", None)]
    record(seen.of_generation(2), DOWN)
    assert [row["generation"] for row in stored(seen, STATUS)] == [1, 2], "the deployment that leads now goes on"


def test_an_application_records_after_its_report_and_ends_as_that_says(
    seen: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(seen.settings.home))
    path = tmp_path / "report.json"

    def end(result: CollectionReport, **options: Any) -> int:
        return write_report(path, "reconcile", lambda _: run_report(result), clock=SystemClock(), **options)

    assert end(DOWN, records=False) == ExitCode.UNREACHABLE
    assert not seen.shards.exists(STATISTICS, SYSTEM)
    assert end(OK) == ExitCode.OK
    assert statuses(seen) == [("running", None)]
    seen.of_generation(2).switch(Mode.READ_WRITE)
    path.unlink()
    assert end(OK) == ExitCode.OK, "although nothing can be recorded"
    assert path.exists()


@pytest.mark.parametrize("names", [["planes", "nobody"], []])
def test_a_run_that_ends_before_its_first_object_failed_for_those_that_it_is_for(
    seen: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(seen.settings.home))
    seen.declare_reader("events")  # which no reconcile is for

    def cannot_start(_: Settings) -> NoReturn:
        raise ConfigurationInvalid("there is no Java", hint="install one")

    code = write_report(tmp_path / "r.json", "reconcile", cannot_start, clock=SystemClock(), names=names)
    assert code == ExitCode.CONFIGURATION
    (status,) = stored(seen, STATUS)
    assert (status["object"], status["status"], status["error"]) == (
        "planes",
        "stalled",
        "ConfigurationInvalid: there is no Java",
    )
    with pytest.raises(UnknownCollection), recording_failure(seen.settings, "reconcile", names, clock=SystemClock()):
        raise UnknownCollection.named("plane", ["planes"])
    assert len(stored(seen, STATISTICS)) == 1, "an error of the caller"


def test_what_is_paused_resumed_and_dropped_is_said_once(seen: Home) -> None:
    known = seen.registry.objects()

    def say() -> None:
        seen.clock.step(1_000)
        record_standings(seen.deployment, ["planes"], clock=seen.clock)

    seen.deployment.objects.pause(["planes"], why="a check")
    say()
    say()
    record(seen, CollectionReport(outcome=Outcome.SKIPPED))
    record(seen, OK, operation="maintain")
    assert statuses(seen) == [("paused", "a check")], "what a run finds paused is no news"
    seen.deployment.objects.resume(["planes"])
    say()
    seen.deployment.objects.drop(seen.deployment.objects.look(["planes"]))
    for _ in range(2):
        seen.clock.step(1_000)
        record_drops(seen.deployment, known, who="ada", clock=seen.clock)
    record(seen, OK)
    assert [status for status, _ in statuses(seen)] == ["paused", "starting", "dropped"]
    assert json.loads(stored(seen, STATUS)[-1]["details"]) == {"namespaced": {"who": "ada"}}
    seen.apply(seen.declaration("planes"))
    record(seen, OK)
    assert statuses(seen)[-1][0] == "running", "another object of that name, which was declared anew"
    assert [row["object_id"] for row in stored(seen, STATUS)] == [known["planes"].id] * 3 + [known["planes"].id + 1]


def test_drops_that_nobody_recorded_are_recorded_once_as_what_was_dropped(seen: Home) -> None:
    seen.declare_reader("events")
    seen.declare_latest("latest")
    seen.declare_sink("copies", "latest", to={"path": "out"})
    record(seen, OK, "events", operation="ingest")
    objects = deployment_of(seen.settings, who="ada", clock=seen.clock).objects
    tables = {"events": "u", "events_quarantine": "v"}
    objects.drop([replace(each, tables=tables) for each in objects.look(["events"])])
    objects.drop(objects.look(["copies", "planes"]))
    for _ in range(2):
        seen.clock.step(1_000)
        record_left_drops(seen.deployment, clock=seen.clock)
    recorded = sorted((row["object"], row["kind"], row["status"]) for row in stored(seen, STATUS))
    assert recorded == [
        ("copies", "sink", "dropped"),
        ("events", "ingestion", "dropped"),
        ("events", "ingestion", "running"),
        ("planes", "collection", "dropped"),
    ]
    assert json.loads(stored(seen, STATUS)[-1]["details"]) == {"namespaced": {"who": "ada"}}


def test_of_two_that_record_one_status_at_once_one_is_stored(seen: Home) -> None:
    record(seen, OK)
    shards, deployment = seen.shards, seen.deployment
    row = {**stored(seen, STATUS)[0], "status": "stalled", "error": "E"}
    row["occurred_at"] += timedelta(seconds=1)
    rows = pa.Table.from_pylist([row, row], schema=read_arrow(shards.open(STATUS)).schema)
    both = [Appenders(shards, deployment, seen.clock, producer="tidemark") for _ in range(2)]
    answers: list[Future[Any]] = []
    for appenders in both:
        appenders.register(STATUS, namespace=SYSTEM, on_read_only=OnReadOnly.REJECT)
        answers.append(appenders.monotonic_appender(STATUS).task.put(rows))
    for answer in answers:
        answer.result()
    for appenders in both:
        appenders.close()
    assert [status for status, _ in statuses(seen)] == ["running", "stalled"]


def test_a_sink_under_the_name_of_a_dropped_collection_has_statuses_of_its_own(seen: Home) -> None:
    known = seen.registry.objects()
    seen.deployment.objects.drop(seen.deployment.objects.look(["planes"]))
    record_drops(seen.deployment, known, who="ada", clock=seen.clock)
    with seen.catalog.join() as handle:
        value = SinkValue(id=known["planes"].id, collection="others", definition={})
        handle.transact(lambda transaction: transaction.put(SINK, NamedKey(name="planes"), value))
    record(seen, OK, operation="sink")
    assert [(row["kind"], row["status"]) for row in stored(seen, STATUS)] == [
        ("collection", "dropped"),
        ("sink", "running"),
    ]
    assert [(row["kind"], row["operation"]) for row in stored(seen, STATISTICS)] == [("sink", "sink")]


@pytest.mark.slow  # stores that are really written, again and again
def test_maintenance_keeps_what_is_declared_and_merges_small_files(seen: Home) -> None:
    for number in range(KEPT_STATUSES + 3):
        record(seen, OK if number % 2 else DOWN)
    seen.clock.step(31 * DAY_MS)
    record(seen, OK, operation="append")
    maintain_all(None, seen.deployment, [], clock=seen.clock)
    assert len(stored(seen, STATUS)) == KEPT_STATUSES
    assert [row["operation"] for row in stored(seen, STATISTICS)] == ["append"]
    for name in (STATUS, STATISTICS):
        assert len(list(seen.shards.open(name).load().table.scan().plan_files())) <= 2


@pytest.mark.slow  # stores that are really written, again and again
def test_commits_do_not_pile_up_between_two_maintenances(seen: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_OLD_COMMITS", 5)
    for result in [DOWN, OK] * 4:
        record_run(seen.deployment, run_report(result), clock=SystemClock())  # commits bear the time of the machine
    assert len(seen.shards.open(STATUS).load().table.metadata.snapshots) >= 8
    monkeypatch.setattr(recorder, "OLD_MS", 0)  # as if time had passed
    record_run(seen.deployment, run_report(OK), clock=SystemClock())
    for name in (STATUS, STATISTICS):
        table = seen.shards.open(name).load().table
        assert len(table.metadata.snapshots) <= 3
        assert len(list(table.scan().plan_files())) <= 2
    assert len(statuses(seen)) == 8, "the last one was no news"


@pytest.mark.spark
def test_spark_reads_them_too(home_spark: SparkSession, seen: Home) -> None:
    record(seen, OK)
    rows = read(home_spark, seen.shards.open(STATUS)).select("object", "status").collect()
    assert [tuple(row) for row in rows] == [("planes", "running")]
    assert home_spark.table("tidemark.system.system_statistics").count() == 1


def record_in_another_process(settings: Settings) -> None:
    home = Home(settings, now_ms=NOW_MS + 60_000)
    record_run(deployment_of(settings), run_report(DOWN), clock=home.clock)


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_the_next_run_says_what_a_killed_one_did_not(seen: Home, point: str) -> None:
    record(seen, OK)
    assert die_at(point, record_in_another_process, seen.settings) == FAIL_POINT_EXIT
    seen.clock.step(120_000)
    record(seen, DOWN)
    assert [status for status, _ in statuses(seen)] == ["running", "stalled"]
