"""What maintenance does beside compaction: declared retentions of rows and of staged batches; no JVM is needed."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.clock import SteppedClock
from tests.support.events import append_numbers, create_events, numbers, switch, visible
from tests.support.homes import Home
from tests.support.statuses import NOW_MS, Status, Statuses
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance import maintain
from tidemark.collections.maintenance.maintain import compact_all, maintain_all
from tidemark.collections.sources.scratch_folder import SCRATCH
from tidemark.collections.staged.batches import list_batches
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.shards import Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

DAY_MS = 86_400_000
COLUMNS = {"events": "id bigint, name string", "statuses": "id bigint, replica string, status string, at timestamp"}


def declare(settings: Settings, name: str, **more: Any) -> None:
    registry = deployment_of(settings).registry
    values = {"name": name, "kind": "append-only", "schema": COLUMNS[name], **more}
    registry.replace([Declaration.model_validate(values)], seen=registry.read())


def maintain_at(settings: Settings, now_ms: int, name: str = "events", *, is_ahead: bool = False) -> CollectionReport:
    """Maintain by a clock that the store agrees with, or that is ahead of the store's."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_ahead:
            patch.setattr(maintain, "store_now_ms", lambda _: now_ms)
        return maintain_all(None, deployment_of(settings), [name], clock=SteppedClock(now_ms)).collections[name]


def test_declared_retention_is_kept_and_reported(home: Settings) -> None:
    statuses = Statuses(home)
    statuses.append(Status(1, None, "a", 1), Status(1, None, "b", NOW_MS))
    declare(home, "statuses", retention={"age": "2d", "column": "at"})
    report = maintain_at(home, NOW_MS, "statuses")
    assert (report.outcome, report.retracted, report.error) == (Outcome.CORRECTED, 1, None)
    assert report.details["retention"] == "at within 2d"
    assert statuses.rows() == Counter([Status(1, None, "b", NOW_MS)])
    assert maintain_at(home, NOW_MS, "statuses").outcome is Outcome.UNCHANGED


def test_without_a_declared_retention_every_row_and_every_staged_batch_stays(home: Settings) -> None:
    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    append_numbers(events, home, 0, 2)
    append_numbers(events, replace(home, generation=2), 5, 7)
    declare(home, "events")
    report = maintain_at(home, 10**15)
    assert (report.outcome, report.error) == (Outcome.UNCHANGED, None)
    assert visible(events) == Counter(numbers(0, 2))
    assert len(list_batches(Shards.connect(home), [])) == 1


@pytest.mark.parametrize(("staged_retention", "left"), [("30d", [1]), ({"age": "30d", "include_leader": True}, [])])
def test_batches_that_nobody_promoted_go_after_their_time_with_a_record(
    home: Settings, staged_retention: object, left: list[int]
) -> None:
    events = create_events(home)
    switch(home, Mode.READ_ONLY)
    append_numbers(events, home, 0, 2)
    append_numbers(events, replace(home, generation=2), 5, 7)
    switch(home, Mode.READ_WRITE)
    declare(home, "events", staged_retention=staged_retention)
    shards = Shards.connect(home)
    youngest = max(each.staged_at_ms for each in list_batches(shards, []))

    oldest = min(each.staged_at_ms for each in list_batches(shards, []))
    assert "discarded" not in maintain_at(home, oldest + 30 * DAY_MS).details
    assert len(list_batches(shards, [])) == 2, "a batch of exactly that age stays"

    details = maintain_at(home, youngest + 30 * DAY_MS + 1).details
    assert [each.generation for each in list_batches(shards, [])] == left
    records = deployment_of(home).discards.read()
    assert len(records) == len(details["discarded"]) == 2 - len(left)
    assert {(each["who"], each["why"]) for each in records} == {("maintenance", "staged_retention 30d")}
    assert records[-1]["generation"] == 2


def test_clock_that_is_ahead_of_the_store_makes_nothing_too_old(home: Settings) -> None:
    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    append_numbers(events, home, 0, 2)
    append_numbers(events, replace(home, generation=2), 5, 7)
    declare(home, "events", staged_retention={"age": "1h", "include_leader": True})
    snapshots = len(events.load().table.metadata.snapshots)
    report = maintain_at(home, 10**15, is_ahead=True)
    assert (report.error, report.details["expiry"]["snapshots"], report.details.get("discarded")) == (None, 0, None)
    assert len(events.load().table.metadata.snapshots) >= snapshots
    assert len(list_batches(Shards.connect(home), [])) == 1


