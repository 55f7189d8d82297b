"""Append one interval of the declared sources of append-only collections; read-only deployments stage it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, join_deployment, parse_interval, write_report
from tidemark.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all with such a source")
    parser.add_argument("--interval", nargs=2, metavar=("START", "END"), help="the slice, its end excluded")
    parser.add_argument(
        "--interval-of",
        nargs=3,
        metavar=("NAME", "START", "END"),
        action="append",
        default=[],
        help="the slice of one of the collections, instead of --interval",
    )
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report,
        "append",
        lambda settings: append(arguments, settings, clock),
        clock=clock,
        names=arguments.names,
    )


def append(arguments: argparse.Namespace, settings: Settings, clock: SystemClock) -> Report:
    deployment = join_deployment(settings)  # before the seconds that it takes to import pyiceberg and pyspark
    from tidemark.collections.append.forward import check_before_spark  # noqa: PLC0415
    from tidemark.collections.append.interval import append_all, append_small, choose_appended  # noqa: PLC0415
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
    from tidemark.collections.objects.gone import choose_present  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    shards = Shards.connect(settings)
    chosen, gone = choose_present(choose_appended, deployment, arguments.names)
    own = {name: parse_interval(start, end) for name, start, end in arguments.interval_of}
    others = [declaration.name for declaration in chosen if declaration.name not in own]
    if not arguments.interval and (others or not own):
        raise UsageError("which interval is to be appended?", hint="give one: --interval START END")
    whole = dict.fromkeys(others, parse_interval(*arguments.interval)) if arguments.interval else {}
    check_before_spark(chosen, deployment)
    if not chosen:
        return with_skipped(append_small(shards, deployment, [], {}, clock=clock)[0], gone)
    with spark_session(settings, app_name="tidemark-append") as spark:
        return with_skipped(append_all(spark, shards, deployment, chosen, own | whole, clock=clock), gone)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
