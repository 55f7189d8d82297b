"""The connection of a sink: what its variables mean, and what is refused without a password in the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.postgres_server import PASSWORD, USER
from tidemark.errors import ConfigurationInvalid, Unreachable
from tidemark.settings import Settings
from tidemark.sinks.targets.postgres.connection import connect, connection_options, find_refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer

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


def test_a_login_without_a_url_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="the URL of the connection 'pg' is not set") as caught:
        options(tmp_path, TIDEMARK_SOURCE_PG_USER="me", TIDEMARK_SOURCE_PG_PASSWORD=SECRET)
    assert URL in caught.value.hint


@pytest.mark.parametrize(
    ("told", "is_refusal"),
    [
        ('FATAL:  password authentication failed for user "me"', True),
        ('FATAL:  database "none" does not exist', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "me", database "x", no encryption', True),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", False),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
    ],
)
def test_only_a_login_that_never_works_is_a_refusal(told: str, is_refusal: bool) -> None:  # noqa: FBT001 - a parameter
    text = f'connection failed: connection to server at "10.0.0.2", port 5432 failed: {told}'
    assert bool(find_refusal(text)) is is_refusal


@pytest.mark.postgres
def test_a_wrong_login_is_configuration_and_a_server_that_is_away_is_not(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    def try_to_connect(port: int, database: str, password: str) -> None:
        url = f"jdbc:postgresql://127.0.0.1:{port}/{database}"
        login = {"TIDEMARK_SOURCE_PG_USER": USER, "TIDEMARK_SOURCE_PG_PASSWORD": password}
        connect(options(tmp_path, TIDEMARK_SOURCE_PG_URL=url, **login), title="table 't'", sink="s").close()

    with pytest.raises(ConfigurationInvalid, match="password authentication failed") as caught:
        try_to_connect(postgres.port, "postgres", SECRET)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationInvalid, match="does not exist"):
        try_to_connect(postgres.port, "no_such_database", PASSWORD)
    with pytest.raises(Unreachable, match="does not answer"):
        try_to_connect(9, "postgres", PASSWORD)
