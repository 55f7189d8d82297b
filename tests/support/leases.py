"""What tests see of leases, and what befalls them: by another connection than the code under test uses."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.crash import Started, start
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.table import read_leases
from tidemark.iceberg.leases.watching import end_lapsed, watch_leases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemark.iceberg.leases.lease import Lease
    from tidemark.settings import Settings

_WITHIN_S = 60.0


def leases_of(settings: Settings) -> list[Lease]:
    return read_leases(settings)[0]


def live_operations(settings: Settings) -> set[str]:
    """Watch all leases until they are decided; return the operations of the live ones."""
    return {lease.operation for lease in watch_leases(settings, of=lambda _: True).live.values()}


def run_sql(settings: Settings, statement: str) -> None:
    """Write past the library to the catalog in SQLite."""
    with closing(sqlite3.connect(settings.catalog_path)) as connection, connection:
        connection.execute(statement)


def forget_leases(settings: Settings) -> None:
    """Take away the leases of processes that the test has killed, which would have to run out first."""
    end_lapsed(settings, leases_of(settings))


def wait_for(fact: Callable[[], object]) -> None:
    until = time.monotonic() + _WITHIN_S
    while not fact():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.01)


def compute(settings: Settings, operation: str, collections: tuple[str, ...], until: Path) -> None:
    """Hold a lease until the file ``until`` is there; for a process of its own."""
    with holding(settings, operation, collections):
        wait_for(until.exists)


@contextmanager
def leased(
    settings: Settings, operation: str, collections: tuple[str, ...], *, work: Callable[..., None] = compute
) -> Iterator[Started]:
    """Yield a process that holds a lease while it does ``work``; it is killed at the end, and its lease taken away."""
    with TemporaryDirectory() as folder:
        process = start("", work, settings, operation, collections, Path(folder) / "end")
        try:
            wait_for(lambda: leases_of(settings))
            yield process
        finally:
            process.signal(signal.SIGKILL)
            process.exit_code()
    forget_leases(settings)
