"""Compaction: what is chosen, and that contents, changes and old times stay as they were."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import SetSnapshotRefUpdate

from tests.conftest import settings_in
from tests.support.leftovers import leftovers
from tests.support.prepared_folder import PreparedFolder
from tests.support.rows import SCHEMA, change_log, contents, correction, updates_table
from tidemark.errors import ConflictsUnsettled, Fenced, FencedByEpoch, Sealed
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.files.manifests import read_data_files, read_delete_files
from tidemark.iceberg.maintenance import compaction
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import (
    CompactionPolicy,
    DeleteFileUse,
    FileUse,
    choose_data_files,
    choose_delete_files,
    chunk,
)
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.head import MAIN
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

POLICY = CompactionPolicy(min_small_files=2)
EAGER_SPARK = CompactionPolicy(min_small_files=2, driver_bytes=0)
ONE, OTHER = (0, (1,)), (0, (2,))


def use(
    path: str, size: int, rows: int = 10, deleted: int = 0, partition: tuple[int, tuple[object, ...]] = ONE
) -> FileUse:
    return FileUse(path, size, rows, deleted, partition)


def test_small_files_need_company_in_their_partition() -> None:
    policy = CompactionPolicy(small_file_bytes=100, min_small_files=2)
    files = [use("a", 10), use("b", 99), use("large", 100), use("lonely", 10, partition=OTHER)]
    assert choose_data_files(files, policy) == {"a", "b"}


def test_files_with_many_deleted_rows_are_rewritten_whatever_their_size() -> None:
    policy = CompactionPolicy(small_file_bytes=100, min_small_files=2, max_deleted_ratio=0.1)
    files = [use("few", 1000, rows=10, deleted=1), use("many", 1000, rows=10, deleted=2), use("small", 10)]
    assert choose_data_files(files, policy) == {"many"}


def test_delete_files_go_when_they_name_nothing_that_stays_and_merge_when_crowded() -> None:
    policy = CompactionPolicy(max_delete_files=1)
    files = [
        DeleteFileUse("dangling", ONE, frozenset({"gone"})),
        DeleteFileUse("first", ONE, frozenset({"gone", "stays"})),
        DeleteFileUse("second", ONE, frozenset({"stays"})),
        DeleteFileUse("alone", OTHER, frozenset({"other"})),
    ]
    choice = choose_delete_files(files, frozenset({"stays", "other"}), policy)
    assert choice == ({"dangling"}, {"first", "second"})


def test_chunks_stay_in_one_partition_and_below_the_limit() -> None:
    files = [use("a", 60), use("b", 60), use("c", 30), use("d", 500), use("e", 1, partition=OTHER)]
    groups = [[each.path for each in group] for group in chunk(files, 100)]
    assert groups == [["a"], ["b", "c"], ["d"], ["e"]]
    assert list(chunk([], 100)) == []


@pytest.fixture(
    params=[pytest.param(each, marks=pytest.mark.slow) for each in (1, 3)], ids=["plain", "bucketed"], scope="module"
)
def ten_corrections(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    """Ten corrections at 10, 20, ... 100, each adding five rows and taking two away; upper 101."""

    def fill(folder: Path) -> None:
        shard = Shards.connect(settings_in(folder)).create("planes", schema=SCHEMA, key=["id"], buckets=request.param)
        writer = Writer.join(shard, 1)
        lower = 0
        for step in range(1, 11):
            write_step(writer, step, lower)
            lower = step * 10 + 1

    return PreparedFolder(tmp_path_factory.mktemp("ten"), fill)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The home with the ten corrections for a test that takes ``shard``, an empty one for the others."""
    if "ten_corrections" in request.fixturenames:
        return settings_in(request.getfixturevalue("ten_corrections").restored())
    return settings_in(tmp_path)


@pytest.fixture
def shard(ten_corrections: PreparedFolder, home: Settings) -> Shard:
    return Shards.connect(home).open("planes")


def write_step(writer: Writer, step: int, lower: int) -> None:
    insert = [(step * 5 + number, "x") for number in range(5)]
    retract = [((step - 1) * 5 + number, "x") for number in (0, 3)] if step > 1 else []
    batch = correction(writer.shard.load(), insert=insert, retract=retract, time=step * 10)
    writer.publish(batch, lower=lower, new_upper=step * 10 + 1)


def counts(shard: Shard) -> tuple[int, int, int]:
    """Data files and delete files of main, and files of updates."""
    head = shard.load()
    assert head.updates is not None
    io = head.table.io
    main = len(read_data_files(io, head.main)), len(read_delete_files(io, head.main))
    return *main, len(read_data_files(io, head.updates))


