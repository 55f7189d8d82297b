"""Databases are read as they are, by logins from the environment alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.sources import rows
from tidemark.errors import ConfigurationInvalid, InputMissing, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tests.support.sources import Opener

pytestmark = pytest.mark.spark


def test_a_database_is_read_as_it_is_and_is_not_pinnable(opener: Opener, database: Path) -> None:
    url = f"jdbc:sqlite:{database}"
    opened = opener({"format": "jdbc", "url": url, "dbtable": "t"})
    assert rows(opened) == [(1, "x"), (2, "y")]
    assert not opened.pinnable
    assert rows(opener({"format": "jdbc", "url": url, "query": "SELECT b FROM t WHERE a = 2"})) == [("y",)]
    named = {"format": "jdbc", "connection": "lake", "dbtable": "t"}
    assert rows(opener(named, AIRFLOW_CONN_LAKE=f"sqlite:///{database}")) == [(1, "x"), (2, "y")]
    with pytest.raises(ConfigurationInvalid, match="'lake' is not set"):
        opener(named)


def test_a_missing_table_or_database_is_missing_and_a_silent_one_unreachable(opener: Opener, database: Path) -> None:
    with pytest.raises(InputMissing, match="no such table"):
        opener({"format": "jdbc", "url": f"jdbc:sqlite:{database}", "dbtable": "u"})
    for version in (None, "SELECT count(*) FROM t"):
        source = {"format": "jdbc", "url": f"jdbc:sqlite:{database}.not", "dbtable": "t", "version": version}
        with pytest.raises(InputMissing, match="its database cannot be opened"):
            opener({**source, "driver": "org.sqlite.JDBC"})
    assert not database.with_name("source.db.not").exists()
    with pytest.raises(Unreachable):
        opener({"format": "jdbc", "url": "jdbc:postgresql://127.0.0.1:1/x", "dbtable": "t"})


@pytest.mark.postgres
def test_postgres_is_read_with_a_login_from_the_environment_alone(opener: Opener, postgres: PostgresServer) -> None:
    uri = postgres.create_database("source_of_planes")
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE t (a int, b text, d numeric(5,2), at timestamptz)")
        connection.execute("INSERT INTO t VALUES (1, 'x', 1.50, '2013-01-01T00:00:00Z'), (2, NULL, NULL, NULL)")
    source = {"format": "jdbc", "connection": "lake", "dbtable": "t"}
    opened = opener(source, AIRFLOW_CONN_LAKE=uri)
    assert [field.dataType.simpleString() for field in opened.desired.schema] == [
        "int", "string", "decimal(5,2)", "timestamp",
    ]  # fmt: skip
    assert [row[:2] for row in rows(opened)] == [(1, "x"), (2, None)]
    with pytest.raises(InputMissing, match="gone"):
        opener({**source, "dbtable": "gone"}, AIRFLOW_CONN_LAKE=uri)
    with pytest.raises(ConfigurationInvalid) as caught:
        opener(source, AIRFLOW_CONN_LAKE=uri, TIDEMARK_SOURCE_LAKE_PASSWORD="hush")  # noqa: S106 - a wrong one
    assert "hush" not in str(caught.value)
