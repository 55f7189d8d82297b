"""Every form of source: what it gives, what pins it, and what becomes of input that cannot be read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from tests.conftest import settings_in
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.formats.parquet_files import ParquetSource
from tidemark.collections.sources.formats.sql import SourceDeclaration
from tidemark.collections.sources.open_source import open_source
from tidemark.errors import (
    CommitStateUnknown,
    ConfigurationInvalid,
    InputMissing,
    Refused,
    SchemaMismatch,
    SourceMoved,
    TidemarkError,
    UnknownCollection,
    Unreachable,
    UsageError,
)
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.postgres_server import PostgresServer
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.iceberg.shards import Shards
    from tidemark.settings import Settings

    Opener = Callable[..., OpenedSource]

pytestmark = pytest.mark.spark
ADAPTER: TypeAdapter[Any] = TypeAdapter(SourceDeclaration)


@pytest.fixture
def opener(spark: SparkSession, shards: Shards, settings: Settings, tmp_path: Path) -> Opener:
    def open_(source: dict[str, Any], interval: Interval | None = None, **environ: str) -> OpenedSource:
        declared = ADAPTER.validate_python(source, context={"folder": str(tmp_path)})
        used = settings_in(settings.home, **environ) if environ else settings
        return open_source(spark, declared, collection="planes", shards=shards, settings=used, interval=interval)

    return open_


def rows(opened: OpenedSource) -> list[tuple[Any, ...]]:
    with opened.reading():
        return sorted(tuple(row) for row in opened.frame().collect())


def write_parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# -- files ---------------------------------------------------------------------------------------------------------


def test_both_passes_read_the_same_files_although_more_arrive(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/a.parquet", x=[1, 2])
    opened = opener({"format": "parquet", "path": "data"})
    assert rows(opened) == [(1,), (2,)]
    write_parquet(tmp_path / "data/b.parquet", x=[3])
    assert rows(opened) == [(1,), (2,)]
    assert not opened.moved()
    assert opened.pinnable
    assert rows(opener({"format": "parquet", "path": "data"})) == [(1,), (2,), (3,)]


def test_a_replaced_file_counts_as_moved_even_with_the_same_size_and_age(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    seen = path.stat()
    opened = opener({"format": "parquet", "path": "a.parquet"})
    before = opened.fingerprint
    assert not opened.moved()
    other = write_parquet(tmp_path / "new.parquet", x=[2])
    other.replace(path)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert path.stat().st_size == seen.st_size
    assert opened.moved()
    assert opener({"format": "parquet", "path": "a.parquet"}).fingerprint != before


def test_a_file_that_vanishes_while_it_is_read_means_that_the_source_moved(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.unlink()
    assert opened.moved()
    with pytest.raises(SourceMoved):
        rows(opened)


@pytest.mark.parametrize("reads", ["read", "copied"])
def test_a_file_that_is_rewritten_while_it_is_read_moved_and_is_not_damaged(
    opener: Opener, tmp_path: Path, reads: str
) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.write_bytes(b"PAR1, and the rest is yet to come")
    with pytest.raises(SourceMoved, match=r"the source of 'planes' was changed while it was read: .*a\.parquet"):
        rows(opened) if reads == "read" else opened.materialise((tmp_path / "copy").as_uri())
    with pytest.raises(Refused):  # nobody touches it any more
        opener({"format": "parquet", "path": "a.parquet"})


def test_a_file_that_is_rewritten_while_it_is_opened_moved_and_is_not_damaged(
    opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])

    check_files = ParquetSource.check_files

    def rewrite_and_check(*arguments: Any) -> None:
        path.write_bytes(b"PAR1, and the rest is yet to come")
        check_files(*arguments)

    monkeypatch.setattr(ParquetSource, "check_files", rewrite_and_check)
    with pytest.raises(SourceMoved, match="was changed while it was opened"):
        opener({"format": "parquet", "path": "a.parquet"})


def test_what_a_moved_source_is_not_to_blame_for_stays_what_it_is(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.unlink()
    with pytest.raises(CommitStateUnknown), opened.reading():
        raise CommitStateUnknown("the catalog did not answer")


def test_partition_folders_become_columns_and_hidden_files_are_left_out(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "t/day=2013-01-01/a.parquet", x=[1])
    write_parquet(tmp_path / "t/day=2013-01-02/b.parquet", x=[2])
    (tmp_path / "t/_SUCCESS").write_text("")
    (tmp_path / "t/.hidden").write_text("")
    opened = opener({"format": "parquet", "path": "t", "where": "day >= '2013-01-02'"})
    assert [row[0] for row in rows(opened)] == [2]
    assert opened.frame().schema["day"].dataType.simpleString() == "date"
    assert opened.pinnable


def test_file_names_are_names_and_not_patterns(opener: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "odd [a]{b}%20 c"
    folder.mkdir()
    (folder / "f*x.csv").write_text("a\n1\n")
    (folder / "f_x.csv").write_text("a\n2\n")
    source = {"format": "csv", "options": {"header": True}, "schema": "a int"}
    assert rows(opener({**source, "path": "odd [a]{b}%20 c/f*x.csv"})) == [(1,)]
    assert rows(opener({**source, "path": "odd*/*.csv"})) == [(1,), (2,)]


def test_a_materialised_copy_no_longer_follows_its_source(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,x\n")
    opened = opener({"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"})
    copy = opened.materialise((tmp_path / "copy").as_uri())
    path.write_text("a,b\n2,y\n")
    assert opened.moved()
    assert rows(copy) == [(1, "x")]
    assert not copy.moved()
    assert copy.frame().schema == opened.frame().schema
    assert copy.fingerprint == opened.fingerprint


def test_the_interval_cuts_a_source(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("t\n2013-01-01 23:00:00\n2013-01-02 00:00:00\n2013-01-03 00:00:00\n")
    source = {
        "format": "csv", "path": "w.csv", "options": {"header": True}, "schema": "t timestamp",
        "where": "t >= '{start}' AND t < '{end}'",
    }  # fmt: skip
    day = Interval(1357084800000, 1357171200000)
    assert len(rows(opener(source, day))) == 1
    with pytest.raises(UsageError, match="data interval"):
        opener(source)


@pytest.mark.parametrize(
    ("source", "files", "error", "message"),
    [
        pytest.param({"format": "parquet", "path": "none"}, {}, InputMissing, "none", id="missing"),
        pytest.param({"format": "csv", "path": "*.csv", "schema": "a int"}, {}, InputMissing, "csv", id="no match"),
        pytest.param({"format": "parquet", "path": "a"}, {"a": "no parquet"}, Refused, "a is no", id="corrupt parquet"),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "a,c\n1,x\n"}, SchemaMismatch, "a.csv lacks the column 'b'", id="header",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int"},
            {"a.csv": "a,c\n1,x\n"}, SchemaMismatch, "undeclared columns: 'c'", id="more columns",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "b,a\n1,x\n"}, SchemaMismatch, "another order", id="order",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "a,b\nfoo,x\n"}, Refused, r"a\.csv holds a malformed record", id="malformed value",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "schema": "a int, b string"},
            {"a.csv": "1,x\n2\n"}, Refused, r"a\.csv holds a malformed record: 2", id="short row",
        ),
        pytest.param(
            {"format": "json", "path": "a.json", "schema": "a int"},
            {"a.json": '{"a":1}\n{"a":'}, Refused, r"a\.json holds a malformed record", id="corrupt json",
        ),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_name(
    opener: Opener, tmp_path: Path, *, source: Any, files: Any, error: type[TidemarkError], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message) as caught:
        rows(opener(source))
    assert type(caught.value) is error


def test_parquet_files_of_one_folder_must_be_alike_unless_merging_is_declared(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "t/a.parquet", x=[1], y=["old"])
    write_parquet(tmp_path / "t/b.parquet", x=[2])
    with pytest.raises(SchemaMismatch, match=r"column 'y' .* is string in .*a\.parquet, but missing in .*b\.parquet"):
        opener({"format": "parquet", "path": "t"})
    merged = opener({"format": "parquet", "path": "t", "options": {"mergeSchema": True}})
    assert rows(merged) == [(1, "old"), (2, None)]


# -- tables, databases, queries ------------------------------------------------------------------------------------


def test_an_iceberg_table_is_read_at_one_snapshot(spark: SparkSession, opener: Opener, unique_name: str) -> None:
    name = f"tidemark.lake.{unique_name}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS tidemark.lake")
    spark.sql(f"CREATE TABLE {name} (x int) USING iceberg")
    source = {"format": "iceberg", "table": name}
    assert rows(opener(source)) == []
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    opened = opener(source)
    spark.sql(f"INSERT INTO {name} VALUES (2)")
    assert rows(opened) == [(1,)]
    assert not opened.moved()
    assert rows(opener(source)) == [(1,), (2,)]
    with pytest.raises(InputMissing):
        opener({"format": "iceberg", "table": f"{name}_not"})


def test_a_table_is_read_as_it_is_now_although_its_catalog_keeps_what_it_loaded(
    spark: SparkSession, opener: Opener, tmp_path: Path
) -> None:
    for name, keeps in (("keeping", "true"), ("other", "false")):  # the first as Iceberg has it by default
        spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
        spark.conf.set(f"spark.sql.catalog.{name}.warehouse", str(tmp_path))
        spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", keeps)
    spark.sql("CREATE TABLE other.a.b (x int) USING iceberg")
    source = {"format": "iceberg", "table": "keeping.a.b"}
    assert rows(opener(source)) == []
    for x in (1, 2):
        spark.sql(f"INSERT INTO other.a.b VALUES ({x})")
        assert rows(opener(source)) == [(each,) for each in range(1, x + 1)]
    spark.sql("DROP TABLE other.a.b")
    with pytest.raises(InputMissing):
        opener(source)


def test_an_iceberg_table_can_be_named_by_its_folder(spark: SparkSession, opener: Opener, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.catalog.folders", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.folders.type", "hadoop")
    spark.conf.set("spark.sql.catalog.folders.warehouse", str(tmp_path))
    spark.sql("CREATE TABLE folders.a.b (x int) USING iceberg")
    spark.sql("INSERT INTO folders.a.b VALUES (1)")
    opened = opener({"format": "iceberg", "path": "a/b"})
    spark.sql("INSERT INTO folders.a.b VALUES (2)")
    assert rows(opened) == [(1,)]
    with pytest.raises(InputMissing):
        opener({"format": "iceberg", "path": "a/c"})


def test_another_collection_is_read_at_one_time_without_system_columns_and_foreign_rows(
    spark: SparkSession, shards: Shards, opener: Opener, unique_name: str
) -> None:
    shard = shards.create(unique_name, schema=to_iceberg(parse_columns("x int, y string")), key=("x",))

    def publish(x: int, *, time: int) -> None:
        table = shard.load().table
        row = pa.table({"x": pa.array([x], pa.int32()), "y": ["a"], "_time": [time], "_diff": [1]})
        batch = Batch(added=tuple(write_rows(table, row)), schema_id=table.schema().schema_id)
        Writer.join(shard, 1).compare_and_append(batch, lower=time, new_upper=time + 1)

    publish(1, time=0)
    spark.sql(f"INSERT INTO {shard.spark_name} VALUES (7, 'foreign', 0, 1)")
    opened = opener({"collection": unique_name, "where": "x > 0"})
    publish(2, time=1)
    assert rows(opened) == [(1, "a")]
    assert opened.pinnable
    now = opener({"collection": unique_name})
    assert rows(now) == [(1, "a"), (2, "a")]
    assert now.fingerprint != opened.fingerprint
    Writer.join(shard, 1).advance(lower=2, new_upper=3)  # a run with nothing to correct
    assert opener({"collection": unique_name}).fingerprint == now.fingerprint
    with pytest.raises(UnknownCollection):
        opener({"collection": f"{unique_name}_not"})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    return path


def test_a_database_is_read_as_it_is_and_is_not_pinnable(opener: Opener, database: Path) -> None:
    url = f"jdbc:sqlite:{database}"
    opened = opener({"format": "jdbc", "url": url, "dbtable": "t"})
    assert rows(opened) == [(1, "x"), (2, "y")]
    assert not opened.pinnable
    assert rows(opener({"format": "jdbc", "url": url, "query": "SELECT b FROM t WHERE a = 2"})) == [("y",)]
    named = {"format": "jdbc", "connection": "lake", "dbtable": "t"}
    assert rows(opener(named, AIRFLOW_CONN_LAKE=f"sqlite:///{database}")) == [(1, "x"), (2, "y")]
    with pytest.raises(ConfigurationInvalid, match="'lake' is not set"):
        opener(named)


def test_a_missing_table_or_database_is_missing_and_a_silent_one_unreachable(opener: Opener, database: Path) -> None:
    with pytest.raises(InputMissing, match="no such table"):
        opener({"format": "jdbc", "url": f"jdbc:sqlite:{database}", "dbtable": "u"})
    with pytest.raises(InputMissing):
        opener({"format": "jdbc", "url": f"jdbc:sqlite:{database}.not", "dbtable": "t"})
    assert not database.with_name("source.db.not").exists()
    with pytest.raises(Unreachable):
        opener({"format": "jdbc", "url": "jdbc:postgresql://127.0.0.1:1/x", "dbtable": "t"})


@pytest.mark.postgres
def test_postgres_is_read_with_a_login_from_the_environment_alone(opener: Opener, postgres: PostgresServer) -> None:
    uri = postgres.create_database("source_of_planes")
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE t (a int, b text, d numeric(5,2), at timestamptz)")
        connection.execute("INSERT INTO t VALUES (1, 'x', 1.50, '2013-01-01T00:00:00Z'), (2, NULL, NULL, NULL)")
    source = {"format": "jdbc", "connection": "lake", "dbtable": "t"}
    opened = opener(source, AIRFLOW_CONN_LAKE=uri)
    assert [field.dataType.simpleString() for field in opened.frame().schema] == [
        "int", "string", "decimal(5,2)", "timestamp",
    ]  # fmt: skip
    assert [row[:2] for row in rows(opened)] == [(1, "x"), (2, None)]
    with pytest.raises(InputMissing, match="gone"):
        opener({**source, "dbtable": "gone"}, AIRFLOW_CONN_LAKE=uri)
    with pytest.raises(ConfigurationInvalid) as caught:
        opener(source, AIRFLOW_CONN_LAKE=uri, TIDEMARK_SOURCE_LAKE_PASSWORD="hush")  # noqa: S106 - a wrong one
    assert "hush" not in str(caught.value)


@pytest.fixture
def two_inputs(tmp_path: Path) -> dict[str, Any]:
    write_parquet(tmp_path / "f.parquet", tail=["a", "b"], n=[1, 2])
    write_parquet(tmp_path / "p.parquet", tail=["a"], seats=[9])
    return {"f": {"format": "parquet", "path": "f.parquet"}, "p": {"format": "parquet", "path": "p.parquet"}}


def test_a_query_over_inputs_is_pinned_as_they_are(
    spark: SparkSession, opener: Opener, two_inputs: dict[str, Any], tmp_path: Path
) -> None:
    sql = "WITH q AS (SELECT * FROM F) SELECT q.*, p.seats FROM q LEFT JOIN p USING (tail) -- all;\n;"
    opened = opener({"sql": sql, "inputs": two_inputs})
    assert rows(opened) == [("a", 1, 9), ("b", 2, None)]
    assert opened.pinnable
    assert [each.name for each in spark.catalog.listTables() if each.isTemporary] == []
    write_parquet(tmp_path / "p.parquet", tail=["a"], seats=[10])
    assert opened.moved()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT *, rand() AS r FROM f",
        "SELECT *, current_timestamp() AS t FROM f",
        "SELECT * FROM f LIMIT 1",
        "SELECT tail, sum(n / 3) FROM f GROUP BY tail",
        "SELECT *, row_number() OVER (ORDER BY tail) FROM f",
        "SELECT * FROM f WHERE n = (SELECT max(n) FROM f)",
    ],
)
def test_a_query_that_may_answer_differently_is_not_pinnable(
    opener: Opener, two_inputs: dict[str, Any], sql: str
) -> None:
    assert not opener({"sql": sql, "inputs": two_inputs}).pinnable


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELECT * FROM other", ConfigurationInvalid, "reads 'other', which is not among its inputs"),
        ("SELECT * FROM f WHERE tail IN (SELECT x FROM tidemark.a.b)", ConfigurationInvalid, "'tidemark.a.b'"),
        ("SELECT * FROM parquet.`/tmp/x`", ConfigurationInvalid, "not among its inputs"),
        ("SELCT 1 FROM f", ConfigurationInvalid, "PARSE_SYNTAX_ERROR"),
        ("SELECT taill FROM f", SchemaMismatch, "`taill`"),
        ("SELECT CAST(tail AS INT) FROM f", Refused, "CAST_INVALID_INPUT"),
    ],
)
def test_a_wrong_query_is_refused(
    opener: Opener, two_inputs: dict[str, Any], sql: str, error: type[TidemarkError], message: str
) -> None:
    with pytest.raises(error, match=message):
        rows(opener({"sql": sql, "inputs": two_inputs}))


@pytest.fixture
def with_database(two_inputs: dict[str, Any], database: Path, tmp_path: Path) -> dict[str, Any]:
    """Inputs ``t`` (a database), ``f``, and ``days`` with a folder for each day."""
    for day in (1, 2):
        write_parquet(tmp_path / f"days/day={day}/x.parquet", x=[day * 10])
    return {
        "f": two_inputs["f"],
        "t": {"format": "jdbc", "url": f"jdbc:sqlite:{database}", "dbtable": "t"},
        "days": {"format": "parquet", "path": "days"},
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t WHERE a = (SELECT max(a) FROM t)",
        "SELECT x.a, y.b FROM t x JOIN T y USING (a)",
        "WITH q AS (SELECT * FROM t) SELECT * FROM q UNION ALL SELECT * FROM q",
        "SELECT (SELECT max(a) FROM t) AS most, (SELECT min(a) FROM t) AS least",
        "SELECT *, (SELECT count(*) FROM f WHERE n < t.a) AS below FROM t",
        "WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT r.n + t.a FROM r JOIN t ON t.a > r.n) SELECT * FROM r",
    ],
)
def test_a_query_that_asks_a_database_twice_is_refused(opener: Opener, with_database: dict[str, Any], sql: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="the query needs 't' more than once"):
        opener({"sql": sql, "inputs": with_database})


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT t.b, f.tail FROM t JOIN f ON f.n = t.a WHERE f.n = (SELECT max(n) FROM f)", [("y", "b")]),
        ("SELECT a, count(DISTINCT b), count(DISTINCT a) FROM t GROUP BY a", [(1, 1, 1), (2, 1, 1)]),
        ("SELECT a, max(a) OVER () AS most FROM t", [(1, 2), (2, 2)]),
        ("SELECT tail FROM f WHERE n IN (SELECT a FROM t WHERE b = 'y')", [("b",)]),
        ("SELECT x FROM days JOIN t ON days.day = t.a WHERE t.b = 'y'", [(20,)]),  # prunes folders by the same rows
        ("SELECT tail FROM f", [("a",), ("b",)]),
    ],
)
def test_a_query_that_asks_a_database_once_is_answered(
    opener: Opener, with_database: dict[str, Any], sql: str, found: list[Any]
) -> None:
    assert rows(opener({"sql": sql, "inputs": with_database})) == found
