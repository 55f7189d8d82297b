"""Sinks: a mirror in PostgreSQL, against COPY of the same rows, from a text that is there, into such a table.

Both sides make the table, with its primary key, in one transaction. Corrections are carried by a process that runs
already. No JVM is started.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pyarrow as pa
from pyarrow import csv

from bench.declared import register
from bench.figures import Figure, write_or_print
from bench.timing import alternate
from tests.support.postgres_server import running_postgres
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
from tidemark.sinks.run import choose_sinks, run_sinks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tidemark.iceberg.shard.shard import Shard

ROWS, CORRECTIONS, FILES = 5_000_000, 5_000, 4
COLUMNS = "k bigint, category int, name string, amount double, at timestamp, note int"
CREATE = """CREATE TABLE copied (k bigint, category integer, name text, amount double precision, at timestamptz,
note integer)"""
CLOCK = SystemClock()
_Bench = TypeVar("_Bench")


@dataclass(frozen=True)
class _Mirror:
    """A collection of ``rows`` rows, and a database."""

    settings: Settings
    uri: str
    folder: Path
    rows: int

    @cached_property
    def shard(self) -> Shard:
        return Shards.connect(self.settings).open("rows")

    @property
    def text(self) -> Path:
        return self.folder / "rows.csv"

    def fill(self) -> None:
        """Write the collection, and the text that COPY reads."""
        shard = create_rows(self.settings)
        table, added = shard.load().table, list[object]()
        with csv.CSVWriter(
            self.text, rows_of(0, 1).schema, write_options=csv.WriteOptions(include_header=False)
        ) as text:
            for start in range(0, self.rows, self.rows // FILES):
                piece = rows_of(start, start + self.rows // FILES)
                text.write(piece)
                added += write_rows(table, with_constants(piece, ((TIME, 0), (DIFF, 1))))
        Writer.join(shard, 1).publish(Batch(added=tuple(added)), lower=0, new_upper=1)  # type: ignore[arg-type]

    def correct(self, number: int) -> None:
        """Correct every so many rows: those at one place of each stretch, which no correction before had."""
        step = self.rows // CORRECTIONS
        keys = np.arange(number, self.rows, step, dtype=np.int64)
        head = self.shard.load()
        table, files = head.table, read_data_files(head.table.io, head.contents)
        old = pa.concat_tables(rows_of(int(key), int(key) + 1) for key in keys)
        new = old.set_column(1, "category", pa.array(np.full(len(keys), -1, dtype=np.int32)))
        first = sorted((file.lower_bounds[1], path) for path, file in files.items())
        starts = np.array([int.from_bytes(bound, "little") for bound, _ in first])
        order = np.argsort(starts)
        place = order[np.searchsorted(starts[order], keys, side="right") - 1]
        paths = [first[at][1] for at in place]
        deletes = pa.table({"file_path": paths, "pos": pa.array(keys - starts[place])})
        upper = head.state.open_upper("rows")
        batch = Batch(
            added=tuple(write_rows(table, with_constants(new, ((TIME, upper), (DIFF, 1))))),
            retracted=tuple(write_rows(table, with_constants(old, ((TIME, upper), (DIFF, -1))))),
            deletes=tuple(
                write_position_deletes(
                    table, deletes.sort_by([("file_path", "ascending"), ("pos", "ascending")]), files
                )
            ),
            pinned_snapshot_id=head.contents.snapshot_id,
            deleted_from=frozenset(paths),
        )
        Writer.join(self.shard, 1).publish(batch, lower=upper, new_upper=upper + 1)

    def declare(self) -> None:
        """Begin with a new sink, and no table."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS mirrored, copied, tidemark_sinks; CHECKPOINT")
        registry = deployment_of(self.settings).registry
        sink = SinkDeclaration.model_validate(
            {"name": "mirror", "from": "rows", "to": {"connection": "pg", "table": "mirrored"}, "mode": "mirror"}
        )
        registry.replace([], seen=registry.read(), sinks=[sink.resolve(registry.get("rows"))])

    def run(self) -> int:
        return carry(self.settings, "mirror")

    def copy(self) -> None:
        with psycopg.connect(self.uri) as connection, self.text.open("rb") as text:
            connection.execute(CREATE)
            with connection.cursor().copy("COPY copied FROM STDIN (FORMAT csv)") as copy:
                while piece := text.read(1 << 20):
                    copy.write(piece)
            connection.execute("ALTER TABLE copied ADD PRIMARY KEY (k)")


