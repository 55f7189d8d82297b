"""Measure Tidemark against MERGE INTO, the best plain join and one hashing scan; print a table, write results.json.

Every size gets a process of its own with two cores and a driver heap of 2 GiB, which holds everything: in local mode
the driver is its own executor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.appending import measure_appending, measure_flushing
from bench.figures import Figure, print_table, read_json, write_json
from bench.ingesting import MESSAGES, QUICK_MESSAGES
from bench.migrating import ITEMS, SMALL, measure_migrating, measure_persist
from bench.reconciling import SHARES, measure_reconciling
from bench.shards import measure_shards
from tidemark.settings import Settings
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).with_name("results.json")
FULL, LARGE, QUICK = 5_000_000, 20_000_000, 500_000
MEMORY, MIGRATION_MEMORY = "2g", "1g"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rows instead of {FULL} and {LARGE}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shares", nargs="*", choices=list(SHARES), default=list(SHARES), help="of changed rows")
    parser.add_argument("--only-rows", type=int, metavar="ROWS", help="one size, in this process")
    parser.add_argument("--alone", action="store_true", help="Tidemark only, without what it is compared with")
    parser.add_argument("--only-items", type=int, metavar="ITEMS", help="the catalog alone, in this process")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are written, as JSON")
    parser.add_argument("--skip-shards", action="store_true", help="leave out batches and state")
    parser.add_argument("--skip-following", action="store_true", help="leave out sources that are followed")
    parser.add_argument("--skip-catalog", action="store_true", help="leave out the system's own catalog")
    parser.add_argument("--skip-ingest", action="store_true", help="leave out the write buffer")
    parser.add_argument("--skip-lifecycle", action="store_true", help="leave out what is persisted, and latest rows")
    parser.add_argument("--skip-sinks", action="store_true", help="leave out what is carried into other systems")
    parser.add_argument("--skip-storage", action="store_true", help="leave out the storage workers")
    parser.add_argument("--skip-many", action="store_true", help="leave out many collections, and their page")
    arguments = parser.parse_args()
    if arguments.only_rows:
        write_json(measure(arguments, arguments.only_rows), arguments.results)
        return 0
    if arguments.only_items:
        write_json(measure_catalog(arguments.only_items, arguments.runs), arguments.results)
        return 0
    sizes = [QUICK] if arguments.quick else [FULL, LARGE]
    figures: list[Figure] = []
    finished = True
    for part, measured in parts_of(arguments, sizes).items():
        try:
            figures += measured()
        except subprocess.CalledProcessError as error:  # what was measured before is still worth printing
            print(f"{part} did not come to an end: {error}", file=sys.stderr)
            finished = False
    if not figures:
        return 1
    figures += scaling(figures, sizes)
    print_table(figures)
    write_json(figures, arguments.results)
    return 0 if finished and all(each.holds is not False for each in figures) else 1


def parts_of(arguments: argparse.Namespace, sizes: list[int]) -> dict[str, Callable[[], list[Figure]]]:
    """Return what is to be measured, by name; each in a process of its own.

    The first size has all figures. A second one tells how the time grows.
    """
    parts: dict[str, Callable[[], list[Figure]]] = {}
    for at, rows in enumerate(sizes):
        left_out = ["--alone", "--skip-shards"] if at else ["--skip-shards"] if arguments.skip_shards else []
        parts[f"{rows} rows"] = partial(in_own_process, arguments, rows, left_out)
    runs = ["--runs", str(arguments.runs)]
    if not arguments.skip_following:
        size = ["--rows", str(QUICK)] if arguments.quick else []
        parts["the changes that are followed"] = partial(run_alone, [*runs, *size], MEMORY, "bench.following")
        parts["the files that are followed"] = partial(run_alone, [*runs, *size], MEMORY, "bench.following_files")
    if not arguments.skip_catalog:
        items = SMALL if arguments.quick else ITEMS
        parts["the catalog"] = partial(run_alone, ["--only-items", str(items), *runs], MIGRATION_MEMORY)
    if not arguments.skip_ingest:
        parts["the ingest"] = partial(ingest_in_own_process, arguments)
    if not arguments.skip_lifecycle:
        size = ["--rows", str(QUICK)] if arguments.quick else []
        parts["the lifecycle"] = partial(run_alone, [*runs, *size], MEMORY, "bench.persisting")
        parts["the latest rows"] = partial(run_alone, [*runs, *size], MEMORY, "bench.latest")
    if not arguments.skip_sinks:
        size = ["--rows", str(QUICK)] if arguments.quick else []
        parts["the sinks"] = partial(run_alone, [*runs, *size], MEMORY, "bench.sinks")
        parts["the sinks into Kafka"] = partial(run_alone, [*runs, *size], MEMORY, "bench.kafka_sinks")
    if not arguments.skip_storage:
        parts["the commands of storage workers"] = partial(run_alone, [], MEMORY, "bench.storage_commands")
        parts["the storage workers"] = partial(run_alone, runs, MEMORY, "bench.storage_workers")
    if not arguments.skip_many:
        parts["many collections"] = partial(run_alone, runs, MEMORY, "bench.many_collections")
        parts["small runs"] = partial(run_alone, runs, MEMORY, "bench.small_runs")
        parts["the status page"] = partial(run_alone, [], MEMORY, "bench.page")
    return parts


def in_own_process(arguments: argparse.Namespace, rows: int, left_out: list[str]) -> list[Figure]:
    chosen = ["--only-rows", str(rows), "--runs", str(arguments.runs), "--shares", *arguments.shares, *left_out]
    return run_alone(chosen, MEMORY)


def run_alone(chosen: list[str], memory: str, module: str = "bench") -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        results = Path(folder) / "results.json"  # what libraries print would be in the way on stdout
        command = [sys.executable, "-m", module, *chosen, "--results", str(results)]
        subprocess.run(command, stdout=sys.stderr, check=True, env=os.environ | {"SPARK_DRIVER_MEMORY": memory})
        return read_json(results)


def measure_catalog(items: int, runs: int) -> list[Figure]:
    figures = []
    for name, measured in (("many", measure_migrating), ("persist", measure_persist)):
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
            settings = Settings.load({**os.environ, "TIDEMARK_HOME": folder})
            sizes = {"items": items, "runs": runs} if name == "many" else {"items": min(items, SMALL)}
            for figure in measured(settings, **sizes):
                print(f"{figure.name}: {figure.median:.3f} {figure.unit}", file=sys.stderr, flush=True)
                figures.append(figure)
    return figures


def ingest_in_own_process(arguments: argparse.Namespace) -> list[Figure]:
    chosen = [str(QUICK_MESSAGES if arguments.quick else MESSAGES), "--runs", str(arguments.runs)]
    return run_alone([*chosen, *([] if arguments.quick else ["--with-memory"])], MEMORY, "bench.ingesting")


def measure(arguments: argparse.Namespace, rows: int) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        (Path(folder) / "home").mkdir()
        settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(Path(folder) / "home")})
        with spark_session(settings, app_name="tidemark-bench", master="local[2]") as spark:
            found = measure_reconciling(
                spark,
                settings,
                Path(folder),
                rows=rows,
                runs=arguments.runs,
                shares={name: SHARES[name] for name in arguments.shares},
                with_others=not arguments.alone,
            )
            for figure in found:
                print(f"{figure.name}: {figure.median:.3f} {figure.unit}", file=sys.stderr, flush=True)
                figures.append(figure)
            if not arguments.skip_shards:
                figures += measure_shards(spark, settings, runs=arguments.runs)
                figures += measure_appending(spark, settings, Path(folder), rows=rows, runs=arguments.runs)
                figures += measure_flushing(settings)
    return figures


def scaling(figures: list[Figure], sizes: list[int]) -> list[Figure]:
    """Return how much longer the larger size takes, where both were measured; linear is the ratio of the sizes.

    Both sizes are measured minutes apart: a tenth more than linear is noise.
    """
    if len(sizes) < 2:
        return []
    small, large = (f"{rows / 1_000_000:g} M rows" for rows in sizes)
    by_name = {each.name: each for each in figures}
    found = []
    for name, figure in by_name.items():
        twin = by_name.get(name.replace(small, large))
        if name.endswith(": tidemark") and small in name and twin is not None:
            found.append(
                Figure.ratio(
                    f"{large} / {small}, {name.partition(',')[0]}",
                    numerator=(large, twin.runs),
                    denominator=(small, figure.runs),
                    at_most=1.1 * sizes[1] / sizes[0],
                )
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