def as_counter(shard: Shard, as_of: int | None = None) -> Counter[object]:
    return Counter(tuple(row.values()) for row in read_arrow(shard, as_of, with_time=True).to_pylist())


@pytest.mark.slow
def test_contents_changes_and_old_times_are_the_same_with_fewer_files(shard: Shard) -> None:
    before = [as_counter(shard, time) for time in range(0, 101, 5)]
    log, digest_state = change_log(shard.load()), shard.load().state
    result = compact(Writer.join(shard, 1), policy=POLICY)
    head = shard.load()
    buckets = max(1, 3 * len(head.table.spec().fields))
    assert result.outcome == "compacted"
    assert counts(shard) == (buckets, 0, buckets)
    assert result.files_after == 2 * buckets
    assert [as_counter(shard, time) for time in range(0, 101, 5)] == before
    assert (change_log(head), head.row_count) == (log, sum(contents(head).values()))
    assert (head.state.kind, head.state.upper) == (CommitKind.COMPACT, digest_state.upper)
    assert head.main.summary is not None
    assert head.main.summary.operation.value == "replace"
    assert check_invariant(shard).holds
    assert compact(Writer.join(shard, 1), policy=POLICY).outcome == "unchanged"


def test_corrections_go_on_after_a_compaction(shard: Shard) -> None:
    compact(Writer.join(shard, 1), policy=POLICY)
    write_step(Writer.join(shard, 1), 11, 101)
    assert contents(shard.load())[50, "x"] == 0
    assert check_invariant(shard).holds


def test_history_before_since_leaves_the_change_log(shard: Shard) -> None:
    log = change_log(shard.load())
    downgrade_since(shard, 50, now_ms=0)
    compact(Writer.join(shard, 1), policy=POLICY)
    assert change_log(shard.load()) == Counter({key: diff for key, diff in log.items() if key[1] >= 50})
    assert {row["_time"] for row in changes_arrow(shard, 50).to_pylist()} == {50, 60, 70, 80, 90, 100}
    assert check_invariant(shard).holds
    downgrade_since(shard, 75, now_ms=0)
    compact(Writer.join(shard, 1), policy=POLICY)
    assert min(row["_time"] for row in changes_arrow(shard, 75).to_pylist()) == 80
    assert check_invariant(shard).holds


def test_few_deletes_stay_and_many_delete_files_are_merged(home: Settings) -> None:
    shard = Shards.connect(home).create("large", schema=SCHEMA)
    writer = Writer.join(shard, 1)
    batch = correction(shard.load(), insert=[(number, "x") for number in range(1000)], time=10)
    writer.publish(batch, lower=0, new_upper=11)
    for step in range(4):
        batch = correction(shard.load(), retract=[(step, "x")], time=20 + step)
        writer.publish(batch, lower=11 if step == 0 else 20 + step, new_upper=21 + step)
    before = as_counter(shard)
    policy = CompactionPolicy(min_small_files=100, max_delete_files=3)
    assert counts(shard) == (1, 4, 5)
    assert compact(writer, policy=policy).outcome == "compacted"
    assert (counts(shard), as_counter(shard)) == ((1, 1, 5), before)
    assert compact(writer, policy=policy).outcome == "unchanged"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["retract from the inputs", "compact too"])
def test_a_result_whose_inputs_were_touched_is_discarded_without_a_trace(
    shard: Shard, what: str, monkeypatch: pytest.MonkeyPatch, home: Settings
) -> None:
    log: list[str] = []

    def interfere(name: str) -> None:
        if name == "compact.after-write" and not log:
            log.append(name)
            if what == "compact too":
                assert compact(Writer.join(shard, 1), policy=POLICY).outcome == "compacted"
            else:
                write_step(Writer.join(shard, 1), 11, 101)

    monkeypatch.setattr(compaction, "fail_point", interfere)
    files_before: set[str] = set()
    result = compact(Writer.join(shard, 1), policy=POLICY)
    assert (result.outcome, log) == ("discarded", ["compact.after-write"])
    head = shard.load()
    assert head.updates is not None
    named = {
        path.rpartition("/")[2]
        for snapshot in head.table.metadata.snapshots
        for path in read_data_files(head.table.io, snapshot)
    }
    stored = {
        path.name for path in (home.home / "warehouse").rglob("*.parquet") if not path.name.startswith("deletes-")
    }
    assert stored - named == files_before
    assert check_invariant(shard).holds


