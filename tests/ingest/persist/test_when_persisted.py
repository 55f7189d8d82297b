"""``visible: when-persisted``: main shows persisted rows alone, the others wait on the tag ``tidemark-open``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import at, declare, partitions_by, send
from tests.ingest.persist.test_persist import lose_state, old, persist, stored
from tests.support.declared import HEAD
from tests.support.dying import Crash, dying_at
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import IncompatibleChange, UsageError
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.maintenance.repair import repair
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.ingest.partitions import state as partition_state
from tidemark.ingest.persist import persist as persisting
from tidemark.ingest.persist.unload import unload_all
from tidemark.interval import LATEST_MS
from tidemark.orchestration.results import published_facts
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.homes import Home
    from tidemark.report import CollectionReport

pytestmark = pytest.mark.slow


@pytest.fixture
def waiting(hourly: Home) -> Home:
    declare(hourly, visible="when-persisted")
    return hourly


def all_ids(home: Home) -> list[int]:
    return sorted(read_arrow(home.shard(), with_open=True).column("id").to_pylist())


def facts(report: CollectionReport, operation: str) -> object:
    return published_facts({**report.to_json(), "operation": operation, "generation": 1})


def test_main_shows_what_is_persisted(waiting: Home) -> None:
    send(waiting, 0, 50, 10)
    report = waiting.ingest()
    assert (report.inserted, [*report.details["open_ranges"].values()]) == (2, [[[0, 2]]])
    assert facts(report, "ingest") is None, "no reader sees another row"
    assert (waiting.ids(), all_ids(waiting)) == ([], [0, 1])
    at(waiting, 4)
    send(waiting, 0, 20, 40)
    waiting.ingest()
    at(waiting, 6)
    report = persist(waiting, now=False)
    assert report.strategy == "unchanged"
    at(waiting, 12)
    report = persist(waiting)
    assert (report.outcome, report.inserted, report.strategy) == (Outcome.APPENDED, 4, "persisted")
    assert facts(report, "persist") is not None
    assert (stored(waiting), all_ids(waiting)) == ([old(10, 20, 40, 50)], [0, 1, 2, 3])
    with pytest.raises(UsageError, match="open rows are those of now"):
        read_arrow(waiting.shard(), 5, with_open=True)


def test_what_is_young_stays_on_the_branch(waiting: Home) -> None:
    declare(waiting, visible="when-persisted", persist_rows=2, persist_when_cold=False)
    at(waiting, 10)
    send(waiting, 0, 3, 8)
    waiting.ingest()
    at(waiting, 14)
    send(waiting, 0, 5, 12)
    waiting.ingest()
    at(waiting, 15)
    assert persist(waiting).inserted == 3
    assert (stored(waiting), waiting.ids(), all_ids(waiting)) == ([old(3, 5, 8)], [0, 1, 2], [0, 1, 2, 3])
    assert persist(waiting, now=True).inserted == 1
    assert (stored(waiting), all_ids(waiting)) == ([old(3, 5, 8, 12)], [0, 1, 2, 3])


def test_a_partition_is_closed_once_its_rows_are_visible(waiting: Home) -> None:
    at(waiting, 66)
    send(waiting, 0, 10, 66)
    send(waiting, 1, 20, 65)
    waiting.ingest()
    at(waiting, 74)
    send(waiting, 0, 73)
    send(waiting, 1, 73)
    assert "closed" not in waiting.ingest().details
    assert persist(waiting).inserted == 2
    closed = waiting.ingest().details["closed"]
    assert closed == [{"partition": "2013-01-03T05", "rows": 2, "late_rows": 0}]


@pytest.mark.parametrize("point", [*persisting.FAIL_POINTS, "publish.before-commit:2", "publish.after-commit:2"])
def test_a_pass_that_dies_loses_and_doubles_no_row(waiting: Home, point: str) -> None:
    send(waiting, 0, 30, 10)
    waiting.ingest()
    at(waiting, 6)
    with pytest.raises(Crash), dying_at(point):
        persist(waiting)
    assert all_ids(waiting) == [0, 1]
    assert waiting.ids() in ([], [0, 1])
    send(waiting, 0, 35)
    waiting.ingest()
    at(waiting, 12)
    persist(waiting)
    assert sorted(minute for each in stored(waiting) for minute in each.minutes) == [10, 30, 35]
    assert (waiting.ids(), all_ids(waiting), waiting.branches()) == ([0, 1, 2], [0, 1, 2], set())


def test_an_ingest_beside_a_pass_keeps_its_rows(waiting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    send(waiting, 0, 30, 10)
    waiting.ingest()
    at(waiting, 6)
    write = persisting._write

    def ingest_first(run: object) -> None:
        monkeypatch.undo()
        send(waiting, 1, 15)
        waiting.ingest()
        write(run)  # type: ignore[arg-type]

    monkeypatch.setattr(persisting, "_write", ingest_first)
    assert persist(waiting).inserted == 2
    assert (waiting.ids(), all_ids(waiting)) == ([0, 1], [0, 1, 2])


def test_what_a_flush_publishes_waits_too_and_is_known_after_an_ingest(waiting: Home) -> None:
    waiting.switch(Mode.READ_ONLY)
    for _ in range(9):
        send(waiting, 0, 3)
        send(waiting, 1, 4)
        waiting.ingest()
    waiting.switch(Mode.READ_WRITE)
    flush_all(waiting.shards, deployment_of(waiting.settings), [], clock=waiting.clock)
    assert (waiting.ids(), all_ids(waiting)) == ([], list(range(18)))
    waiting.ingest()
    at(waiting, 12)
    assert persist(waiting).inserted == 18
    assert (waiting.ids(), all_ids(waiting)) == (list(range(18)), list(range(18)))


def test_rules_may_be_altered_while_rows_wait(waiting: Home) -> None:
    send(waiting, 0, 1)
    waiting.ingest()
    declare(waiting, visible="at-once")
    send(waiting, 0, 2)
    waiting.ingest()
    assert (waiting.ids(), all_ids(waiting)) == ([1], [0, 1])
    lose_state(waiting)
    waiting.ingest()
    known = partitions_by(waiting).state.partitions["2013-01-03T05"]
    assert known.rows == 2, "also those of the branch"
    at(waiting, 12)
    assert persist(waiting).strategy == "persisted"
    assert (stored(waiting), waiting.ids()) == ([old(1, 2)], [0, 1])


def test_event_times_are_not_altered_while_rows_wait_by_them(waiting: Home) -> None:
    send(waiting, 0, 1)
    waiting.ingest()
    text = HEAD + "  events: {kind: append-only, schema: 'id bigint, at timestamp', source: {buffer: '%s'}}\n"
    with pytest.raises(IncompatibleChange, match="1 rows wait to be persisted by their `event_time` 'at'"):
        waiting.declare(text % waiting.buffer_folder.as_uri())
    persist(waiting, now=True)
    waiting.declare(text % waiting.buffer_folder.as_uri())
    assert waiting.ids() == [0]


def test_rows_that_wait_are_not_left_without_a_persist(waiting: Home) -> None:
    at(waiting, 66)
    send(waiting, 0, 10, 20)
    waiting.ingest()
    text = HEAD + (
        "  events: {kind: append-only, schema: 'id bigint, at timestamp', source: {buffer: '%s'}, event_time: at,\n"
        "    partition: hour, lifecycle: {persist: false}}\n"
    )
    with pytest.raises(IncompatibleChange, match="2 rows wait to be persisted, and `persist: false` would never") as no:
        waiting.declare(text % waiting.buffer_folder.as_uri())
    assert "tidemark buffer persist events --now" in str(no.value)
    persist(waiting, now=True)
    waiting.declare(text % waiting.buffer_folder.as_uri())
    assert waiting.ids() == [0, 1]


def test_an_ingest_that_began_before_the_rules_were_altered_leaves_no_row_behind(
    waiting: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_state, "KEPT_CLOSED", 0)
    at(waiting, 66)
    send(waiting, 0, 10, 66)
    send(waiting, 1, 20, 65)
    waiting.ingest()
    declare(waiting, persist=False)  # past the apply, which looked before
    at(waiting, 74)
    send(waiting, 0, 73)
    send(waiting, 1, 73)
    assert "closed" not in waiting.ingest().details
    assert persist(waiting).inserted == 2
    closed = waiting.ingest().details["closed"]
    assert closed == [{"partition": "2013-01-03T05", "rows": 2, "late_rows": 0}]
    at(waiting, 80)
    assert persist(waiting).inserted == 2
    assert waiting.ids() == all_ids(waiting) == [*range(6)]


def test_a_partition_with_rows_that_wait_closes_when_they_are_visible_whatever_is_declared_by_now(
    waiting: Home,
) -> None:
    at(waiting, 66)
    send(waiting, 0, 10, 66)
    send(waiting, 1, 20, 65)
    waiting.ingest()
    declare(waiting, visible="at-once")
    at(waiting, 74)
    send(waiting, 0, 73)
    send(waiting, 1, 73)
    assert "closed" not in waiting.ingest().details
    assert persist(waiting).inserted == 2
    assert [each["partition"] for each in waiting.ingest().details["closed"]] == ["2013-01-03T05"]


def test_maintenance_leaves_open_rows_alone_and_takes_what_nobody_reads(waiting: Home) -> None:
    for minute in range(4):
        send(waiting, 0, minute)
        waiting.ingest()
    shard = waiting.shard()
    writer = Writer.join(shard, 1)
    compact(writer)
    expire(writer, older_than_ms=LATEST_MS)
    remove_orphans(shard, older_than_ms=LATEST_MS)
    assert all_ids(waiting) == [0, 1, 2, 3]
    at(waiting, 12)
    assert persist(waiting).inserted == 4
    assert expire(writer, older_than_ms=LATEST_MS).files >= 4, "the open files of persisted rows"
    assert (waiting.ids(), all_ids(waiting)) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_above_the_hard_limit_an_ingest_pauses(waiting: Home) -> None:
    declare(waiting, visible="when-persisted", hard_limit=2)
    send(waiting, 0, 1, 2)
    waiting.ingest()
    send(waiting, 0, 3)
    report = waiting.ingest()
    assert report.error is not None
    assert report.error.kind == "HardLimit"
    persist(waiting, now=True)
    assert waiting.ingest().inserted == 1
    assert all_ids(waiting) == [0, 1, 2]


def test_a_compaction_merges_open_files_and_unloading_drops_copies(waiting: Home) -> None:
    for minute in range(6):
        send(waiting, 0, minute)
        waiting.ingest()
    shard = waiting.shard()

    def open_files() -> int:
        head = shard.load()
        assert head.open is not None
        return len(read_data_files(head.table.io, head.open))

    assert open_files() == 6
    assert compact(Writer.join(shard, 1)).files_before == 6
    assert (open_files(), waiting.ids(), all_ids(waiting)) == (1, [], list(range(6)))
    unloading = [waiting.registry.get("events")]
    report = unload_all(waiting.shards, waiting.deployment, unloading, clock=waiting.clock)
    assert report.collections["events"].details["expiry"]["snapshots"] == 6
    assert all_ids(waiting) == list(range(6))
    at(waiting, 20)
    assert persist(waiting).inserted == 6
    assert (open_files(), waiting.ids(), all_ids(waiting)) == (0, list(range(6)), list(range(6)))


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_lost_tag_is_told_and_put_back(waiting: Home, *, is_expired: bool) -> None:
    send(waiting, 0, 1)
    waiting.ingest()
    table = waiting.shards.iceberg.load_table(("collections", "events"))
    opened = table.metadata.refs["tidemark-open"].snapshot_id
    with table.manage_snapshots() as snapshots:
        snapshots.remove_tag("tidemark-open")
    if is_expired:
        table.refresh().maintenance.expire_snapshots().by_id(opened).commit()
    send(waiting, 0, 2)
    report = waiting.ingest()
    assert report.error is not None
    assert (report.error.kind, "lacks its ref 'tidemark-open'" in report.error.message) == ("CorruptState", True)
    repaired = repair(waiting.shard(), generation=1)
    assert [*repaired.refs] == ["tidemark-open"]
    assert [lost.partition(":")[0] for lost in repaired.lost] == ["what was accepted and not persisted"] * is_expired
    waiting.ingest()
    assert all_ids(waiting) == ([1] if is_expired else [0, 1])


@pytest.mark.spark
def test_spark_persists_and_shows_open_rows(home_spark: SparkSession, waiting: Home) -> None:
    from tidemark.iceberg.reading.spark import create_open_view

    at(waiting, 65)
    send(waiting, 0, 50, 10, 61, 64)
    waiting.ingest()
    at(waiting, 96)
    send(waiting, 0, 95)
    waiting.ingest()
    assert persist(waiting, spark=home_spark).inserted == 4
    assert (waiting.ids(), all_ids(waiting)) == ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    view = create_open_view(home_spark, waiting.shard())
    assert sorted(row.id for row in home_spark.sql(f"SELECT id FROM {view}").collect()) == [0, 1, 2, 3, 4]
    other = "SELECT count(*) FROM tidemark.collections.events VERSION AS OF 'tidemark-open'"
    assert home_spark.sql(other).collect()[0][0] == 1
    at(waiting, 160)
    assert persist(waiting, spark=home_spark).inserted == 1
    assert (waiting.ids(), all_ids(waiting), waiting.branches()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], set())
