"""What Spark stages: on branches alone, reused when intact, gone when abandoned."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat

from tests.support.rows import SCHEMA, change_log, contents, local_path
from tests.support.spark_rows import GENERATION, correct_with_spark, rows_of
from tests.support.stored import read_staged
from tidemark.errors import InputsGone
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.reading.spark import pinned, read
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.staging.branches import branch_name, drop_staged, find_abandoned, list_staged
from tidemark.iceberg.staging.frames import stage
from tidemark.iceberg.staging.spark_corrections import stage_corrections, write_deletes_with_spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


@pytest.fixture
def shard(shards: Shards, unique_name: str) -> Shard:
    return shards.create(unique_name, schema=SCHEMA, key=["id"])


@pytest.fixture
def bucketed(shards: Shards, unique_name: str) -> Shard:
    return shards.create(f"{unique_name}_bucketed", schema=SCHEMA, key=["id"], buckets=4)


def updates_of(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr(
        "id", "'x' AS name", "CAST(5 AS BIGINT) AS _time", "CAST(1 AS BIGINT) AS _diff"
    )


def branch(batch: str, generation: int = GENERATION) -> str:
    return branch_name(generation=generation, writer="test", batch=batch)


def files_below(settings: Settings, shard: Shard) -> set[Path]:
    folder = settings.home / "warehouse" / "collections" / shard.name / "data"
    return set(folder.rglob("*.parquet"))


def test_staged_rows_reach_no_other_branch(spark: SparkSession, shard: Shard) -> None:
    before = shard.load()
    staged = stage(shard, updates_of(spark, 10), branch=branch("one"))
    after = shard.load()
    assert (staged.rows, sum(file.record_count for file in staged.files)) == (10, 10)
    assert (after.main, after.updates, after.foreign) == (before.main, before.updates, None)
    assert read(spark, shard).count() == 0
    assert spark.read.option("branch", staged.branch).table(shard.spark_name).count() == 10
    assert [each.branch for each in list_staged(after)] == [branch("one")]


def test_spark_writes_parquet_whatever_another_tool_has_set(spark: SparkSession, shard: Shard) -> None:
    with shard.load().table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "avro"})
    staged = stage(shard, updates_of(spark, 10), branch=branch("one"))
    assert {file.file_format for file in staged.files} == {FileFormat.PARQUET}


def test_staged_files_are_published_with_their_branch_in_one_commit(spark: SparkSession, shard: Shard) -> None:
    staged = stage(shard, updates_of(spark, 3), branch=branch("one"))
    batch = Batch(added=staged.files, branches=((staged.branch, staged.snapshot_id),))
    Writer.join(shard, GENERATION).publish(batch, lower=0, new_upper=6)
    assert shard.load().staged_branches == {}
    assert read(spark, shard).count() == 3
    assert contents(shard.load()) == Counter({(number, "x"): 1 for number in range(3)})


def test_same_fingerprint_is_reused_and_another_is_staged_again(
    spark: SparkSession, shard: Shard, settings: Settings
) -> None:
    first = stage(shard, updates_of(spark, 3), branch=branch("one"), fingerprint="plan 1")
    again = stage(shard, updates_of(spark, 99), branch=branch("one"), fingerprint="plan 1")
    assert (again.snapshot_id, again.rows) == (first.snapshot_id, 3)
    assert read_staged(shard, branch("one")).files == first.files
    other = stage(shard, updates_of(spark, 4), branch=branch("one"), fingerprint="plan 2")
    assert (other.rows, len(shard.load().staged_branches)) == (4, 1)
    assert {local_path(file.file_path) for file in other.files} == {str(each) for each in files_below(settings, shard)}


def test_branch_with_a_second_snapshot_is_not_intact(spark: SparkSession, shard: Shard) -> None:
    stage(shard, updates_of(spark, 3), branch=branch("one"), fingerprint="plan")
    updates_of(spark, 1).writeTo(f"{shard.spark_name}.`branch_{branch('one')}`").append()
    assert stage(shard, updates_of(spark, 3), branch=branch("one"), fingerprint="plan").rows == 3


def test_empty_rows_are_a_batch_without_files(spark: SparkSession, shard: Shard) -> None:
    staged = stage(shard, updates_of(spark, 0), branch=branch("none"))
    assert (staged.rows, staged.files) == (0, ())


def test_many_threads_stage_on_one_shard_in_one_session(spark: SparkSession, shard: Shard) -> None:
    def stage_one(number: int) -> int:
        return stage(shard, updates_of(spark, number), branch=branch(f"b{number}")).rows

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(stage_one, range(1, 9))) == list(range(1, 9))
    head = shard.load()
    assert [each.rows for each in list_staged(head)] == list(range(1, 9))
    assert contents(head) == Counter()


def test_branches_of_dead_generations_and_old_ones_are_abandoned(
    spark: SparkSession, shard: Shard, shards: Shards, settings: Settings, unique_name: str
) -> None:
    stage(shard, updates_of(spark, 2), branch=branch("dead", generation=1))
    Writer.raise_token(shard, 2)
    fresh = stage(shard, updates_of(spark, 2), branch=branch("fresh", generation=2))
    head = shard.load()
    now_ms = fresh.staged_at_ms
    assert find_abandoned(head, now_ms=now_ms, max_age_ms=DAY_MS) == [branch("dead", generation=1)]
    assert len(find_abandoned(head, now_ms=now_ms + DAY_MS + 1, max_age_ms=DAY_MS)) == 2
    assert drop_staged(shard, [branch("dead", generation=1), "staged/1/x/unknown"]) == [branch("dead", generation=1)]
    assert {str(each) for each in files_below(settings, shard)} == {local_path(file.file_path) for file in fresh.files}
    events = shards.create(f"{unique_name}_events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    events_head = events.load()
    assert find_abandoned(events_head, now_ms=now_ms * 2, max_age_ms=0) == []


@pytest.mark.parametrize("layout", ["shard", "bucketed"])
def test_large_corrections_are_staged_and_published_by_one_commit(
    spark: SparkSession, layout: str, request: pytest.FixtureRequest
) -> None:
    shard: Shard = request.getfixturevalue(layout)
    correct_with_spark(spark, shard, insert=[(number, "old") for number in range(100)], time=10)
    new = [(number, "new") for number in range(50)]
    published = correct_with_spark(spark, shard, insert=new, retract_ids=range(60), time=20)
    wanted = Counter({**dict.fromkeys(new, 1), **{(number, "old"): 1 for number in range(60, 100)}})
    head = shard.load()
    assert rows_of(read(spark, shard)) == rows_of(spark.table(shard.spark_name)) == contents(head) == wanted
    assert sum(change_log(head).values()) == 90
    assert (head.main.snapshot_id, head.row_count, head.staged_branches) == (published.snapshot_id, 90, {})


def test_position_deletes_carry_the_field_ids_of_the_specification(spark: SparkSession, bucketed: Shard) -> None:
    correct_with_spark(spark, bucketed, insert=[(number, "x") for number in range(40)], time=10)
    head = bucketed.load()
    deletes, named = write_deletes_with_spark(pinned(spark, bucketed, head), head)
    assert named == frozenset(read_data_files(head.table.io, head.contents))
    assert sum(file.record_count for file in deletes) == 40
    for file in deletes:
        schema = pq.read_schema(local_path(file.file_path))
        ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
        assert ids == {"file_path": 2147483546, "pos": 2147483545}


def test_rows_of_files_that_are_gone_cannot_be_retracted(spark: SparkSession, shard: Shard) -> None:
    correct_with_spark(spark, shard, insert=[(1, "x")], time=10)
    head = shard.load()
    stale = spark.createDataFrame(
        [(1, "x", "file:/gone.parquet", 0)], "id bigint, name string, _file string, _pos bigint"
    )
    with pytest.raises(InputsGone, match=r"gone\.parquet"):
        stage_corrections(
            shard, head, added=None, retracted=stale, time=20, generation=GENERATION, writer="test", batch="stale"
        )
