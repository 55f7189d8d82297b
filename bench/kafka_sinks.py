"""Sinks into Kafka: how many changes a second a log of changes takes, exactly once, from a process that runs already.

The broker runs beside the sink, on the same cores.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure
from bench.sinks import FILES, carry, create_rows, measure_alone, rows_of
from bench.timing import alternate
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
from tools.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 1_000_000
SINK = "log"


@dataclass
class _Log:
    """A collection, and a sink of its changes, into a new topic after each batch of rows."""

    settings: Settings
    broker: KafkaBroker
    rows: int

    def add(self, number: int) -> None:
        """Point the sink, which then has carried everything, to a new topic, and add rows to the collection."""
        registry = deployment_of(self.settings).registry
        to = {"buffer": f"kafka://{self.broker.address}/log{number}?sequencers=3"}
        fields = {"name": SINK, "from": "rows", "to": to, "mode": "changes", "key": ("k",)}
        registry.replace([], seen=registry.read(), sinks=[SinkDeclaration.model_validate(fields)])
        carry(self.settings, SINK)
        shard = Shards.connect(self.settings).open("rows")
        head, upper = shard.load(), shard.load().state.open_upper("rows")
        first, step = number * self.rows, self.rows // FILES
        pieces = (rows_of(start, start + step) for start in range(first, first + self.rows, step))
        written = (write_rows(head.table, with_constants(piece, ((TIME, upper), (DIFF, 1)))) for piece in pieces)
        added = tuple(file for files in written for file in files)
        Writer.join(shard, 1).publish(Batch(added=added), lower=upper, new_upper=upper + 1)


def measure_changes(log: _Log, runs: int) -> Iterator[Figure]:
    """Yield how many updates a second arrive, claim and commit included."""
    create_rows(log.settings)
    numbers = count()

    def follow() -> None:
        assert carry(log.settings, SINK) == log.rows

    taken = alternate({"tidemark": follow}, runs, before=lambda: log.add(next(numbers)))["tidemark"]
    speeds = tuple(log.rows / seconds for seconds in taken)
    yield Figure(f"{log.rows / 1_000_000:g} M changes into Kafka", "changes/s", speeds, at_least=100_000)


@contextmanager
def placed(folder: Path, rows: int) -> Iterator[_Log]:
    """Yield an empty home, and a broker."""
    home = folder / "home"
    home.mkdir()
    settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(home)})
    broker = KafkaBroker(folder / "kafka", settings.jars)
    broker.start()
    try:
        yield _Log(settings, broker, rows)
    finally:
        broker.kill()


if __name__ == "__main__":
    sys.exit(measure_alone(__doc__, ROWS, placed, measure_changes))
