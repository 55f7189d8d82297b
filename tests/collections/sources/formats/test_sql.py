"""Queries over inputs: what pins them, and what they may not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sources import rows, write_parquet
from tidemark.errors import ConfigurationInvalid, Refused, SchemaMismatch, TidemarkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.sources import Opener

pytestmark = pytest.mark.spark


@pytest.fixture
def two_inputs(tmp_path: Path) -> dict[str, Any]:
    write_parquet(tmp_path / "f.parquet", tail=["a", "b"], n=[1, 2])
    write_parquet(tmp_path / "p.parquet", tail=["a"], seats=[9])
    return {"f": {"format": "parquet", "path": "f.parquet"}, "p": {"format": "parquet", "path": "p.parquet"}}


@pytest.fixture
def stranger(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Files behind a view ``stranger``, which is nobody's input."""
    path = write_parquet(tmp_path / "stranger.parquet", n=[1])
    spark.read.parquet(str(path)).createOrReplaceTempView("stranger")
    yield
    spark.catalog.dropTempView("stranger")


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
    "sql",
    [
        "SELECT *, rand() AS r FROM f",
        "SELECT *, current_timestamp() AS t FROM f",
        "SELECT *, current_user() AS u FROM f",
        "SELECT *, DATE 'today' AS d FROM f",
        "SELECT *, CAST(' Now' AS TIMESTAMP) AS t FROM f",
        'SELECT * FROM f WHERE make_date(2026, 1, n) < "yesterday"',
        "SELECT * FROM f TABLESAMPLE (50 PERCENT)",
        "SELECT * FROM f WHERE n IN (SELECT n FROM f TABLESAMPLE (9 PERCENT))",
        "SELECT TRANSFORM (tail) USING 'date' AS (t string) FROM f",
        "SELECT *, input_file_name() AS file FROM f",
        "SELECT *, reflect('java.lang.System', 'nanoTime') AS t FROM f",
        "SELECT *, CAST(concat('n', 'ow') AS timestamp) AS t FROM f",
        "SELECT *, TIMESTAMP '\\u006eow' AS t FROM f",
        "SELECT *, '${spark.app.id}' AS a FROM f",
        "SELECT tail, aes_encrypt(tail, 'abcdefghijklmnop') AS a FROM f",
    ],
)
def test_no_name_of_the_inputs_names_the_rows_of_a_query_that_rests_on_more(
    opener: Opener, two_inputs: dict[str, Any], sql: str
) -> None:
    assert opener({"sql": sql, "inputs": two_inputs}).state is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT f.* FROM f JOIN IDENTIFIER('stranger') USING (n)",
        "SELECT * FROM f WHERE n IN (WITH stranger AS (SELECT 1 AS n) SELECT n FROM stranger) "
        "OR EXISTS(SELECT * FROM stranger)",
    ],
)
@pytest.mark.usefixtures("stranger")
def test_a_query_reads_nothing_else_however_the_name_is_written(
    opener: Opener, two_inputs: dict[str, Any], sql: str
) -> None:
    with pytest.raises(ConfigurationInvalid, match="not among its inputs"):
        opener({"sql": sql, "inputs": two_inputs})


def test_the_names_of_the_inputs_name_the_rows_of_other_queries(opener: Opener, two_inputs: dict[str, Any]) -> None:
    sql = "SELECT tail, sum(n / 3) AS s FROM f WHERE tail <> 'known' AND n < date_part('day', DATE '2026-01-09')"
    state = opener({"sql": f"{sql} GROUP BY tail", "inputs": two_inputs}).state
    assert state is not None
    assert len(state) == 2


@pytest.mark.parametrize(
    "where",
    [
        "DATE 'today' > DATE '2026-01-01'",
        "_metadata.file_size > 0",
        "rand() < 0.5",
        "EXISTS(FROM stranger |> WHERE n = 1)",
    ],
)
@pytest.mark.usefixtures("stranger")
def test_no_name_names_the_rows_that_meet_a_condition_on_more_than_rows(
    opener: Opener, two_inputs: dict[str, Any], where: str
) -> None:
    assert opener({**two_inputs["f"], "where": where}).state is None
    assert opener({**two_inputs["f"], "where": "n < 2"}).state is not None


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
