"""The connection of a sink: what its variables mean, and what is refused without a password in the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.errors import ConfigurationInvalid
from tidemark.settings import Settings
from tidemark.sinks.targets.postgres.connection import connection_options

if TYPE_CHECKING:
    from pathlib import Path

URL, SECRET = "TIDEMARK_SOURCE_PG_URL", "hidden1"


def options(folder: Path, **variables: str) -> dict[str, object]:
    return connection_options("pg", Settings.load({"TIDEMARK_HOME": str(folder), **variables}))


def test_the_parts_of_a_jdbc_url(tmp_path: Path) -> None:
    url = "jdbc:postgresql://db.example:5433/analytics?sslmode=require"
    found = options(
        tmp_path, TIDEMARK_SOURCE_PG_URL=url, TIDEMARK_SOURCE_PG_USER="me", TIDEMARK_SOURCE_PG_PASSWORD=SECRET
    )
    wanted = {"host": "db.example", "port": "5433", "dbname": "analytics", "sslmode": "require", "user": "me"}
    assert wanted.items() <= found.items()
    assert found["password"] == SECRET


def test_a_connection_of_airflow(tmp_path: Path) -> None:
    found = options(tmp_path, AIRFLOW_CONN_PG="postgres://me:se%2Fcret@db:5432/analytics")
    assert (found["host"], found["dbname"], found["user"], found["password"]) == ("db", "analytics", "me", "se/cret")


@pytest.mark.parametrize(
    "url", ["jdbc:mysql://db/x", "jdbc:sqlite:/x.db", f"jdbc:postgresql://db/x?currentSchema={SECRET}"]
)
def test_what_is_no_connection_to_postgresql_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        options(tmp_path, TIDEMARK_SOURCE_PG_URL=url, TIDEMARK_SOURCE_PG_PASSWORD=SECRET)
    assert URL in caught.value.hint
    assert SECRET not in str(caught.value)
