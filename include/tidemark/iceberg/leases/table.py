"""The table of leases, beside Iceberg's own tables in the catalog's database: SQLite or PostgreSQL, without pyiceberg.

A writer makes the table when it needs it, and a reader takes a missing one for empty. Nothing durable hangs on a lease,
so that no renewal waits for a disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.shard.state_reader import ask_catalog
from tidemark.locations import is_read_only
from tidemark.settings import Settings

if TYPE_CHECKING:
    import psycopg

FAIL_POINTS: Final = ("leases.after-table",)
SILENCE_S: Final = 10  # after which a server that went away without closing the connection counts as lost
_KEPT_MS: Final = 30 * 24 * 3600 * 1000  # of leases that ran out, and that nobody has removed
_TABLE = """
CREATE TABLE IF NOT EXISTS tidemark_leases (
    id VARCHAR(36) PRIMARY KEY, operation TEXT NOT NULL, collections TEXT NOT NULL, generation BIGINT NOT NULL,
    writer TEXT NOT NULL, length_s DOUBLE PRECISION NOT NULL, began_ms BIGINT NOT NULL, beat BIGINT NOT NULL,
    renewed_ms BIGINT NOT NULL
)
"""
_NOW_SQLITE = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_NOW_POSTGRES = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_COLUMNS = "id, operation, collections, generation, writer, length_s, began_ms, beat, renewed_ms"
_ENTER = (
    f"INSERT INTO tidemark_leases ({_COLUMNS}) VALUES ({{0}}, {{0}}, {{0}}, {{0}}, {{0}}, {{0}}, {{now}}, 0, {{now}}) "  # noqa: S608 - our own text
    "ON CONFLICT (id) DO UPDATE SET beat = tidemark_leases.beat + 1"  # the answer to an earlier try was lost
)
_RENEW = "UPDATE tidemark_leases SET beat = beat + 1, renewed_ms = {now} WHERE id = {0}"
_END = "DELETE FROM tidemark_leases WHERE id = {0}"
_END_LAPSED = "DELETE FROM tidemark_leases WHERE id = {0} AND beat = {0}"
_END_FORGOTTEN = "DELETE FROM tidemark_leases WHERE renewed_ms < {now} - {0}"
_READ = f"SELECT {_COLUMNS}, {{now}} FROM tidemark_leases ORDER BY began_ms, id"  # noqa: S608 - our own text


def read_leases(settings: Settings) -> tuple[list[Lease], int]:
    """Return all leases, the oldest first, whether live or not, and the time of the database in ms (0 without leases).

    Raises ``Unreachable`` if the database does not answer.
    """
    rows = ask_catalog(settings, _READ.replace("{now}", _now(settings)), ())
    leases = [
        Lease(
            id=row[0],
            operation=row[1],
            collections=tuple(json.loads(row[2])),
            generation=row[3],
            writer=row[4],
            length_s=row[5],
            began_ms=row[6],
            beat=row[7],
            renewed_ms=row[8],
        )
        for row in rows
    ]
    return leases, rows[0][9] if rows else 0


class LeaseTable:
    """Writes leases, on one connection; used by one thread.

    Every method may raise one of ``failures``: the database is away, busy, or cannot be written.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        if self._settings.catalog_is_sqlite:
            return (sqlite3.Error, OSError)
        import psycopg  # noqa: PLC0415 - the embedded case does without it

        return (psycopg.Error, OSError)

    def enter(self, id_: str, *, operation: str, collections: Sequence[str], writer: str) -> None:
        """Begin a lease; in a store without the table, make the table."""
        settings = self._settings
        values = (id_, operation, json.dumps(list(collections)), settings.generation, writer, settings.lease_s)
        try:
            self._execute(_ENTER, values)
        except self.failures:
            with suppress(*self.failures):  # another process makes it, too; any other reason stops what follows
                self._execute(_TABLE)
                fail_point("leases.after-table")
            self._execute(_ENTER, values)

    def renew(self, id_: str) -> bool:
        """Renew the lease; return whether it was still there."""
        return self._execute(_RENEW, (id_,)) > 0

    def end(self, id_: str) -> None:
        self._execute(_END, (id_,))

    def end_lapsed(self, lease: Lease) -> bool:
        """End a lease of another process that ran out; return False if its process has renewed it since."""
        return self._execute(_END_LAPSED, (lease.id, lease.beat)) > 0

    def end_forgotten(self) -> None:
        """End leases that ran out a month ago, by the clock of the database; a live one comes back by itself."""
        self._execute(_END_FORGOTTEN, (_KEPT_MS,))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run the statement; return how many rows it changed."""
        run: Callable[[str, Sequence[object]], int]
        run, mark = (self._run_sqlite, "?") if self._settings.catalog_is_sqlite else (self._run_postgres, "%s")
        return run(statement.replace("{0}", mark).replace("{now}", _now(self._settings)), values)

    def _run_sqlite(self, statement: str, values: Sequence[object]) -> int:
        path = self._settings.catalog_path
        if is_read_only(path):
            raise PermissionError(f"{path.name!r} is in a folder that cannot be written")
        timeout = self._settings.connect_timeout_s
        # A new connection each time: the file may be put back from a backup meanwhile. It is not made by a lease.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            return connection.execute(statement, tuple(values)).rowcount

    def _run_postgres(self, statement: str, values: Sequence[object]) -> int:
        import psycopg  # noqa: PLC0415

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._settings.catalog_uri.reveal(),
                autocommit=True,
                connect_timeout=max(2, int(self._settings.connect_timeout_s)),  # libpq takes 1 for 2
                application_name="tidemark-lease",
                keepalives_idle=SILENCE_S // 2,
                keepalives_interval=SILENCE_S // 2,
                keepalives_count=1,
                tcp_user_timeout=SILENCE_S * 1_000,
            )
            self._connection.execute("SET synchronous_commit = off")
        return self._connection.execute(statement, values).rowcount


def _now(settings: Settings) -> str:
    return _NOW_SQLITE if settings.catalog_is_sqlite else _NOW_POSTGRES
