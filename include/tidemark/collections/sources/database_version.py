"""Asks a database for the answer that names its state, of the two kinds of database that Python can ask without a JVM.

The way depends on the URL alone, so that one state has one answer.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tidemark.collections.sources.logins import JDBC, Login
from tidemark.errors import Refused, Unreachable
from tidemark.locations import reading_uri
from tidemark.secrets.redaction import first_line

ANSWER_S = 10.0  # a query that takes longer names nothing
_KNOWN_PARAMETERS = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})  # of PostgreSQL: libpq names them alike
_AWAY = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB}
)
_SQLITE_STEPS = 10_000  # between two looks at the clock

Rows = list[tuple[Any, ...]]


def can_ask(url: str) -> bool:
    """Say whether ``ask`` reaches the database of a JDBC URL as Spark does; otherwise only Spark does."""
    kind, _, rest = url.removeprefix(JDBC).partition(":")
    if kind == "sqlite":
        return rest.startswith("/") and "?" not in rest
    if kind != "postgresql" or "PGSERVICE" in os.environ:  # a service of libpq, of which Java knows nothing
        return False
    try:
        parts = urlsplit(rest)
        is_whole = bool(parts.hostname and parts.path.strip("/")) and parts.port != 0
    except ValueError:
        return False
    is_plain = not {"@", ","} & {*parts.netloc}
    return is_whole and is_plain and parse_qs(parts.query, keep_blank_values=True).keys() <= _KNOWN_PARAMETERS


def ask(url: str, login: Login, query: str, *, where: str, timeout_s: float) -> Rows | None:
    """Return the rows of ``query``; None if the answer takes longer than ``ANSWER_S``.

    Raises ``Refused`` if the query fails, ``Unreachable`` without the database.
    """
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


def answer_text(rows: Rows | None, where: str, query: str) -> str | None:
    """Return the name of the state; None without an answer, or without a value. Raises ``Refused`` without a row."""
    if rows is None:
        return None
    if not rows:
        raise failed(where, query, "it returns no row")
    if all(value is None for row in rows for value in row):
        return None
    return "\n".join("\t".join("NULL" if value is None else repr(str(value)) for value in row) for row in rows)


def _ask_sqlite(path: Path, query: str, *, timeout_s: float) -> Rows | None:
    if not path.exists():
        raise ConnectionError(f"there is no {path}")
    until_s = time.monotonic() + ANSWER_S
    try:
        with closing(sqlite3.connect(reading_uri(path), uri=True, timeout=timeout_s)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > until_s, _SQLITE_STEPS)
            return connection.execute(query).fetchall()
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what SQLite adds to it
        if code == sqlite3.SQLITE_INTERRUPT:
            return None
        raise (ConnectionError if code in _AWAY else ValueError)(str(error)) from error


def _ask_postgres(url: str, login: Login, query: str, *, timeout_s: float) -> Rows | None:
    """Ask with nothing that libpq would take from its environment, and return values as the server spells them."""
    import psycopg  # noqa: PLC0415 - other databases do without it
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    parts = urlsplit(url)
    given = {name: values[0] for name, values in parse_qs(parts.query).items()}
    given |= {"host": str(parts.hostname), "port": str(parts.port or 5432), "dbname": unquote(parts.path.strip("/"))}
    given["options"] = f"-c statement_timeout={int(ANSWER_S * 1000)}"
    try:
        who = make_conninfo(user=login.user, password=login.password, application_name="tidemark", **given)
        connection = psycopg.connect(who, connect_timeout=max(2, int(timeout_s)))
    except psycopg.Error as error:
        raise ConnectionError(str(error)) from error
    try:
        with connection:
            connection.read_only = True
            found = connection.execute(query).pgresult
            if found is None:
                return []
            texts = [[found.get_value(row, column) for column in range(found.nfields)] for row in range(found.ntuples)]
            return [tuple(None if text is None else text.decode() for text in row) for row in texts]
    except psycopg.errors.QueryCanceled:
        return None
    except psycopg.Error as error:
        raise ValueError(str(error)) from error
