"""A stash in an SQLite file: one writer at a time, readers beside it, no server."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.catalog.stash.connection import Conflict, LostCommit, LostConnection, MissingTable, Row, table_statements
from tidemark.errors import CorruptState, NotPossible, Unreachable
from tidemark.locations import is_read_only, reading_uri

if TYPE_CHECKING:
    import pyarrow as pa

PRIVATE = ""  # SQLite's own name for a database on disk that nobody else sees and that a close deletes
BUSY_TIMEOUT_S = 1.0  # of one attempt; all attempts together take half a minute to a minute
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_PASSING = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PRIMARY = 0xFF  # an extended result code has the primary one in its low byte


class SqliteConnection:
    """Implements ``StashConnection``; ``path`` None is a private database of this connection alone."""

    row_lock = ""  # BEGIN IMMEDIATE has locked the whole file
    order = ""

    def __init__(self, path: Path | None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.where = "a private copy" if path is None else f"the stash {path.name!r}"
        self._path, self._busy_timeout_s = path, busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def create_database(self) -> None:
        if self._path is None:
            return
        with self._translated():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=self._busy_timeout_s)) as connection:
                if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    connection.execute("PRAGMA journal_mode=WAL")  # sticks: readers do not block the writer

    def begin(self, *, write: bool) -> None:
        with self._translated():
            connection = self._connect()
            # IMMEDIATE: a transaction that reads first and locks later could find its snapshot out of date.
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def create_tables(self) -> None:
        for statement in table_statements(binary="BLOB", numbered="INTEGER"):
            self.execute(statement)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._translated():
            return self._opened.execute(statement, tuple(parameters)).fetchall()

    def stream(self, statement: str, parameters: Sequence[object] = ()) -> Generator[Row, None, None]:
        with self._translated():
            yield from self._opened.execute(statement, tuple(parameters))

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> None:
        with self._translated():
            self._opened.execute(statement, tuple(parameters))

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" for _ in columns)
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - our own names
        with self._translated():
            self._opened.executemany(statement, rows)  # one prepared statement, row by row

    def insert_batches(self, table: str, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            columns = (column.to_pylist() for column in batch.columns)
            self.insert(table, batch.schema.names, zip(*columns, strict=True))

    def consolidate(self, collection_id: int, since: int) -> None:
        past = "collection_id = ? AND time <= ?"
        chosen = f"data WHERE {past} AND key IN (SELECT key FROM data WHERE {past} AND diff < 0)"  # noqa: S608 - our text
        parameters = (collection_id, since, collection_id, since)
        self.begin(write=True)
        sums = self.query(
            f"SELECT key, value, SUM(diff) FROM {chosen} GROUP BY key, value HAVING SUM(diff) <> 0",  # noqa: S608
            parameters,
        )
        self.execute(f"DELETE FROM {chosen}", parameters)  # noqa: S608 - our own text
        rows = ((collection_id, key, value, since, diff) for key, value, diff in sums)
        self.insert("data", ("collection_id", "key", "value", "time", "diff"), rows)
        self.commit()

    def commit(self) -> None:
        try:
            with self._translated():
                self._opened.execute("COMMIT")
        except LostConnection as error:
            raise LostCommit(str(error)) from error

    def rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()  # which rolls back

    def was_committed(self, transaction_id: str) -> bool | None:  # noqa: ARG002 - of the protocol
        return None  # a disk that fails during a commit: the file keeps no record of transactions

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "begin comes first"  # noqa: S101 - a bug in this package
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._file == self._present_file():
            return self._connection
        self.close()  # the file was dropped, and perhaps made anew: the old one would still accept writes
        if self._path is None:
            self._connection = sqlite3.connect(PRIVATE, isolation_level=None, check_same_thread=False)
            return self._connection
        self._file = self._present_file()
        if self._file is None:
            raise MissingTable(f"there is no file {self._path.name!r}")
        writing_uri = f"{self._path.absolute().as_uri()}?mode=rw"
        self._connection = sqlite3.connect(
            reading_uri(self._path) if is_read_only(self._path) else writing_uri,
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,  # one thread at a time, not always the same
        )
        return self._connection

    def _present_file(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
            if code in _BUSY:
                raise Conflict(str(error)) from error
            if code in _DAMAGED:
                raise CorruptState(f"{self.where} cannot be read: {error}", hint="restore it from a dump") from error
            if code in _PASSING and self._path is None:  # a new private database would be empty
                raise Unreachable(
                    f"the private copy of a dry run cannot be written: {error}",
                    hint="free space where SQLite keeps temporary files (SQLITE_TMPDIR, TMPDIR)",
                ) from error
            if code in _PASSING:
                self.close()
                raise LostConnection(str(error)) from error
            if code == sqlite3.SQLITE_READONLY:
                raise NotPossible(f"{self.where} cannot be written: {error}", hint="check its permissions") from error
            if "no such table" in str(error):
                raise MissingTable(str(error)) from error
            raise
        except OSError as error:
            raise Unreachable(
                f"{self.where} cannot be opened: {error.strerror}", hint="check TIDEMARK_STASH_URI"
            ) from error
