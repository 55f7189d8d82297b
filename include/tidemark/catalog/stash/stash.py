"""The stash: the SQL back end of the catalog, in SQLite or PostgreSQL.

Source: reference/collections_catalog_storage.md, section 3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from tidemark.catalog.back_end import Head, OpenMode, closed_on_error
from tidemark.catalog.items.data_versions import (
    MIGRATIONS,
    DataMigration,
    check_data_version,
    check_generation,
    take_over_changes,
)
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, DEPLOYMENT, GENERATION_KEY
from tidemark.catalog.stash.collections import DATA_COLUMNS, StashCollections
from tidemark.catalog.stash.connection import Conflict, LostConnection, MissingTable, StashConnection
from tidemark.catalog.stash.fence import (
    FIRST_EPOCH,
    NONCE_BYTES,
    StashFence,
    raise_fence,
    read_config,
    read_fence,
    read_small,
)
from tidemark.catalog.stash.handle import NAME, StashHandle, append_changes
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.catalog.stash.transactions import StashTransactions, unreachable
from tidemark.clock import Clock
from tidemark.errors import ConflictsUnsettled, NotWritable
from tidemark.fail_points import fail_point
from tidemark.settings import Settings

FAIL_POINTS = ("stash.after-fence",)
_TABLES = {
    "fence": ("epoch", "nonce"),
    "collections": ("collection_id", "name"),
    "sinces": ("collection_id", "since"),
    "uppers": ("collection_id", "upper"),
    "data": DATA_COLUMNS,
}
_TEXTS = {"name", "key", "value"}


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
        """Return the stash that the settings name; raise ``ConfigurationInvalid`` if libpq cannot read its URI."""
        uri = settings.stash_uri
        if (path := uri.path) is not None:
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
        if mode is OpenMode.WRITABLE:
            return self._open_writable(generation=generation, clock=clock, epoch_lower_bound=epoch_lower_bound)
        if mode is OpenMode.SAVEPOINT:
            return self._open_savepoint(generation=generation, clock=clock)
        return self._take_place(mode, generation=generation, clock=clock)

    def join(self, *, generation: int, clock: Clock) -> StashHandle:
        return self._take_place(OpenMode.WRITABLE, generation=generation, clock=clock)

    def dump(self) -> Iterator[str]:
        connection = self._connect()
        try:
            connection.begin(write=False)
            yield from _dump_tables(connection)
        except MissingTable:
            return
        except LostConnection as error:
            raise unreachable(connection, error) from error
        except Conflict as error:
            raise ConflictsUnsettled(f"{connection.where} is being written: {error}", hint="run it again") from error
        finally:
            connection.close()

    def _open_writable(self, *, generation: int, clock: Clock, epoch_lower_bound: int) -> StashHandle:
        """Create what is missing and fence everybody else, in one transaction; then initialise or migrate, fenced."""
        connection, nonce = self._connect(), self._nonce()
        transactions = StashTransactions(connection)

        def fence() -> StashFence:
            connection.create_tables()
            collections = StashCollections(connection, writable=True)
            config = read_config(collections)
            check_generation(config, generation, where=connection.where)
            if DATA_VERSION_KEY in config:
                check_data_version(config[DATA_VERSION_KEY], where=connection.where, migrations=self._migrations)
            if taken_over := take_over_changes(config, generation):
                append_changes(collections, taken_over, now_ms=clock.now_ms())
            return raise_fence(connection, lower_bound=epoch_lower_bound, nonce=nonce)

        with closed_on_error(connection):
            connection.create_database()
            raised = transactions.run(fence, write=True)
            fail_point("stash.after-fence")
            mode = OpenMode.WRITABLE
            handle = StashHandle(transactions, mode=mode, generation=generation, fence=raised, clock=clock)
            handle.initialise(self._migrations)
        return handle

    def _open_savepoint(self, *, generation: int, clock: Clock) -> StashHandle:
        """Copy everything into a private database and open the copy."""
        connection, mode = self._connect(), OpenMode.SAVEPOINT
        with closing(connection), _initialized(connection):
            present, private = StashTransactions(connection).run(
                lambda: (self._present_fence(connection, mode, generation), _private_copy(connection)), write=False
            )
        transactions = StashTransactions(private)
        handle = StashHandle(transactions, mode=mode, generation=generation, fence=present, clock=clock)
        with closed_on_error(handle):
            handle.initialise(self._migrations)
        return handle

    def _take_place(self, mode: OpenMode, *, generation: int, clock: Clock) -> StashHandle:
        """Hold the present epoch without raising it: to read, or, in mode writable, to work for the leader."""
        connection = self._connect()
        transactions = StashTransactions(connection)
        with closed_on_error(connection), _initialized(connection):
            present = transactions.run(lambda: self._present_fence(connection, mode, generation), write=False)
        return StashHandle(transactions, mode=mode, generation=generation, fence=present, clock=clock)

    def _present_fence(self, connection: StashConnection, mode: OpenMode, generation: int) -> StashFence:
        """Return the present fence if the stash can be opened or joined as it is, in the transaction that is open."""
        present = read_fence(connection)
        config = read_config(StashCollections(connection, writable=False))
        if present is None or DATA_VERSION_KEY not in config:
            raise NotWritable.uninitialized(connection.where)
        check_generation(config, generation, where=connection.where)
        migrates = check_data_version(config[DATA_VERSION_KEY], where=connection.where, migrations=self._migrations)
        if mode is OpenMode.SAVEPOINT:
            return present
        if migrates:
            raise NotWritable.outdated(connection.where)
        if mode is OpenMode.WRITABLE and config.get(GENERATION_KEY) != generation:
            raise NotWritable(
                f"{connection.where} is led by deployment {config.get(GENERATION_KEY)}, and {generation} never"
                " opened it: can be recovered by opening writable",
                hint="promote this deployment first",
            )
        return present


class StashWatch:
    """Reads the head through one connection: a server takes ten times longer to open a connection than to answer."""

    def __init__(self, connection: StashConnection) -> None:
        self._connection = connection

    def head(self) -> Head:
        """Return the head, as ``BackEnd.head``; after ``Unreachable``, the next look makes a new connection."""
        try:
            return StashTransactions(self._connection).run(self._read_head, write=False)
        except MissingTable:
            return Head(None, {})

    def close(self) -> None:
        """Close the connection; a later look would make a new one."""
        self._connection.close()

    def _read_head(self) -> Head:
        fence = read_fence(self._connection)
        if fence is None or fence.epoch == FIRST_EPOCH:
            return Head(None, {})
        collections = StashCollections(self._connection, writable=False)
        return Head(fence.epoch, read_config(collections), read_small(collections, DEPLOYMENT.name))


@contextmanager
def _initialized(connection: StashConnection) -> Iterator[None]:
    """Translate a missing table, or a missing file, in the block."""
    try:
        yield
    except MissingTable as missing:
        raise NotWritable.uninitialized(connection.where) from missing


def _dump_tables(connection: StashConnection) -> Iterator[str]:
    """Yield each row as one line of JSON, in a fixed order, in the transaction that is open."""
    for table, columns in _TABLES.items():
        order = ", ".join(f"{column}{connection.order if column in _TEXTS else ''}" for column in columns)
        for row in connection.stream(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"):  # noqa: S608 - our own names
            shown = {"table": table, **dict(zip(columns, row, strict=True))}
            if "nonce" in shown:
                shown["nonce"] = bytes(shown["nonce"]).hex()
            yield json.dumps(shown)


def _private_copy(connection: StashConnection) -> SqliteConnection:
    """Return a private database with all rows that the open transaction sees; closing deletes it.

    A dry run works on this copy. A transaction that is never committed would see its own changes too, but its locks, in
    PostgreSQL as in SQLite, would stop the leader for as long as it lasts.
    """
    copy = SqliteConnection(None)
    with closed_on_error(copy):
        copy.begin(write=True)
        copy.create_tables()
        for table, columns in _TABLES.items():
            with closing(connection.stream(f"SELECT {', '.join(columns)} FROM {table}")) as rows:  # noqa: S608
                copy.insert(table, columns, rows)
        copy.commit()
    return copy