def test_added_rows_do_not_stop_a_compaction(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    def interfere(name: str) -> None:
        if name == "compact.after-write":
            batch = correction(shard.load(), insert=[(999, "new")], time=110)
            Writer.join(shard, 1).publish(batch, lower=101, new_upper=111)

    monkeypatch.setattr(compaction, "fail_point", interfere)
    assert compact(Writer.join(shard, 1), policy=POLICY).outcome == "compacted"
    assert contents(shard.load())[999, "new"] == 1
    assert check_invariant(shard).holds


def test_a_fenced_writer_may_not_compact(shard: Shard) -> None:
    writer = Writer.raise_token(shard, 1)
    Writer.raise_token(shard, 1)
    with pytest.raises(FencedByEpoch):
        compact(writer, policy=POLICY)


@pytest.mark.parametrize("work", [compact, partial(expire, older_than_ms=0)], ids=["compact", "expire"])
def test_a_writer_that_its_own_deployment_fenced_is_told_to_start_over(
    work: Callable[[Writer], Any], shard: Shard
) -> None:
    joined_before_it_led = Writer.join(shard, 2)
    Writer.lead(shard, 2)
    with pytest.raises(FencedByEpoch):
        work(joined_before_it_led)


def interfere_after_write(monkeypatch: pytest.MonkeyPatch, what: str, shard: Shard) -> None:
    def interfere(name: str) -> None:
        if name != "compact.after-write":
            return
        if what == "fence":
            Writer.raise_token(shard, 1)
        elif what == "seal":
            Writer.join(shard, 1).seal(now_ms=0)
        else:
            monkeypatch.setattr(shard_commit, "ATTEMPTS", 1)
            monkeypatch.setattr(shard.iceberg, "commit_table", lose_publishes(shard.iceberg.commit_table))

    monkeypatch.setattr(compaction, "fail_point", interfere)


def lose_publishes(commit_table: Callable[..., object]) -> Callable[..., object]:
    """Let every commit lose that would move main; those beside it go through."""

    def commit(table: object, requirements: object, updates: tuple[object, ...]) -> object:
        if any(isinstance(each, SetSnapshotRefUpdate) and each.ref_name == MAIN for each in updates):
            raise CommitFailedException("another commit won")
        return commit_table(table, requirements, updates)

    return commit


@pytest.mark.parametrize(("what", "error"), [("fence", Fenced), ("seal", Sealed), ("conflicts", ConflictsUnsettled)])
def test_a_result_that_may_not_be_published_leaves_no_files(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, home: Settings, what: str, error: type[Exception]
) -> None:
    interfere_after_write(monkeypatch, what, shard)
    with pytest.raises(error):
        compact(Writer.join(shard, 1), policy=POLICY)
    assert {name for name in leftovers(home, shard) if name.endswith(".parquet")} == set()


@pytest.mark.spark
def test_what_spark_staged_and_may_not_be_published_leaves_no_branch(
    home_spark: SparkSession, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfere_after_write(monkeypatch, "fence", shard)
    with pytest.raises(Fenced):
        compact(Writer.join(shard, 1), spark=home_spark, policy=EAGER_SPARK)
    assert shard.load().staged_branches == {}


def test_append_only_shards_are_compacted_with_foreign_appends_in_place(home: Settings) -> None:
    events = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    writer = Writer.join(events, 1)
    for number in range(4):
        head = events.load()
        rows = updates_table([(number, "x")], time=0, diff=1).drop_columns(["_time", "_diff"])
        rows = rows.append_column("_producer", [["p"]]).append_column("_batch", [[0]])
        writer.publish(Batch(added=write_rows(head.table, rows)), lower=number, new_upper=number + 1)
    before = contents(events.load())
    assert compact(writer, policy=POLICY).outcome == "compacted"
    assert contents(events.load()) == before
    assert len(read_data_files(events.load().table.io, events.load().main)) == 1


@pytest.mark.spark
def test_spark_rewrites_what_is_too_much_for_the_driver(home_spark: SparkSession, shard: Shard) -> None:
    before, log = as_counter(shard), change_log(shard.load())
    downgrade_since(shard, 50, now_ms=0)
    assert compact(Writer.join(shard, 1), spark=home_spark, policy=EAGER_SPARK).outcome == "compacted"
    head = shard.load()
    assert (as_counter(shard), head.staged_branches) == (before, {})
    assert change_log(head) == Counter({key: diff for key, diff in log.items() if key[1] >= 50})
    assert counts(shard)[1] == 0
    assert check_invariant(shard, spark=home_spark).holds
