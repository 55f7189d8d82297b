"""Persist rows that came through write buffers: written anew, sorted by event time, where that is due."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, join_deployment, write_report
from tidemark.spark.session import spark_on_demand

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all with event times")
    parser.add_argument("--now", action="store_true", help="all rows, however young, and whatever is declared")
    parser.add_argument("--small-rows", type=int, help="up to so many are written without Spark")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report,
        "persist",
        lambda settings: persist(arguments, settings, clock),
        clock=clock,
        names=arguments.names,
    )


def persist(arguments: argparse.Namespace, settings: Settings, clock: SystemClock) -> Report:
    deployment = join_deployment(settings)  # before the seconds that it takes to import pyiceberg and pyspark
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
    from tidemark.collections.objects.gone import choose_present  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.ingest.persist.persist import SMALL_ROWS, Engine, choose_persisted, persist_all  # noqa: PLC0415

    chosen, gone = choose_present(choose_persisted, deployment, arguments.names)
    with spark_on_demand(settings, app_name="tidemark-persist") as start_spark:
        small = SMALL_ROWS if arguments.small_rows is None else arguments.small_rows
        engine = Engine(start_spark=start_spark, everything=arguments.now, small_rows=small)
        report, _ = persist_all(Shards.connect(settings), deployment, chosen, clock=clock, engine=engine)
    return with_skipped(report, gone)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
