"""Ingest what waits in write buffers into the collections that read them; read-only deployments stage it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.entry_points import UsageParser, exit_code_of, write_report
from tidemark.spark.session import spark_on_demand

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tidemark.report import Report
    from tidemark.settings import Settings


def main(argv: Sequence[str]) -> int:
    parser = UsageParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="collections; none: all that read a buffer")
    parser.add_argument("--retry-suspended", action="store_true", help="also those that are suspended for now")
    parser.add_argument("--max-entries", type=int, help="the most that one collection gets, shared by backlog")
    parser.add_argument("--small-entries", type=int, help="up to so many are ingested without Spark")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args(argv)
    clock = SystemClock()
    return write_report(
        arguments.report,
        "ingest",
        lambda settings: ingest(arguments, settings, clock),
        clock=clock,
        names=arguments.names,
    )


def ingest(arguments: argparse.Namespace, settings: Settings, clock: SystemClock) -> Report:
    from tidemark.ingest.preflight import check_at_start  # noqa: PLC0415 -- a usage error needs no Kafka

    silent = check_at_start(settings)  # before the seconds that it takes to import pyiceberg and pyspark
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
    from tidemark.collections.objects.gone import choose_present  # noqa: PLC0415
    from tidemark.collections.system.suspension import settle  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415
    from tidemark.ingest.delivery import SMALL_ENTRIES  # noqa: PLC0415
    from tidemark.ingest.parts.ingesting import Engine  # noqa: PLC0415
    from tidemark.ingest.run import choose_ingested, ingest_all  # noqa: PLC0415
    from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

    shards = Shards.connect(settings)
    deployment = replace(
        deployment_of(settings), asked_for=frozenset(arguments.names if arguments.retry_suspended else ())
    )
    chosen, gone = choose_present(choose_ingested, deployment, arguments.names)
    chosen, on_workers = leave_to_workers(deployment, chosen, arguments.names)
    with spark_on_demand(settings, app_name="tidemark-ingest") as start_spark:
        small = SMALL_ENTRIES if arguments.small_entries is None else arguments.small_entries
        engine = Engine(start_spark=start_spark, max_entries=arguments.max_entries, small_entries=small)
        report, _ = ingest_all(shards, deployment, chosen, clock=clock, engine=engine, silent=silent)
    return with_skipped(settle(deployment, report), {**gone, **on_workers})


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
