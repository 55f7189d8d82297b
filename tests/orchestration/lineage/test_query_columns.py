"""The columns that a query reads, traced without Spark: stars, joins, subqueries; and nothing where nothing is sure."""

from __future__ import annotations

import sys

import pytest

from tidemark.orchestration.lineage.query_columns import trace_columns

INPUTS = {"f": ["a", "b", "Day", "parts", "s", "tailnum"], "p": ["tailnum", "Seats"]}


def traced(query: str) -> dict[str, str]:
    """Return the origins of each column; ``=`` stands after those that are copied."""
    return {
        name: " ".join(f"{each.input}.{each.column}{'=' if each.is_copied else ''}" for each in origins)
        for name, origins in trace_columns(query, INPUTS).items()
    }


@pytest.mark.parametrize(
    ("query", "origins"),
    [
        ("SELECT * FROM p", {"tailnum": "p.tailnum=", "seats": "p.Seats="}),
        ("SELECT * EXCEPT (seats) FROM p", {"tailnum": "p.tailnum="}),
        ("SELECT f.a, p.seats AS s FROM f JOIN p ON f.tailnum = p.tailnum", {"a": "f.a=", "s": "p.Seats="}),
        ("SELECT a, seats FROM f LEFT JOIN p USING (tailnum)", {"a": "f.a=", "seats": "p.Seats="}),
        ("SELECT tailnum FROM f JOIN p USING (tailnum)", {"tailnum": "f.tailnum p.tailnum"}),
        ("SELECT g.A FROM F AS g", {"a": "f.a="}),
        ("WITH x AS (SELECT a, b + 1 AS c FROM f) SELECT * FROM x", {"a": "f.a=", "c": "f.b"}),
        ("WITH f AS (SELECT a AS b FROM f) SELECT b FROM f", {"b": "f.a="}),
        ("SELECT a FROM f UNION ALL SELECT seats FROM p", {"a": "f.a= p.Seats="}),
        ("SELECT a, sum(b) AS t, count(*) AS n FROM f GROUP BY a", {"a": "f.a=", "t": "f.b", "n": ""}),
        ("SELECT q.m FROM (SELECT max(b) AS m FROM f) q", {"m": "f.b"}),
        ("SELECT a, (SELECT max(seats) FROM p) AS m FROM f", {"a": "f.a=", "m": "p.Seats"}),
        ("SELECT `day` AS `the day` FROM f WHERE `day` >= {start}", {}),  # no SQL, even when it is filled in
        ("SELECT `day` AS `the day` FROM f WHERE `day` >= '{start}'", {"the day": "f.Day="}),
        ("SELECT CASE WHEN a > 1 THEN b END AS c FROM f", {"c": "f.a f.b"}),
        ("SELECT a + 1 AS k, k * 2 AS twice FROM f", {"k": "f.a", "twice": "f.a"}),
        ("SELECT a AS b, b AS c FROM f", {"b": "f.a=", "c": "f.b="}),
        ("SELECT s.x.y AS y FROM f", {"y": "f.s"}),
        ("SELECT a, part FROM f LATERAL VIEW explode(parts) t AS part", {"a": "f.a=", "part": "f.parts"}),
        ("SELECT * FROM (SELECT a, b, tailnum FROM f) PIVOT (sum(b) FOR tailnum IN ('x'))", {"a": "f.a", "x": "f.b"}),
        ("SELECT v.k, f.a FROM f JOIN (VALUES (1)) AS v(k) ON v.k = f.a", {"k": "", "a": "f.a="}),
        ("SELECT id, a FROM range(3), f", {"id": "", "a": "f.a="}),
    ],
)
def test_columns_are_traced_to_those_of_the_inputs(query: str, origins: dict[str, str]) -> None:
    assert traced(query) == origins


@pytest.mark.parametrize(
    "query",
    [
        "SELECT nowhere FROM f",
        "SELECT tailnum FROM f JOIN p",  # of either input
        "SELECT a, b FROM f EXCEPT SELECT tailnum, seats FROM p",  # no value comes from the right side
        "SELECT stack(2, a, b) AS (x) FROM f",
        "SELECT a FROM f f f",
        "DELETE FROM f",
    ],
)
def test_nothing_is_told_of_a_query_that_is_not_understood(query: str) -> None:
    assert traced(query) == {}


def test_nothing_is_traced_without_sqlglot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traced("SELECT a FROM f") == {"a": "f.a="}
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    assert traced("SELECT a FROM f") == {}
