"""The DAG in this process: a corrected collection reaches a real PostgreSQL, and read-only mode stops that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.airflow_runs import states
from tests.support.declared import HEAD, PLANES
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags
    from tests.support.postgres_server import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def test_corrections_are_carried_sink_by_sink(
    dags: Dags, postgres: PostgresServer, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = postgres.create_database(unique_name[-50:])
    monkeypatch.setenv("AIRFLOW_CONN_PG", uri.replace("postgresql://", "postgres://"))
    dags.home.write_lines("planes", "tailnum,seats", "N1,1", "N2,2")
    dags.home.declare(HEAD + PLANES)
    dags.run("reconcile_collections")
    dags.home.declare_sink("seats", "planes", to={"connection": "pg", "table": "seats"})

    def stored() -> list[tuple[object, ...]]:
        with psycopg.connect(uri) as connection:
            return connection.execute("SELECT tailnum, seats FROM seats ORDER BY 1").fetchall()

    first = dags.run("run_sinks")
    skipped = {task for task, state in states(first).items() if state != "success"}
    assert skipped == {"load_with_spark", "list_results", "show_load"}, "no application starts"
    assert first["run_sink0"][1]["details"]["loaded"] == 2
    assert stored() == [("N1", 1), ("N2", 2)]

    dags.home.write_lines("planes", "tailnum,seats", "N1,1", "N2,20", "N3,3")
    dags.run("reconcile_collections")
    dags.home.declare_sink("lost", "planes", to={"connection": "nowhere", "table": "seats"})
    second = dags.run("run_sinks")
    assert {states(second)[f"run_sink{number}"] for number in (0, 1)} == {"success", "failed"}, "one alone fails"
    assert stored() == [("N1", 1), ("N2", 20), ("N3", 3)]
    assert states(dags.run("run_sinks", sinks=["seats"])).get("run_sink1") is None

    switch_mode(dags.home.shards, dags.home.deployment, Mode.READ_ONLY, who="test", why="")
    skipped = dags.run("run_sinks", sinks=["seats"])
    assert states(skipped)["run_sink0"] == "skipped"


def test_a_large_first_load_is_a_spark_application_beside_small_sinks(dags: Dags) -> None:
    dags.home.write_lines("planes", "tailnum,seats", "N1,1", "N2,2")
    dags.home.declare(HEAD + PLANES)
    dags.run("reconcile_collections")
    out = dags.home.folder / "out"
    dags.home.declare_sink("large", "planes", to={"catalog": "tidemark", "table": "out.planes"}, spark_from_rows=2)
    dags.home.declare_sink("small", "planes", to={"path": str(out)}, mode="changes")

    first = dags.run("run_sinks")
    assert set(states(first).values()) == {"success"}
    assert [first[f"{task}0"][1]["name"] for task in ("run_sink", "show_load")] == ["small", "large"]
    assert first["show_load0"][1]["details"]["loaded"] == 2
    rows = dags.home.shards.iceberg.load_table(("out", "planes")).scan().to_arrow().to_pylist()
    assert sorted((row["tailnum"], row["seats"]) for row in rows) == [("N1", 1), ("N2", 2)]

    again = states(dags.run("run_sinks"))
    assert (again["run_sink1"], again["load_with_spark"]) == ("success", "skipped"), "only a first load is large"
