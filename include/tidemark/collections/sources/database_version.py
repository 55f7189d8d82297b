"""Asks a database for the answer that names its state, of the two kinds of database that Python can ask without a JVM.

The way depends on the URL alone, so that one state has one answer.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tidemark.collections.sources.logins import JDBC, Login
from tidemark.errors import Refused, Unreachable
from tidemark.locations import reading_uri
from tidemark.secrets.redaction import first_line

_KNOWN_PARAMETERS = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})  # of PostgreSQL: libpq names them alike

_AWAY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})

Rows = list[tuple[Any, ...]]


def can_ask(url: str) -> bool:
    """Say whether ``ask`` reaches the database of a JDBC URL; otherwise only Spark does."""
    kind, _, rest = url.removeprefix(JDBC).partition(":")
    if kind == "sqlite":
        return not rest.startswith((":", "file:")) and "?" not in rest
    return kind == "postgresql" and rest.startswith("//") and parse_qs(urlsplit(rest).query).keys() <= _KNOWN_PARAMETERS


def ask(url: str, login: Login, query: str, *, where: str, timeout_s: float) -> Rows:
    """Return the rows of ``query``. Raises ``Refused`` if the query fails, ``Unreachable`` without the database."""
    rest = url.removeprefix(JDBC)
    try:
        if rest.startswith("sqlite:"):
            return _ask_sqlite(Path(rest.removeprefix("sqlite:")), query, timeout_s=timeout_s)
        return _ask_postgres(rest, login, query, timeout_s=timeout_s)
    except (ConnectionError, OSError) as error:
        message = f"{where}: its database does not answer: {first_line(error)}"
        raise Unreachable(message, hint="check its URL") from error
    except ValueError as error:
        raise failed(where, query, first_line(error)) from error


def failed(where: str, query: str, why: str) -> Refused:
    """Build the error for a query that names no state."""
    hint = "correct `source.version`, or leave it out"
    return Refused(f"{where}: `version` names no state: {why}: {query}", hint=hint)


def answer_text(rows: Rows, where: str, query: str) -> str | None:
    """Return the name of the state; None of an answer without a value. Raises ``Refused`` if there is no row."""
    if not rows:
        raise failed(where, query, "it returns no row")
    if all(value is None for row in rows for value in row):
        return None
    return "\n".join("\t".join("NULL" if value is None else repr(str(value)) for value in row) for row in rows)


def _ask_sqlite(path: Path, query: str, *, timeout_s: float) -> Rows:
    if not path.exists():
        raise ConnectionError(f"there is no {path}")
    try:
        with closing(sqlite3.connect(reading_uri(path), uri=True, timeout=timeout_s)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _AWAY:
            raise ConnectionError(str(error)) from error
        raise ValueError(str(error)) from error
    except sqlite3.Error as error:
        raise ValueError(str(error)) from error


def _ask_postgres(url: str, login: Login, query: str, *, timeout_s: float) -> Rows:
    import psycopg  # noqa: PLC0415 - other databases do without it
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    try:
        given = make_conninfo(url, user=login.user, password=login.password, application_name="tidemark")
        connection = psycopg.connect(given, connect_timeout=max(2, int(timeout_s)))
    except psycopg.Error as error:
        raise ConnectionError(str(error)) from error
    try:
        with connection:
            connection.read_only = True
            return connection.execute(query).fetchall()
    except psycopg.Error as error:
        raise ValueError(str(error)) from error
