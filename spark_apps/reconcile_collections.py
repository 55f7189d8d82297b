"""Make collections equal to their sources, many in parallel, each one's failure isolated."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.choosing.triggered import find_concerned, parse_events, tell_events
from tidemark.entry_points import UsageParser, exit_code_of, join_deployment, parse_interval, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    arguments = parse_arguments(argv)
    return write_report(
        arguments.report,
        "reconcile",
        lambda settings: reconcile(arguments, settings),
        clock=SystemClock(),
        names=arguments.names,
        records=not arguments.dry_run,
    )


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all that are declared")
    parser.add_argument("--interval", nargs=2, metavar=("START", "END"), help="the slice of collections with a scope")
    parser.add_argument("--dry-run", action="store_true", help="compute and report the corrections; change nothing")
    parser.add_argument("--full", action="store_true", help="compare all rows, also where the source has not changed")
    parser.add_argument("--allow-empty", action=argparse.BooleanOptionalAction, help="set the guard for this run")
    parser.add_argument("--max-delete-ratio", type=float, metavar="RATIO", help="set the guard for this run")
    parser.add_argument("--raise-token", action="store_true", help="fence whoever joined before: a lost earlier try")
    parser.add_argument("--triggered-by", type=parse_events, default=[], metavar="JSON", help="events, for the report")
    parser.add_argument("--report", type=Path, required=True)
    return parser.parse_args(argv)


def reconcile(arguments: argparse.Namespace, settings: Settings) -> Report:
    interval = parse_interval(*arguments.interval) if arguments.interval else None
    overrides = Overrides(max_delete_ratio=arguments.max_delete_ratio, allow_empty=arguments.allow_empty)
    # Before the seconds that it takes to import pyiceberg and pyspark.
    deployment = join_deployment(settings, writes=not arguments.dry_run)
    from tidemark.collections.reconcile.choosing.choice import choose_declarations  # noqa: PLC0415
    from tidemark.collections.reconcile.run import fence_earlier_tries, reconcile_all  # noqa: PLC0415
    from tidemark.collections.sources.connections import check_connections  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    declared = deployment.registry.read().declarations
    chosen = choose_declarations(declared, arguments.names)
    check_connections(chosen.values(), settings)
    if arguments.raise_token and not arguments.dry_run:  # an earlier try of a dry run has nothing to publish either
        fence_earlier_tries(Shards.connect(settings), arguments.names, deployment)
    with spark_session(settings, app_name="tidemark-reconcile") as spark:
        report = reconcile_all(
            spark,
            deployment,
            arguments.names,
            interval=interval,
            dry_run=arguments.dry_run,
            full=arguments.full,
            overrides=overrides,
        )
    return tell_events(report, find_concerned(declared, arguments.triggered_by))


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
