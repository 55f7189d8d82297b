"""Three ways to open a stash: as the new leader, as a dry run, and as a task or reader under the present leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.catalog.back_end import Head, OpenMode
from tidemark.catalog.items.data_versions import DataMigration, check_data_version, check_generation, take_over_changes
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, GENERATION_KEY
from tidemark.catalog.stash.collections import StashCollections
from tidemark.catalog.stash.connection import MissingTable, StashConnection
from tidemark.catalog.stash.dump import private_copy
from tidemark.catalog.stash.fence import FIRST_EPOCH, StashFence, raise_fence, read_config, read_deployments, read_fence
from tidemark.catalog.stash.handle import StashHandle, append_changes
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.catalog.stash.transactions import StashTransactions
from tidemark.clock import Clock
from tidemark.errors import NotWritable
from tidemark.fail_points import fail_point

FAIL_POINTS = ("stash.after-fence",)


@dataclass(frozen=True, slots=True)
class Opener:
    """Who opens: a deployment, with its clock and the data migrations that it knows."""

    generation: int
    clock: Clock
    migrations: Sequence[DataMigration]

    def handle(self, transactions: StashTransactions, fence: StashFence, *, mode: OpenMode) -> StashHandle:
        return StashHandle(transactions, mode=mode, generation=self.generation, fence=fence, clock=self.clock)


def open_writable(connection: StashConnection, opener: Opener, *, epoch_lower_bound: int, nonce: bytes) -> StashHandle:
    """Create what is missing and fence everybody else, in one transaction; then initialise or migrate, fenced.

    Raises as ``BackEnd.open``.
    """
    connection.create_database()
    transactions = StashTransactions(connection)

    def fence() -> StashFence:
        connection.create_tables()
        collections = StashCollections(connection, writable=True)
        config = read_config(collections)
        check_generation(config, opener.generation, where=connection.where)
        if DATA_VERSION_KEY in config:
            check_data_version(config[DATA_VERSION_KEY], where=connection.where, migrations=opener.migrations)
        if taken_over := take_over_changes(config, opener.generation):
            append_changes(collections, taken_over, now_ms=opener.clock.now_ms())
        return raise_fence(connection, lower_bound=epoch_lower_bound, nonce=nonce)

    present = transactions.run(fence, write=True)
    fail_point("stash.after-fence")
    handle = opener.handle(transactions, present, mode=OpenMode.WRITABLE)
    handle.initialise(opener.migrations)
    return handle


def open_savepoint(connection: StashConnection, opener: Opener) -> StashHandle:
    """Copy everything into a private database and open the copy; closes ``connection``.

    Raises as ``BackEnd.open``.
    """

    def copy() -> tuple[SqliteConnection, StashFence]:
        present = _check(connection, OpenMode.SAVEPOINT, opener)
        return private_copy(connection), present

    try:
        private, present = StashTransactions(connection).run(copy, write=False)
    except MissingTable as missing:
        raise NotWritable.uninitialized(connection.where) from missing
    finally:
        connection.close()
    handle = opener.handle(StashTransactions(private), present, mode=OpenMode.SAVEPOINT)
    try:
        handle.initialise(opener.migrations)
    except BaseException:
        handle.close()
        raise
    return handle


def take_place(connection: StashConnection, opener: Opener, *, mode: OpenMode) -> StashHandle:
    """Hold the present epoch without raising it: to read, or, in mode writable, to work for the leader.

    Raises as ``BackEnd.open`` and ``BackEnd.join``.
    """
    transactions = StashTransactions(connection)
    try:
        present = transactions.run(lambda: _check(connection, mode, opener), write=False)
    except MissingTable as missing:
        raise NotWritable.uninitialized(connection.where) from missing
    return opener.handle(transactions, present, mode=mode)


def read_head(connection: StashConnection) -> Head:
    """Return the head, as the open transaction sees it."""
    fence = read_fence(connection)
    if fence is None or fence.epoch == FIRST_EPOCH:
        return Head(None, {})
    collections = StashCollections(connection, writable=False)
    return Head(fence.epoch, read_config(collections), read_deployments(collections))


def _check(connection: StashConnection, mode: OpenMode, opener: Opener) -> StashFence:
    """Return the present fence if the stash can be opened or joined as it is, in the transaction that is open."""
    present = read_fence(connection)
    config = read_config(StashCollections(connection, writable=False))
    if present is None or DATA_VERSION_KEY not in config:
        raise NotWritable.uninitialized(connection.where)
    check_generation(config, opener.generation, where=connection.where)
    migrates = check_data_version(config[DATA_VERSION_KEY], where=connection.where, migrations=opener.migrations)
    if mode is OpenMode.SAVEPOINT:
        return present
    if migrates:
        raise NotWritable.outdated(connection.where)
    if mode is OpenMode.WRITABLE and config.get(GENERATION_KEY) != opener.generation:
        raise NotWritable(
            f"{connection.where} is led by deployment {config.get(GENERATION_KEY)}, and {opener.generation} never"
            " opened it: can be recovered by opening writable",
            hint="promote this deployment first",
        )
    return present
