"""What grows with an installation: commands over a thousand collections, and appends after a thousand commits.

``python -m bench.many_collections`` prints the table.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.appending import CLOCK, SCHEMA
from bench.figures import Figure, write_or_print
from bench.timing import alternate
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.cli.app import app
from tidemark.collections.append.append import append_rows
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemark.iceberg.shard.shard import Shard

FEW, MANY = 100, 1_000  # collections, and commits
DECLARED, EVERY = "collections.yaml", "NAME..."
COMMANDS = {  # and the seconds that each may take for ``MANY``; what is measured leaves the installation as it was
    "apply, all unchanged": ([["apply", DECLARED]], 3),
    "doctor": ([["doctor"]], 3),
    "staged": ([["staged"]], 3),
    "mode read-only, and back": ([["mode", "read-only"], ["mode", "read-write"]], 6),  # a commit for each collection
    "flush, nothing staged": ([["flush"]], 3),
    "compact, nothing to merge": ([["compact", EVERY]], 6),  # lists the files of each collection
}
MAINTENANCE_S = 10  # looks besides at what each folder holds
GROWTH = 1.5 * MANY / FEW  # of what is linear, whose fixed part is small


def measure_many(folder: Path, *, runs: int) -> Iterator[Figure]:
    """Yield the time of each command for ``MANY`` collections, its ratio to that for ``FEW``, and that of appends."""
    for count in (FEW, MANY):
        declare(folder / str(count), count)
    for name, (commands, at_most) in COMMANDS.items():
        yield from measure(name, partial(run, commands=commands), folder, at_most=at_most, runs=runs)
    yield from measure("maintenance, nothing to do", maintain, folder, at_most=MAINTENANCE_S, runs=runs)
    yield measure_appends(Settings.load({**os.environ, "TIDEMARK_HOME": str(folder / "appended")}), runs=runs)


def measure(name: str, act: Callable[[Path], None], folder: Path, *, at_most: float, runs: int) -> Iterator[Figure]:
    """Yield the time that ``act`` takes in the home with ``MANY`` collections, and its ratio to that with ``FEW``."""
    times = alternate({str(count): partial(act, folder / str(count)) for count in (FEW, MANY)}, runs)
    few, many = ((f"{count} collections", tuple(times[str(count)])) for count in (FEW, MANY))
    yield Figure(f"{name}: {MANY} collections", "s", many[1], at_most=at_most)
    yield Figure.ratio(f"{name}: {MANY} / {FEW} collections", numerator=many, denominator=few, at_most=GROWTH)


def declare(home: Path, count: int) -> None:
    """Declare and create ``count`` collections; the declarations are in the home."""
    home.mkdir()
    lines = [f'  {name_of(number)}: {{kind: append-only, schema: "id bigint"}}' for number in range(count)]
    (home / DECLARED).write_text("\n".join(["version: 1", "collections:", *lines, ""]), encoding="utf-8")
    run(home, [["apply", DECLARED]])


def name_of(number: int) -> str:
    return f"tiny_{number}"


def run(home: Path, commands: list[list[str]]) -> None:
    """Run commands as a user does, but for the start of Python."""
    os.environ["TIDEMARK_HOME"] = str(home)
    meant = {DECLARED: [str(home / DECLARED)], EVERY: [name_of(number) for number in range(int(home.name))]}
    for arguments in commands:
        with redirect_stdout(io.StringIO()) as printed:
            code = app([argument for each in arguments for argument in meant.get(each, [each])])
        assert code == 0, printed.getvalue()


def maintain(home: Path) -> None:
    """Maintain every collection as the DAG does, but for the start of Spark."""
    deployment = deployment_of(Settings.load({**os.environ, "TIDEMARK_HOME": str(home)}))
    report = maintain_all(None, deployment, [])
    assert report.exit_code == 0, report


def measure_appends(settings: Settings, *, runs: int) -> Figure:
    """Return how much longer one of ``FEW`` appends takes after ``MANY`` commits than after ``FEW``."""
    settings.home.mkdir()
    shards = Shards.connect(settings)
    shard_of = {
        commits: shards.create(f"after_{commits}", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
        for commits in (FEW, MANY)
    }
    for commits, shard in shard_of.items():
        append(settings, shard, commits)
    times = alternate({str(commits): partial(append, settings, shard_of[commits], FEW) for commits in shard_of}, runs)
    many, few = ((f"after {commits} commits", tuple(times[str(commits)])) for commits in (MANY, FEW))
    return Figure.ratio(f"append after {MANY} / {FEW} commits", numerator=many, denominator=few, at_most=2)


def append(settings: Settings, shard: Shard, times: int) -> None:
    """Append ``times`` batches of one row each."""
    start = shard.load().row_count
    for number in range(start, start + times):
        rows = pa.table({"id": pa.array([number], pa.int64()), "name": ["bench"]})
        name = BatchName("bench", Range(number, number + 1))
        append_rows(shard, name, rows, deployment=deployment_of(settings), clock=CLOCK)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.many_collections", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        figures = list(measure_many(Path(folder), runs=arguments.runs))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
