"""The collection `events`, and the connection `pg` to a database of a real PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.sinks.changes import change

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tests.support.postgres_server import PostgresServer
    from tidemark.settings import Settings


def login(uri: str) -> dict[str, str]:
    """Return the variables of the connection `pg` to the database at ``uri``."""
    parts = urlsplit(uri)
    return {
        "TIDEMARK_SOURCE_PG_URL": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "AIRFLOW_CONN_PG": uri.replace("postgresql://", "postgres://"),
    }


def connected(settings: Settings, uri: str) -> Settings:
    """Return the settings with the connection `pg`."""
    return replace(settings, connections={**settings.connections, **login(uri)})


@dataclass
class Database:
    """The target, as any client sees it."""

    uri: str

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]  # a text of the test

    def rows(self, query: str = "SELECT * FROM copies") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            return sorted(connection.execute(query).fetchall(), key=repr)  # type: ignore[arg-type]

    def exists(self, table: str = "copies") -> bool:
        return self.rows(f"SELECT to_regclass('{table}') IS NOT NULL") == [(True,)]

    def progress(self) -> int | None:
        [(time,)] = self.rows("SELECT time FROM tidemark_sinks")
        return None if time is None else int(time)


@pytest.fixture
def database(postgres: PostgresServer, unique_name: str) -> Database:
    return Database(postgres.create_database(unique_name[-50:]))


@pytest.fixture
def sinking(carrying: Home, database: Database) -> Home:
    """Three rows, and a connection."""
    carrying.settings = connected(carrying.settings, database.uri)
    change(carrying, put={0: "a", 1: "b", 2: None})
    return carrying
