"""Which types columns of databases get: the tables of docs/declare.md, with a value of each type."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.sources import rows
from tidemark.collections.schema.convert import from_spark
from tidemark.collections.schema.types import columns_text, stored_columns
from tidemark.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tests.support.sources import Opener
    from tidemark.collections.sources.opened_source import OpenedSource

pytestmark = pytest.mark.spark

POSTGRES: dict[str, tuple[str, str]] = {  # a type: a value, and the type of the collection
    "smallint": ("1", "int"),
    "integer": ("1", "int"),
    "bigint": ("1", "bigint"),
    "real": ("1.5", "float"),
    "double precision": ("1.5", "double"),
    "numeric(10,2)": ("1.50", "decimal(10,2)"),
    "numeric": ("1.5", "decimal(38,18)"),
    "money": ("1.50", "string"),
    "boolean": ("true", "boolean"),
    "text": ("x", "string"),
    "varchar(5)": ("x", "string"),
    "char(3)": ("x", "string"),
    "bytea": ("\\x01", "binary"),
    "date": ("2013-01-01", "date"),
    "time": ("01:02:03", "timestamp"),
    "timestamp": ("2013-01-01 01:02:03", "timestamp"),
    "timestamptz": ("2013-01-01 01:02:03+00", "timestamp"),
    "interval": ("1 day", "string"),
    "uuid": ("00000000-0000-0000-0000-000000000001", "string"),
    "json": ("{}", "string"),
    "jsonb": ("{}", "string"),
    "inet": ("10.0.0.1", "string"),
    "bit(1)": ("1", "boolean"),
    "bit(3)": ("101", "binary"),
    "point": ("(1,2)", "string"),
    "int4range": ("[1,2)", "string"),
    "integer[]": ("{1,2}", "array<int>"),
    "text[]": ("{x}", "array<string>"),
}
SQLITE: dict[str, tuple[Any, str]] = {
    "INTEGER": (1, "int"),
    "BIGINT": (1, "decimal(20,0)"),
    "REAL": (1.5, "double"),
    "FLOAT": (1.5, "float"),
    "NUMERIC": (1.5, "decimal(38,18)"),
    "DECIMAL(10,2)": (1.5, "decimal(10,2)"),
    "TEXT": ("x", "string"),
    "VARCHAR(5)": ("x", "string"),
    "BLOB": (b"x", "binary"),
    "BOOLEAN": (True, "boolean"),
    "DATE": ("2013-01-01 00:00:00.000", "date"),
    "TIMESTAMP": ("2013-01-01 01:02:03.000", "timestamp"),
}


def stored_types(opened: OpenedSource) -> list[str]:
    columns = stored_columns(from_spark(opened.desired.schema, where="it"))
    return [columns_text((column,)).split(" ", 1)[1] for column in columns]


@pytest.mark.postgres
def test_types_of_postgresql(opener: Opener, postgres: PostgresServer) -> None:
    uri = postgres.create_database("types_of_columns")
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE t (" + ", ".join(f"c{n} {name}" for n, name in enumerate(POSTGRES)) + ")")
        values = ", ".join(f"'{value}'" for value, _ in POSTGRES.values())
        connection.execute(f"INSERT INTO t VALUES ({values})")  # type: ignore[arg-type]  # of this module alone
    opened = opener({"format": "jdbc", "connection": "lake", "dbtable": "t"}, AIRFLOW_CONN_LAKE=uri)
    assert dict(zip(POSTGRES, stored_types(opened), strict=True)) == {
        name: type_ for name, (_, type_) in POSTGRES.items()
    }
    assert len(opened.desired.collect()) == 1


def test_types_of_sqlite(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "types.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (" + ", ".join(f"c{n} {name}" for n, name in enumerate(SQLITE)) + ")")
        connection.execute(
            f"INSERT INTO t VALUES ({', '.join('?' * len(SQLITE))})", [value for value, _ in SQLITE.values()]
        )
    opened = opener({"format": "jdbc", "url": f"jdbc:sqlite:{path}", "dbtable": "t"})
    assert dict(zip(SQLITE, stored_types(opened), strict=True)) == {name: type_ for name, (_, type_) in SQLITE.items()}
    assert len(opened.desired.collect()) == 1


def test_a_date_of_sqlite_in_another_form_is_refused_unless_the_form_is_declared(
    opener: Opener, tmp_path: Path
) -> None:
    path = tmp_path / "dates.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (a DATE); INSERT INTO t VALUES ('2013-01-31')")
    source = {"format": "jdbc", "url": f"jdbc:sqlite:{path}", "dbtable": "t"}
    with pytest.raises(Refused, match="Error parsing date") as refused:
        rows(opener(source))
    assert "date_string_format" in refused.value.hint
    assert rows(opener({**source, "options": {"date_string_format": "yyyy-MM-dd"}})) == [(date(2013, 1, 31),)]
    assert rows(opener({**source, "options": {"customSchema": "a string"}})) == [("2013-01-31",)]