def create_rows(settings: Settings) -> Shard:
    """Make and declare the collection, without rows."""
    source = {"format": "json", "path": "/nowhere"}
    fields = {"name": "rows", "kind": "differential", "key": ["k"], "schema": COLUMNS, "source": source}
    register(settings, Declaration.model_validate(fields))
    return Shards.connect(settings).create("rows", schema=to_iceberg(parse_columns(COLUMNS)), key=("k",))


def carry(settings: Settings, sink: str) -> int:
    """Run the sink, which is the only one; return the number of rows."""
    deployment = deployment_of(settings)
    report = run_sinks(Shards.connect(settings), deployment, choose_sinks(deployment, []), clock=CLOCK)
    assert report.exit_code == 0, report
    return report.collections[sink].inserted


def rows_of(start: int, end: int) -> pa.Table:
    keys = np.arange(start, end, dtype=np.int64)
    mixed = (keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    names = pa.array(np.char.add("name-", mixed.astype(str)).tolist(), pa.string())
    notes = pa.array((mixed % 2**31).astype(np.int32), mask=keys % 7 == 0)
    amounts = (mixed % 1_000_000).astype(np.float64) / 100
    times = pa.array(1_700_000_000_000_000 + keys * 1_000, pa.timestamp("us", "UTC"))
    columns = [keys, (keys % 1_000).astype(np.int32), names, amounts, times, notes]
    return pa.table(columns, names=[column.name for column in parse_columns(COLUMNS)])


def measure_sinks(bench: _Mirror, runs: int) -> Iterator[Figure]:
    """Yield the first load against COPY, and how long corrections take to arrive."""
    bench.fill()
    times = alternate({"tidemark": bench.run, "copy": bench.copy}, runs, before=bench.declare)
    of = f"{bench.rows / 1_000_000:g} M rows into PostgreSQL"
    for side, taken in times.items():
        yield Figure(f"{of}: {side}", "s", tuple(taken))
    one, other = (("tidemark", times["tidemark"]), ("copy", times["copy"]))
    yield Figure.ratio(f"{of}: tidemark / copy", numerator=one, denominator=other, at_most=1.3)
    bench.declare()
    bench.run()
    numbers = count()

    def follow() -> None:
        assert bench.run() == CORRECTIONS

    taken = alternate({"tidemark": follow}, runs, before=lambda: bench.correct(next(numbers)))["tidemark"]
    what = f"{CORRECTIONS} corrections of {bench.rows / 1_000_000:g} M rows into PostgreSQL"
    yield Figure(what, "s", tuple(taken), at_most=2)


@contextmanager
def placed(folder: Path, rows: int) -> Iterator[_Mirror]:
    """Yield an empty home, and a server with an empty database."""
    home = folder / "home"
    home.mkdir()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-postgres-") as data:
        Path(data).chmod(0o755)
        with running_postgres(Path(data) / "data") as server:
            uri = server.create_database("target")
            parts = urlsplit(uri)
            environ = {
                "TIDEMARK_HOME": str(home),
                "TIDEMARK_SOURCE_PG_URL": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
                "AIRFLOW_CONN_PG": uri,
            }
            yield _Mirror(Settings.load({**os.environ, **environ}), uri, folder, rows)


def measure_alone(
    description: str | None,
    rows: int,
    place: Callable[[Path, int], AbstractContextManager[_Bench]],
    measure: Callable[[_Bench, int], Iterator[Figure]],
) -> int:
    """Measure in this process what the arguments say; ``place`` yields what is measured, in a folder and with rows."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder, place(Path(folder), arguments.rows) as bench:
        figures = list(measure(bench, arguments.runs))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(measure_alone(__doc__, ROWS, placed, measure_sinks))
