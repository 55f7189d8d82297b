"""Catalog and stash as Airflow connections name them."""

from __future__ import annotations

import pytest
from airflow.sdk import Connection

from tidemark.errors import ConfigurationInvalid
from tidemark.orchestration.connections import database_uri


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
