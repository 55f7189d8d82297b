"""Keep collections small and fast: merge files, expire history, remove what nothing refers to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, join_deployment, write_report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all that are stored")
    parser.add_argument("--history-days", type=float, default=7.0, help="how long changes stay readable")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    return write_report(
        arguments.report, "maintain", lambda settings: maintain(arguments, settings), clock=SystemClock()
    )


def maintain(arguments: argparse.Namespace, settings: Settings) -> Report:
    deployment = join_deployment(settings)  # before the seconds that it takes to import pyiceberg and pyspark
    from tidemark.collections.maintenance.maintain import MaintenancePolicy, maintain_all  # noqa: PLC0415
    from tidemark.collections.system.recorder import record_left_drops  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.interval import DAY_MS  # noqa: PLC0415
    from tidemark.sinks.removal import REMOVERS  # noqa: PLC0415
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    policy = MaintenancePolicy(history_ms=int(arguments.history_days * DAY_MS))
    shards = Shards.connect(settings)
    for name in arguments.names:
        shards.open(name)
    if not arguments.names:
        record_left_drops(deployment, clock=SystemClock())  # before maintenance removes what tells of these drops
    with spark_session(settings, app_name="tidemark-maintain") as spark:
        return maintain_all(spark, deployment, arguments.names, policy=policy, removers=REMOVERS)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
