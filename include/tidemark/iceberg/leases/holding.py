"""Holds a lease while an operation of this process runs; a thread of its own renews the lease."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread, get_ident
from typing import Final
from uuid import uuid4

from tidemark.iceberg.leases.lease import RENEWALS, Lease, Watch
from tidemark.iceberg.leases.table import LeaseTable
from tidemark.settings import Settings

log = logging.getLogger(__name__)

_held: Final[list[HeldLease]] = []  # of this process, the oldest first


def writer_id() -> str:
    """Return who writes: host and process. For people who read a history, and not a token."""
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def holding(settings: Settings, operation: str, collections: Sequence[str] = ()) -> Iterator[None]:
    """Hold a lease for ``operation`` on ``collections`` (none: on all) while the block runs, in this process.

    Nothing is raised: the operation is safe without a lease, and a database that is away is tried again. An operation
    inside another one that holds a lease on the same collections needs none of its own.
    """
    if any(lease.covers(settings, collections) for lease in list(_held)):
        yield
        return
    lease = HeldLease(settings, operation, collections)
    _held.append(lease)
    try:
        lease.begin()
        yield
    finally:
        _held.remove(lease)
        lease.end()


def seems_alive(lease: Lease, now_ms: int) -> bool:
    """Tell at once, by the last renewals and, on this host, by its process, which may have been killed right now.

    For those who are polite, and do no harm if they are wrong; ``now_ms`` is of the clock of the database.
    """
    return now_ms - lease.renewed_ms <= 1000 * lease.length_s / 2 and may_be_alive(lease)


def may_be_alive(lease: Lease) -> bool:
    """Tell whether the process of the lease runs; one on another host may, however silent."""
    host, _, process = lease.writer.rpartition(":")
    return host != socket.gethostname() or _is_running(int(process))


def find_lease(settings: Settings, collection: str) -> str:
    """Return the id of the lease under which this thread works on ``collection``; empty without one."""
    return next((lease.id for lease in list(_held) if lease.covers(settings, [collection])), "")


def held_leases(settings: Settings) -> list[HeldLease]:
    """Return the leases that this process holds on collections of the store that ``settings`` name."""
    return [lease for lease in list(_held) if lease.is_here(settings)]


class HeldLease:
    """A lease of this process."""

    def __init__(self, settings: Settings, operation: str, collections: Sequence[str]) -> None:
        self.settings, self.operation, self.collections = settings, operation, tuple(collections)
        self.id = str(uuid4())
        self._row = self.id  # of the lease that is renewed now: another one after somebody ended this lease as lapsed
        self._is_entered = False
        self.watch = Watch()  # of the leases of others, for an operation that asks again and again
        self._process, self._holder = os.getpid(), get_ident()
        self._has_begun, self._ends = Event(), Event()
        self._thread = Thread(target=self._run, name=f"lease {operation}", daemon=True)

    def covers(self, settings: Settings, collections: Sequence[str]) -> bool:
        """Return whether this lease says all that a lease on ``collections`` would say."""
        if not self.is_here(settings) or self._holder != get_ident():  # another thread may end its lease first
            return False
        return not self.collections or (bool(collections) and {*collections} <= {*self.collections})

    def is_here(self, settings: Settings) -> bool:
        """Return whether this process, and not the one that it was forked from, holds the lease in that store."""
        return self._process == os.getpid() and self.settings.catalog_uri == settings.catalog_uri

    def begin(self) -> None:
        """Return when the lease is stored, or when the database took too long."""
        self._thread.start()
        self._has_begun.wait(self.settings.connect_timeout_s)

    def end(self) -> None:
        """End the lease; if the database does not answer, it runs out."""
        self._ends.set()
        self._thread.join(self.settings.connect_timeout_s)

    def _run(self) -> None:
        table = LeaseTable(self.settings)
        renewed_s, has_warned = time.monotonic(), False
        length_s = self.settings.lease_s
        try:
            while True:
                try:
                    self._renew(table)
                    renewed_s = time.monotonic()
                except table.failures as error:
                    table.close()
                    log.info("the lease of %s was not renewed: %s", self.operation, error)
                    if time.monotonic() - renewed_s > length_s and not has_warned:
                        has_warned = True
                        log.warning("the lease of %s has run out, so that others may take it for dead", self.operation)
                self._has_begun.set()
                if self._ends.wait(length_s / RENEWALS):
                    break
            self._leave(table)
        finally:
            table.close()

    def _renew(self, table: LeaseTable) -> None:
        if self._is_entered and table.renew(self._row):
            return
        if self._is_entered:
            self._row = str(uuid4())
        table.enter(self._row, operation=self.operation, collections=self.collections, writer=writer_id())
        self._is_entered = True

    def _leave(self, table: LeaseTable) -> None:
        try:
            table.end(self._row)
        except table.failures as error:
            log.info("the lease of %s runs out: %s", self.operation, error)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # which asks, and sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
