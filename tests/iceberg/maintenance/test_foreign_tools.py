"""Readers and tools that know nothing of Tidemark: they see plain rows, may tidy up, and lose what they wrote."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import polars
import pytest

from tests.conftest import settings_in
from tests.support.prepared_folder import PreparedFolder
from tests.support.rows import SCHEMA, change_log, contents
from tests.support.spark_rows import GENERATION, correct_with_spark, rows_of
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.reading.spark import changes, pinned, read
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

LATER_MS = 10**15
REWRITE_ALL = "'rewrite-all', 'true', 'remove-dangling-deletes', 'true'"
ROWS = Counter({**{(number, "new"): 1 for number in range(20)}, **{(number, "old"): 1 for number in range(30, 60)}})


BOTH = pytest.mark.parametrize(
    "settings_here", ["home", pytest.param("postgres_home", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture(autouse=True)
def polars_plans_with_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package


@pytest.fixture(scope="module")
def planes(jvm: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    def fill(folder: Path) -> None:
        settings = settings_in(folder)
        write_planes(session_on(settings), settings)

    return PreparedFolder(tmp_path_factory.mktemp("planes"), fill)


@pytest.fixture
def home(planes: PreparedFolder) -> Settings:
    """Settings of a home in which the planes are stored."""
    return settings_in(planes.restored())


@pytest.fixture
def settings_here(request: pytest.FixtureRequest) -> Settings:
    settings: Settings = request.getfixturevalue(getattr(request, "param", "home"))
    return settings


def session_on(settings: Settings) -> SparkSession:
    from tidemark.spark.session import spark_session

    with spark_session(settings, app_name="foreign") as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        return session


@pytest.fixture
def session(jvm: SparkSession, settings_here: Settings) -> SparkSession:
    return session_on(settings_here)


@pytest.fixture
def shard(session: SparkSession, settings_here: Settings) -> Shard:
    if settings_here.catalog_is_sqlite:
        return Shards.connect(settings_here).open("planes")  # of the prepared home
    return write_planes(session, settings_here)


def write_planes(session: SparkSession, settings: Settings) -> Shard:
    """Write sixty rows at 10; at 20 thirty of them go and twenty others come; upper 21."""
    shard = Shards.connect(settings).create("planes", schema=SCHEMA, key=["id"], buckets=2)
    correct_with_spark(session, shard, insert=[(number, "old") for number in range(60)], time=10)
    new = [(number, "new") for number in range(20)]
    correct_with_spark(session, shard, insert=new, retract_ids=range(30), time=20)
    return shard


def everybody_sees(session: SparkSession, shard: Shard, rows: Counter[object]) -> None:
    assert rows_of(session.sql(f"SELECT * FROM {shard.spark_name}")) == rows
    table = shard.load().table
    assert contents(shard.load()) == rows
    arrow = table.scan().to_arrow()
    with duckdb.connect() as connection:
        connection.register("planes", arrow)
        assert Counter(connection.execute("SELECT id, name FROM planes").fetchall()) == rows
    frame = polars.scan_iceberg(table).select("id", "name").collect()
    assert Counter(frame.iter_rows()) == rows


@BOTH
def test_plain_readers_see_the_current_rows(session: SparkSession, shard: Shard) -> None:
    everybody_sees(session, shard, ROWS)
    history = session.table(f"{shard.spark_name}.branch_updates")
    assert history.count() == 110


def test_maintenance_by_hand_changes_nothing(session: SparkSession, shard: Shard) -> None:
    log = change_log(shard.load())
    call = "CALL tidemark.system."
    name = shard.spark_name
    for statement in (
        f"{call}rewrite_position_delete_files(table => '{name}', options => map('rewrite-all', 'true'))",
        f"{call}rewrite_data_files(table => '{name}', options => map({REWRITE_ALL}))",
        f"{call}rewrite_manifests(table => '{name}')",
        f"{call}expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)",
        f"{call}remove_orphan_files(table => '{name}')",
    ):
        session.sql(statement).collect()
        everybody_sees(session, shard, ROWS)
        head = shard.load()
        assert (head.foreign, head.foreign_updates) == (None, None), statement
        assert (change_log(head), head.row_count) == (log, 50)
        assert rows_of(read(session, shard, 10)) == Counter({(number, "old"): 1 for number in range(60)})
        assert check_invariant(shard).holds
    correct_with_spark(session, shard, insert=[(100, "after")], retract_ids=[0, 30], time=30)
    wanted = ROWS - Counter({(0, "new"): 1, (30, "old"): 1}) + Counter({(100, "after"): 1})
    everybody_sees(session, shard, wanted)
    assert check_invariant(shard).holds


def roll_back(session: SparkSession, shard: Shard) -> None:
    parent = shard.load().main.parent_snapshot_id
    session.sql(f"CALL tidemark.system.rollback_to_snapshot('{shard.spark_name}', {parent})").collect()


FOREIGN = {
    "append": "INSERT INTO {table} VALUES (1000, 'foreign', 5, 1), (1000, 'foreign', 5, 1)",
    "delete": "DELETE FROM {table} WHERE id < 35",
    "delete of a file": "DELETE FROM {table} WHERE id >= 0",
    "overwrite": "INSERT OVERWRITE {table} VALUES (1000, 'foreign', 5, 1)",
    "update": "UPDATE {table} SET name = 'foreign' WHERE id = 40",
    "merge": "MERGE INTO {table} t USING (SELECT 40L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "rollback": None,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_commits_are_seen_kept_apart_and_reset(session: SparkSession, shard: Shard, what: str) -> None:
    log = change_log(shard.load())
    statement = FOREIGN[what]
    if statement is None:
        roll_back(session, shard)
    else:
        session.sql(statement.format(table=shard.spark_name)).collect()
    head = shard.load()
    assert head.foreign is not None
    assert contents(head) != ROWS
    assert rows_of(read(session, shard)) == ROWS
    assert rows_of(pinned(session, shard, head).select("id", "name")) == ROWS
    assert change_log(head) == log
    assert compact(Writer.join(shard, GENERATION)).outcome == "skipped"
    correct_with_spark(session, shard, insert=[(100, "after")], retract_ids=[40], time=30)
    wanted = ROWS - Counter({(40, "old"): 1}) + Counter({(100, "after"): 1})
    assert shard.load().foreign is None
    everybody_sees(session, shard, wanted)
    assert check_invariant(shard).holds
    assert rows_of(read(session, shard, 20)) == ROWS


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {table}.branch_updates VALUES (7, 'foreign', 5, 1)",
        "DELETE FROM {table}.branch_updates WHERE id = 1",
    ],
)
def test_foreign_commits_on_the_change_log_are_left_out(session: SparkSession, shard: Shard, statement: str) -> None:
    log = changes_arrow(shard, 0).to_pylist()
    session.sql(statement.format(table=shard.spark_name)).collect()
    head = shard.load()
    assert (head.foreign, head.foreign_updates is None) == (None, False)
    assert changes(session, shard, 0).count() == len(log)
    correct_with_spark(session, shard, insert=[(100, "after")], time=30)
    assert shard.load().foreign_updates is None
    assert session.table(f"{shard.spark_name}.branch_updates").count() == 111
    assert check_invariant(shard).holds


@BOTH
def test_own_maintenance_after_foreign_maintenance(
    session: SparkSession, shard: Shard, settings_here: Settings
) -> None:
    session.sql(f"CALL tidemark.system.rewrite_data_files('{shard.spark_name}')").collect()
    downgrade_since(shard, 20, now_ms=0)
    writer = Writer.join(shard, GENERATION)
    compact(writer, policy=CompactionPolicy(min_small_files=2))
    expire(writer, older_than_ms=LATER_MS)
    remove_orphans(shard, older_than_ms=LATER_MS)
    everybody_sees(session, shard, ROWS)
    assert Counter((row["id"], row["name"]) for row in read_arrow(shard, 20).to_pylist()) == ROWS
    assert check_invariant(shard).holds
