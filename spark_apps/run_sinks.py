"""Run sinks whose first load is large: executors write the parts, and one commit lets the target be them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, join_deployment, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sinks; none: all")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report, "sink", lambda settings: run(arguments, settings, clock), clock=clock, names=arguments.names
    )


def run(arguments: argparse.Namespace, settings: Settings, clock: SystemClock) -> Report:
    # Before the seconds that it takes to import pyiceberg and pyspark. Whoever chose the names left out those at rest.
    deployment = replace(join_deployment(settings), asked_for=frozenset(arguments.names))
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
    from tidemark.collections.objects.gone import choose_present  # noqa: PLC0415
    from tidemark.collections.system.suspension import settle  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.sinks.lost_runs import note_lost_runs  # noqa: PLC0415
    from tidemark.sinks.run import choose_sinks, run_sinks  # noqa: PLC0415
    from tidemark.spark.session import spark_on_demand  # noqa: PLC0415
    from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

    chosen, gone = choose_present(choose_sinks, deployment, arguments.names)
    chosen, on_workers = leave_to_workers(deployment, chosen, arguments.names)
    deployment, shards = note_lost_runs(deployment, chosen, clock=clock), Shards.connect(settings)
    with spark_on_demand(settings, app_name="tidemark-sinks") as start_spark:
        report = settle(deployment, run_sinks(shards, deployment, chosen, clock=clock, start_spark=start_spark))
    return with_skipped(report, {**gone, **on_workers})


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
