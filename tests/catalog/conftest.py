"""Places for the catalog's back ends: each test gets an empty one; the marker says what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tests.conftest import settings_in
from tests.support.catalog.stash_places import StashPlace
from tests.support.homes import Home

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def stash_database(postgres: PostgresServer) -> str:
    """A database with a schema for each test: made in a tenth of the time that a database takes."""
    return postgres.create_database("stashes")


def postgres_place(tmp_path: Path, server: PostgresServer, database: str, schema: str) -> StashPlace:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    uri = f"{database}?options=-csearch_path%3D{schema}"
    return StashPlace(settings_in(tmp_path, TIDEMARK_STASH_URI=uri), server)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> StashPlace:
    """An empty place for a stash: a file, and an empty schema of a server."""
    if request.param == "sqlite":
        return StashPlace(settings_in(tmp_path))
    server, database = (request.getfixturevalue(name) for name in ("postgres", "stash_database"))
    return postgres_place(tmp_path, server, database, unique_name[-60:])


@pytest.fixture
def server_place(tmp_path: Path, postgres: PostgresServer, stash_database: str, unique_name: str) -> StashPlace:
    """An empty place on the server alone."""
    return postgres_place(tmp_path, postgres, stash_database, unique_name[-60:])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def any_home(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Home:
    """An empty home: two files, or two empty databases of a server; where the databases have a say in what happens."""
    if request.param == "sqlite":
        return Home(settings_in(tmp_path))
    server = request.getfixturevalue("postgres")
    catalog, stash = (server.create_database(f"{prefix}_{unique_name[-50:]}") for prefix in ("c", "s"))
    return Home(settings_in(tmp_path, TIDEMARK_CATALOG_URI=catalog, TIDEMARK_STASH_URI=stash))
