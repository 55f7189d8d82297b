"""PostgreSQL, as a target and as the catalog of an Iceberg table, is killed around a commit: each update once."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.changes import change
from tests.sinks.foreign_readers import iceberg_rows
from tests.sinks.postgres.conftest import Database, connected
from tests.support.commit_proxy import CommitProxy, commit_proxy
from tests.support.dying import interrupted_at
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.homes import Home
    from tests.support.postgres_server import PostgresServer

pytestmark = [pytest.mark.crash, pytest.mark.postgres]

PLACES = {
    "postgres": {"connection": "pg", "table": "copies"},
    "iceberg": {"catalog": "lake", "table": "analytics.copies"},
}


@pytest.fixture
def door(postgres: PostgresServer) -> Iterator[CommitProxy]:
    with commit_proxy(postgres) as opened:
        yield opened


@pytest.fixture
def uri(postgres: PostgresServer, unique_name: str) -> str:
    return postgres.create_database(unique_name[-50:])


@pytest.fixture
def sinking(carrying: Home, door: CommitProxy, uri: str, tmp_path: Path) -> Home:
    """Two rows; the connection `pg` and the catalog `lake` lead through the door."""
    lake = {"TYPE": "sql", "URI": door.uri(uri), "WAREHOUSE": f"file://{tmp_path}/lake"}
    settings = connected(carrying.settings, door.uri(uri))
    variables = {f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in lake.items()}
    carrying.settings = replace(settings, connections={**settings.connections, **variables})
    change(carrying, put={0: "a", 1: "b"})
    return carrying


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("moment", ["between write and commit", "right after COMMIT was sent"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_that_is_killed_around_the_commit(
    sinking: Home, door: CommitProxy, kind: str, moment: str, *, is_first: bool
) -> None:
    sinking.declare_sink(mode="changes", to=PLACES[kind])
    if not is_first:
        assert sinking.run_sink().error is None
        change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    with interrupted_at(f"sink.{kind}-written", door.arm if "sent" in moment else door.kill):
        starting = threading.Timer(1.0, door.start_again)
        starting.start()
        report = sinking.run_sink()
    starting.join()
    assert report.error is None or report.error.exit_code in {ExitCode.UNREACHABLE, ExitCode.TRANSIENT}, report.error
    assert not door.is_armed, "no COMMIT went by"
    door.start_again()
    assert sinking.run_sink().error is None
    found = read(sinking, kind)
    assert len(found) == (2 if is_first else 6), "each update once"
    sums: Counter[tuple[int, str]] = Counter()
    for id_, name, diff in found:
        sums[id_, name] += diff
    assert sorted((+sums).elements()) == sinking.tuples("events")


def read(home: Home, kind: str) -> list[tuple[Any, ...]]:
    if kind == "postgres":
        return Database(home.settings.connections["AIRFLOW_CONN_PG"].replace("postgres:", "postgresql:")).rows(
            "SELECT id, name, _diff FROM copies"
        )
    return [(row["id"], row["name"], row["_diff"]) for row in iceberg_rows(home.settings, "lake", "analytics.copies")]
