"""Copy the system's own catalog to its other back end, under fences that the task before has taken."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, write_report
from tidemark.errors import UsageError
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.lease import SYSTEM_CATALOG
from tidemark.iceberg.stores import check_stores
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("direction", choices=["migrate", "rollback"])
    parser.add_argument("--fences", required=True, metavar="JSON", help="what the task that fences handed on")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report,
        arguments.direction,
        lambda settings: copy(arguments, settings, clock),
        clock=clock,
        records=False,  # while the catalog is moved, nobody may
    )


def copy(arguments: argparse.Namespace, settings: Settings, clock: SystemClock) -> Report:
    started_at = clock.now_ms()
    check_stores(settings)  # before the seconds that it takes to import pyiceberg and pyspark
    from tidemark.catalog.migration.copy import copy as copy_catalog  # noqa: PLC0415
    from tidemark.catalog.opening.catalog import Catalog  # noqa: PLC0415
    from tidemark.catalog.opening.opening import Direction  # noqa: PLC0415
    from tidemark.catalog.opening.resume import Fences  # noqa: PLC0415
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    try:
        fences = Fences.parse(json.loads(arguments.fences))
    except ValueError as error:
        raise UsageError(f"--fences is not JSON: {error}") from error
    with holding(settings, f"{arguments.direction}: copy", [SYSTEM_CATALOG]):
        copied = copy_catalog(
            Catalog.of(settings, clock=clock).ends,
            settings,
            Direction(arguments.direction),
            fences,
            open_spark=lambda: spark_session(settings, app_name="tidemark-copy-catalog"),
        )
    done, finished_at = copied.replaced, clock.now_ms()
    result = CollectionReport(
        outcome=Outcome.SKIPPED if done is None else Outcome.CORRECTED,
        inserted=done.inserted if done else 0,
        retracted=done.retracted if done else 0,
        seconds=(finished_at - started_at) / 1000,
        strategy=copied.engine,
    )
    return Report(
        operation=arguments.direction,
        started_at=started_at,
        finished_at=finished_at,
        generation=settings.generation,
        collections={SYSTEM_CATALOG: result},
    )


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
