"""Commands of storage workers: from the append by one process to the read by another, on both kinds of catalog."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure, write_or_print
from tests.support.postgres_server import running_postgres
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
from tidemark.storage.command_log import ShardCommandLog
from tidemark.storage.commands import DropDataflow
from tidemark.storage.order import Cursor, Outbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.queues import Queue

COMMANDS = 150  # the log is trimmed meanwhile
POLL_S, PAUSE_S = 0.02, 0.05


def open_log(environ: dict[str, str]) -> ShardCommandLog:
    settings, clock = Settings.load(environ), SystemClock()
    return ShardCommandLog.open(Shards.connect(settings), deployment=deployment_of(settings), clock=clock)


def measure_commands(environ: dict[str, str], catalog: str) -> Figure:
    """Return how long a command takes; the reader looks every ``POLL_S``."""
    log, context = open_log(environ), multiprocessing.get_context("spawn")
    said: Queue[tuple[float, ...]] = context.Queue()
    reader = context.Process(target=read_commands, args=(environ, said))
    reader.start()
    said.get()  # it has begun
    outbox = Outbox(log.join("worker-0"))
    for _ in range(COMMANDS):
        outbox.put(DropDataflow((str(time.monotonic()),)))
        outbox.flush(log)
        time.sleep(PAUSE_S)
    times = said.get()
    reader.join()
    return Figure(f"command of a storage worker, {catalog} catalog: append to read", "ms", times, at_most=100)


def read_commands(environ: dict[str, str], said: Queue[tuple[float, ...]]) -> None:
    """Put an empty tuple into ``said``, and later how old each command was when it was read, in ms."""
    log, cursor = open_log(environ), Cursor()
    said.put(())
    times: list[float] = []
    while len(times) < COMMANDS:
        rows = cursor.read(log)
        now = time.monotonic()
        times += [1000 * (now - float(row.command.ids[0])) for row in rows if isinstance(row.command, DropDataflow)]
        time.sleep(POLL_S)
    said.put(tuple(times))


def measure_both(folder: Path) -> Iterator[Figure]:
    yield measure_commands({"TIDEMARK_HOME": str(folder / "embedded")}, "SQLite")
    with running_postgres(folder / "data") as server:
        uri = server.create_database("commands")
        environ = {"TIDEMARK_HOME": str(folder / "production"), "TIDEMARK_CATALOG_URI": uri}
        yield measure_commands(environ, "PostgreSQL")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.storage_commands", description=__doc__)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        figures = list(measure_both(Path(folder)))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