def test_read_only_deployment_keeps_what_is_staged_whatever_its_age(home: Settings) -> None:
    events = create_events(home)
    declare(home, "events", staged_retention={"age": "1s", "include_leader": True})
    switch(home, Mode.READ_ONLY)
    append_numbers(events, home, 0, 2)
    report = maintain_at(home, 10**15)
    assert report.error is not None
    assert report.error.kind == "ReadOnly"
    assert len(list_batches(Shards.connect(home), [])) == 1
    assert deployment_of(home).discards.read() == []


def test_sealed_collection_sheds_its_past_and_is_no_failure(home: Settings) -> None:
    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    for number in range(3):
        append_numbers(events, home, number, number + 1)
    Writer.join(events, home.generation).seal(now_ms=0)
    snapshots = len(events.load().table.metadata.snapshots)
    report = maintain_at(home, 10**15)
    assert (report.outcome, report.strategy, report.error) == (Outcome.UNCHANGED, "sealed", None)
    assert report.details["expiry"]["snapshots"] == snapshots - len(events.load().table.metadata.snapshots) > 0
    assert visible(events) == Counter(numbers(0, 3))

    switch(home, Mode.READ_ONLY)
    refused = maintain_at(home, 10**15)
    assert refused.error is not None
    assert refused.error.kind == "ReadOnly"


@pytest.mark.spark
def test_what_killed_runs_left_is_removed_once_it_is_old(home: Settings, home_spark: SparkSession) -> None:
    create_events(home)
    scratch = home.home / "warehouse" / SCRATCH
    for name in ("old", "young"):
        (scratch / name / "copy").mkdir(parents=True)
        (scratch / name / "copy" / "part").touch()
    os.utime(scratch / "old" / "copy" / "part", (1_000, 1_000))
    report = maintain_all(home_spark, deployment_of(home), [], clock=SteppedClock(1_000_000 + DAY_MS * 30))
    assert report.collections["events"].error is None
    assert [each.name for each in scratch.iterdir()] == ["young"]
    refused = maintain_all(home_spark, deployment_of(replace(home, generation=0)), [], clock=SteppedClock(10**15))
    assert refused.collections["events"].error is not None
    assert [each.name for each in scratch.iterdir()] == ["young"]


def test_clock_that_is_ahead_takes_no_file_of_a_writer_at_work(home: Settings) -> None:
    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    declare(home, "events")
    append_numbers(events, home, 0, 2)
    at_work = Path(events.load().table.location().removeprefix("file://")) / "data" / "at-work.parquet"
    at_work.touch()
    now_ms = int(at_work.stat().st_mtime * 1000)
    report = maintain_at(home, now_ms + 5 * DAY_MS, is_ahead=True)
    assert (report.error, report.details["orphans"]["files"], at_work.exists()) == (None, 0, True)
    os.utime(at_work, (0, 0))
    assert maintain_at(home, now_ms).details["orphans"]["files"] == 1


@pytest.mark.parametrize("work", ["maintenance", "compaction by hand"])
def test_small_files_are_merged_into_one_in_the_declared_order(home: Settings, tmp_path: Path, work: str) -> None:
    place = Home(home, tmp_path)
    place.apply(place.declaration("planes", cluster_by=["v"]))
    writer = Writer.join(place.shard("planes"), 1)
    for step in range(CompactionPolicy().min_small_files):
        table = writer.shard.load().table
        rows = [{"k": step * 10 + number, "v": "caebd"[number], "_time": step, "_diff": 1} for number in range(5)]
        files = write_rows(table, pa.Table.from_pylist(rows, schema=arrow_schema(table)))
        writer.publish(Batch(added=files), lower=step, new_upper=step + 1)
    if work == "maintenance":
        report = maintain_all(None, place.deployment, ["planes"], clock=place.clock)
    else:
        report = compact_all(place.deployment, ["planes"], start_spark=pytest.fail, clock=place.clock)
    assert report.collections["planes"].strategy == "compacted"
    assert [row["v"] for row in place.rows("planes")] == sorted("caebd" * 5)
    assert [row["k"] for row in place.rows("planes")][:5] == [1, 11, 21, 31, 41], "then by key"
