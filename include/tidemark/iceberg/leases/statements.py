"""Statements on small tables beside Iceberg's own in the catalog's database: SQLite or PostgreSQL, without pyiceberg.

A writer makes its table when the table is missing, and a reader takes a missing one for empty. Nothing durable hangs
on these tables, so that no statement waits for a disk.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tidemark.errors import Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.state_reader import ask_catalog
from tidemark.locations import is_read_only
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

if TYPE_CHECKING:
    import psycopg

FAIL_POINTS: Final = ("statements.after-table",)
SILENCE_S: Final = 10  # after which a server that went away without closing the connection counts as lost
_NOW_SQLITE = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_NOW_POSTGRES = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class CatalogStatements:
    """Runs statements of one table, on one connection that threads use in turn.

    A statement has ``{0}`` in the place of each value, and ``{now}`` for the time of the database in ms.
    """

    def __init__(self, settings: Settings, *, table: str, application: str) -> None:
        """Take the statement that makes the table if it is missing, and what the server calls this connection."""
        self._settings, self._table, self._application = settings, table, application
        self._connection: psycopg.Connection[Any] | None = None
        self._connecting = Lock()

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What ``execute`` raises if the database is away, busy, or cannot be written."""
        if self._settings.catalog_is_sqlite:
            return (sqlite3.Error, OSError)
        import psycopg  # noqa: PLC0415 - the embedded case does without it

        return (psycopg.Error, OSError)

    def execute(self, statement: str, *values: object) -> int:
        """Run the statement; return how many rows it changed. In a store without the table, make the table."""
        try:
            return self._run(statement, values)
        except self.failures as error:
            if not _lacks_table(error):
                raise
        with suppress(*self.failures):  # another process makes it, too; any other reason stops what follows
            self._run(self._table, ())
            fail_point("statements.after-table")
        return self._run(statement, values)

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of the statement; none if the table is missing.

        Raises ``Unreachable`` if the database does not answer.
        """
        if self._settings.catalog_is_sqlite:
            return ask_catalog(self._settings, statement.replace("{now}", _NOW_SQLITE), values)
        try:
            return self._ask_postgres(statement, values).fetchall()
        except self.failures as error:
            if _lacks_table(error):
                return []
            raise Unreachable(
                f"the catalog at {self._settings.catalog_uri.where} cannot be reached: {first_line(error)}",
                hint="check TIDEMARK_CATALOG_URI",
            ) from error

    def close(self) -> None:
        """Close the connection, which the next statement opens anew."""
        with self._connecting:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(self, statement: str, values: tuple[object, ...]) -> int:
        run = self._run_sqlite if self._settings.catalog_is_sqlite else self._run_postgres
        return run(statement, values)

    def _run_sqlite(self, statement: str, values: tuple[object, ...]) -> int:
        path = self._settings.catalog_path
        if is_read_only(path):
            raise PermissionError(f"{path.name!r} is in a folder that cannot be written")
        timeout = self._settings.connect_timeout_s
        # A new connection each time, which takes 0.1 ms: the file may be put back from a backup meanwhile. One that
        # was kept would write to the file of before, and remove the log of the new one when it is closed at last.
        # The file is not made here.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            return connection.execute(statement.format("?", now=_NOW_SQLITE), values).rowcount

    def _run_postgres(self, statement: str, values: tuple[object, ...]) -> int:
        return self._ask_postgres(statement, values).rowcount

    def _ask_postgres(self, statement: str, values: tuple[object, ...]) -> psycopg.Cursor[Any]:
        import psycopg  # noqa: PLC0415

        with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._settings.catalog_uri.reveal(),
                    autocommit=True,
                    connect_timeout=max(2, int(self._settings.connect_timeout_s)),  # libpq takes 1 for 2
                    application_name=self._application,
                    keepalives_idle=SILENCE_S // 2,
                    keepalives_interval=SILENCE_S // 2,
                    keepalives_count=1,
                    tcp_user_timeout=SILENCE_S * 1_000,
                )
                self._connection.execute("SET synchronous_commit = off")
            connection = self._connection
        return connection.execute(statement.format("%s", now=_NOW_POSTGRES), values)


def _lacks_table(error: Exception) -> bool:
    return "no such table" in str(error) or getattr(error, "sqlstate", None) == "42P01"  # undefined_table
