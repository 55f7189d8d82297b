"""Catalog, stash and sources as Airflow connections name them; a source's reach the application by its environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from airflow.models.connection import Connection as Stored
from airflow.sdk import Connection

from tests.support.homes import Home
from tidemark.collections.sources.logins import Login, find_login
from tidemark.errors import ConfigurationInvalid
from tidemark.orchestration.connections import database_uri, source_connections

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

PASSWORD = "p%@ss"  # noqa: S105 - of nobody
DECLARATION = """version: 1
collections:
  it:
    kind: differential
    key: [id]
    schema: "id int"
    source: {format: jdbc, connection: lake, dbtable: t}
  other:
    kind: differential
    key: [id]
    schema: "id int"
    source: {format: jdbc, connection: pond, dbtable: t}
"""


def connection(**more: object) -> Connection:
    fields = {"conn_type": "postgres", "host": "db", "login": "k@p", "password": "a/b", "schema": "tides"} | more
    return Connection(conn_id="tidemark_catalog", **fields)  # type: ignore[arg-type]


def test_connection_becomes_a_uri_with_its_encryption() -> None:
    assert database_uri(connection()) == "postgresql://k%40p:a%2Fb@db:5432/tides"
    safe = connection(extra='{"sslmode": "verify-full", "sslrootcert": "/ca.pem", "cursor": "dictcursor"}')
    assert database_uri(safe) == "postgresql://k%40p:a%2Fb@db:5432/tides?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert database_uri(connection(conn_type="sqlite", host="")) == ""
    schema = connection(extra='{"options": "-c search_path=stash"}')
    assert database_uri(schema) == "postgresql://k%40p:a%2Fb@db:5432/tides?options=-c%20search_path%3Dstash"


@pytest.mark.parametrize(("more", "said"), [({"host": None}, "names no host"), ({"conn_type": "mysql"}, "'mysql'")])
def test_connection_that_is_no_catalog_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=said):
        database_uri(connection(**more))


def test_only_what_sources_name_and_airflow_has_is_handed_on(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source_connections(home, os.environ) == {}, "nothing is declared yet"
    Home(home, tmp_path).declare(DECLARATION)
    stored = Stored(conn_id="lake", conn_type="postgres", host="db", schema="s", login="me", password=PASSWORD)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", stored.as_json())  # where Airflow itself looks first
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", stored.as_json())
    found = source_connections(home, {})
    assert list(found) == ["AIRFLOW_CONN_LAKE"]
    assert json.loads(found["AIRFLOW_CONN_LAKE"])["conn_type"] == "postgres"
    assert find_login("lake", found) == Login("jdbc:postgresql://db/s", "me", PASSWORD)
    assert source_connections(home, {"AIRFLOW_CONN_LAKE": "set already"}) == {}


def test_the_connection_of_a_dropped_sink_is_handed_on_until_it_is_cleaned_up(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_POND", "postgres://me@db/s")
    carrying = Home(home, tmp_path)
    carrying.declare_latest()
    carrying.declare_sink(to={"connection": "pond", "table": "copies"})
    objects = carrying.deployment.objects
    (dropped,) = objects.drop(objects.look(["copies"]))
    assert list(source_connections(home, {})) == ["AIRFLOW_CONN_POND"]
    objects.forget(dropped)
    assert source_connections(home, {}) == {}
