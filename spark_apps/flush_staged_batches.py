"""Publish what this deployment staged while it was read-only: one commit per collection, all of it or nothing.

Slices whose staged corrections do not fit the contents any more are reconciled right after.
"""

from __future__ import annotations

import sys
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all that have anything staged")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report,
        "flush",
        lambda settings: flush(arguments.names, settings, clock),
        clock=clock,
        names=arguments.names,
    )


def flush(names: Sequence[str], settings: Settings, clock: SystemClock) -> Report:
    deployment = join_deployment(settings)  # before the second that it takes to import pyiceberg
    from tidemark.collections.reconcile.stale import reconcile_stale  # noqa: PLC0415
    from tidemark.collections.staged.flush import flush_all  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.spark.session import spark_on_demand  # noqa: PLC0415

    flushed = flush_all(Shards.connect(settings), deployment, names, clock=clock)
    with spark_on_demand(settings, app_name="tidemark-flush") as start_spark:
        return reconcile_stale(flushed, deployment, start_spark=start_spark, clock=clock)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
