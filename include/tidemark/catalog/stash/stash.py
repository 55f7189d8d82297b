"""The stash: the SQL back end of the catalog, in SQLite or PostgreSQL.

Source: reference/collections_catalog_storage.md, section 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from tidemark.catalog.back_end import Head, OpenMode
from tidemark.catalog.items.data_versions import MIGRATIONS, DataMigration
from tidemark.catalog.stash.connection import Conflict, LostConnection, MissingTable, StashConnection
from tidemark.catalog.stash.dump import dump_tables
from tidemark.catalog.stash.fence import NONCE_BYTES
from tidemark.catalog.stash.handle import NAME, StashHandle
from tidemark.catalog.stash.opening import Opener, open_savepoint, open_writable, read_head, take_place
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.catalog.stash.transactions import StashTransactions, unreachable
from tidemark.clock import Clock
from tidemark.errors import ConflictsUnsettled
from tidemark.settings import Settings


class Stash:
    """Implements ``BackEnd``; opens nothing before it is asked to."""

    name = NAME

    def __init__(
        self,
        connect: Callable[[], StashConnection],
        *,
        nonce: Callable[[], bytes] = lambda: os.urandom(NONCE_BYTES),
        migrations: Sequence[DataMigration] = MIGRATIONS,
    ) -> None:
        """Take functions that make a connection, not opened yet, and 16 new random bytes; and the known migrations."""
        self._connect, self._nonce, self._migrations = connect, nonce, migrations

    @classmethod
    def of(cls, settings: Settings, *, migrations: Sequence[DataMigration] = MIGRATIONS) -> Stash:
        """Return the stash that the settings name.

        Raises:
            ConfigurationInvalid: If its URI is malformed.
        """
        uri = settings.stash_uri
        if urlsplit(uri).scheme == "sqlite":
            path = Path(uri.removeprefix("sqlite:///"))
            return cls(lambda: SqliteConnection(path), migrations=migrations)
        from tidemark.catalog.stash.postgres import PostgresConnection  # noqa: PLC0415 - the embedded case has no server

        def connect() -> PostgresConnection:
            return PostgresConnection(uri, connect_timeout_s=settings.connect_timeout_s)

        connect()  # opens nothing, but refuses a malformed URI
        return cls(connect, migrations=migrations)

    def head(self) -> Head:
        with closing(self.watch()) as watch:
            return watch.head()

    def watch(self) -> StashWatch:
        """Return a reader of the head that keeps one connection from its first look on."""
        return StashWatch(self._connect())

    def open(self, mode: OpenMode, *, generation: int, clock: Clock, epoch_lower_bound: int = 0) -> StashHandle:
        connection, opener = self._connect(), Opener(generation, clock, self._migrations)
        try:
            if mode is OpenMode.SAVEPOINT:
                return open_savepoint(connection, opener)
            if mode is OpenMode.READ_ONLY:
                return take_place(connection, opener, mode=mode)
            return open_writable(connection, opener, epoch_lower_bound=epoch_lower_bound, nonce=self._nonce())
        except BaseException:
            connection.close()
            raise

    def join(self, *, generation: int, clock: Clock) -> StashHandle:
        connection, opener = self._connect(), Opener(generation, clock, self._migrations)
        try:
            return take_place(connection, opener, mode=OpenMode.WRITABLE)
        except BaseException:
            connection.close()
            raise

    def dump(self) -> Iterator[str]:
        connection = self._connect()
        try:
            connection.begin(write=False)
            yield from dump_tables(connection)
        except MissingTable:
            return
        except LostConnection as error:
            raise unreachable(connection, error) from error
        except Conflict as error:
            raise ConflictsUnsettled(f"{connection.where} is being written: {error}", hint="run it again") from error
        finally:
            connection.close()


class StashWatch:
    """Reads the head through one connection: a server takes ten times longer to open a connection than to answer."""

    def __init__(self, connection: StashConnection) -> None:
        self._connection = connection

    def head(self) -> Head:
        """Return the head, as ``BackEnd.head``.

        Raises:
            Unreachable: If the stash does not answer, or the connection was lost; the next look makes a new one.
        """
        try:
            return StashTransactions(self._connection).run(lambda: read_head(self._connection), write=False)
        except MissingTable:
            return Head(None, {})

    def close(self) -> None:
        """Close the connection; a later look would make a new one."""
        self._connection.close()
