"""The stash: the SQL back end of the catalog, in SQLite or PostgreSQL.

Source: reference/collections_catalog_storage.md, section 3.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from include.catalog.back_end import Head, OpenMode
from include.catalog.stash_connection import LostConnection, MissingTable
from include.catalog.stash_fence import NONCE_BYTES
from include.catalog.stash_handle import NAME
from include.catalog.stash_opening import open_savepoint, open_writable, read_head, take_place
from include.catalog.stash_sqlite import SqliteConnection
from include.catalog.stash_tables import dump_tables
from include.catalog.stash_transactions import StashTransactions, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from include.catalog.stash_connection import StashConnection
    from include.catalog.stash_handle import StashHandle
    from include.clock import Clock
    from include.settings import Settings


class Stash:
    """Implements ``BackEnd``; opens nothing before it is asked to."""

    name = NAME

    def __init__(
        self, connect: Callable[[], StashConnection], *, nonce: Callable[[], bytes] = lambda: os.urandom(NONCE_BYTES)
    ) -> None:
        """Remember how to make a connection, and how to make 16 bytes that are new each time."""
        self._connect = connect
        self._nonce = nonce

    @classmethod
    def of(cls, settings: Settings) -> Stash:
        """Return the stash that the settings name.

        Raises:
            ConfigurationInvalid: If its URI is malformed.
        """
        uri = settings.stash_uri
        if urlsplit(uri).scheme == "sqlite":
            path = Path(uri.removeprefix("sqlite:///"))
            return cls(lambda: SqliteConnection(path))
        from include.catalog.stash_postgres import PostgresConnection  # noqa: PLC0415 - the embedded case has no server

        def connect() -> PostgresConnection:
            return PostgresConnection(uri, connect_timeout_s=settings.connect_timeout_s)

        connect()  # opens nothing, and complains of the URI
        return cls(connect)

    def head(self) -> Head:
        connection = self._connect()
        try:
            return StashTransactions(connection).run(lambda: read_head(connection), write=False)
        except MissingTable:
            return Head(None, {})
        finally:
            connection.close()

    def open(self, mode: OpenMode, *, generation: int, clock: Clock, epoch_lower_bound: int = 0) -> StashHandle:
        connection = self._connect()
        try:
            if mode is OpenMode.SAVEPOINT:
                return open_savepoint(connection, generation=generation, clock=clock)
            if mode is OpenMode.READ_ONLY:
                return take_place(connection, None, mode=mode, generation=generation, clock=clock)
            return open_writable(
                connection,
                self._connect(),
                generation=generation,
                clock=clock,
                epoch_lower_bound=epoch_lower_bound,
                nonce=self._nonce(),
            )
        except BaseException:
            connection.close()
            raise

    def join(self, *, generation: int, clock: Clock) -> StashHandle:
        connection = self._connect()
        try:
            return take_place(connection, self._connect(), mode=OpenMode.WRITABLE, generation=generation, clock=clock)
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
        finally:
            connection.close()
