"""Publish what this deployment staged while it was read-only: one commit per collection, all of it or nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from include.application import UsageParser, exit_code_of, failed_report, join_deployment
from include.clock import SystemClock
from include.errors import TidemarkError
from include.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from include.report import Report


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all that have anything staged")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    started_at = clock.now_ms()
    try:
        report = flush(arguments.names, Settings.load(os.environ), clock)
    except TidemarkError as error:  # expected failures only
        report = failed_report("flush", error, started_at=started_at, clock=clock)
    report.write(arguments.report)
    return report.exit_code


def flush(names: Sequence[str], settings: Settings, clock: SystemClock) -> Report:
    deployment = join_deployment(settings)  # before the second that it takes to import pyiceberg
    from include.collections.flush import flush_all  # noqa: PLC0415
    from include.persist.shards import Shards  # noqa: PLC0415

    return flush_all(Shards.connect(settings), deployment, names, clock=clock)


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
