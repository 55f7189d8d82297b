"""`tidemark sink run` and `status`: collections carried into other systems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from tidemark.cli.console import print_line, print_report, print_result, working
from tidemark.cli.options import AsJson, connect_shards, load_deployment, load_settings_to_look
from tidemark.clock import SystemClock
from tidemark.entry_points import record
from tidemark.exit_codes import ExitCode
from tidemark.report import CollectionReport
from tidemark.spark.session import spark_on_demand

sink = typer.Typer(
    name="sink", help="Carry collections, or their changes, into other systems exactly once.", no_args_is_help=True
)

SomeSinks = Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Sinks; without any: all.")]


@sink.command()
def run(names: SomeSinks = None, *, as_json: AsJson = False) -> int:
    """Carry everything that came since the last run; the first run carries the contents.

    Each sink asks its target how far it came, so that a run can be killed and repeated at any time. In read-only mode
    sinks are skipped. The failure of one sink leaves the others alone. Sinks that storage workers run are left to them,
    unless they are named.

    Spark is started only for a first load of many rows: as many as `spark_from_rows` of the sink says.
    """
    deployment, clock = replace(load_deployment(writes=True), asked_for=frozenset(names or [])), SystemClock()
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.system.suspension import settle  # noqa: PLC0415
    from tidemark.sinks.lost_runs import note_lost_runs  # noqa: PLC0415
    from tidemark.sinks.run import choose_sinks, run_sinks  # noqa: PLC0415
    from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

    chosen, on_workers = leave_to_workers(deployment, choose_sinks(deployment, names or []), names or [])
    deployment = note_lost_runs(deployment, chosen, clock=clock)
    shards = connect_shards(deployment.settings)
    starting = partial(working, "Starting Spark")
    with spark_on_demand(deployment.settings, app_name="tidemark-sinks", starting=starting) as start_spark:
        report = run_sinks(shards, deployment, chosen, clock=clock, start_spark=start_spark)
    report = with_skipped(settle(deployment, report), on_workers)
    code = print_report(
        report,
        ["inserted", "retracted", "target"],
        _measures,
        as_json=as_json,
        nothing="No sink is declared.",
        what="sink",
        print_details=_print_wait,
    )
    record(deployment.settings, report, clock=clock)
    return code


@sink.command()
def status(names: SomeSinks = None, *, as_json: AsJson = False) -> int:
    """Show how far each sink has come, as its target says, and since when it holds history."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.interval import time_text  # noqa: PLC0415
    from tidemark.sinks.inspection import read_statuses  # noqa: PLC0415
    from tidemark.sinks.run import choose_sinks  # noqa: PLC0415

    settings = load_settings_to_look()
    chosen = choose_sinks(deployment_of(settings), names or [])
    statuses = read_statuses(settings, chosen, now_ms=SystemClock().now_ms())
    columns = ["sink", "collection", "mode", "target", "time", "lag", "held_since", "error"]

    def text(time: int | None) -> str:
        return "" if time is None else time_text(time)

    rows = [
        (
            each.sink,
            each.collection,
            each.mode,
            each.target,
            text(each.time) or ("unknown" if each.error else "not loaded"),
            "" if each.lag_ms is None else f"{each.lag_ms / 1000:.0f} s",
            text(each.held_since),
            each.error,
        )
        for each in statuses
    ]
    print_result({"sinks": [each.to_json() for each in statuses]}, columns, rows, as_json=as_json, title="sinks")
    return ExitCode.UNREACHABLE if any(each.error for each in statuses) else ExitCode.OK


def _measures(collection: CollectionReport) -> tuple[object, ...]:
    return collection.inserted, collection.retracted, collection.details.get("target", "")


def _print_wait(name: str, sink: CollectionReport) -> None:
    """Say of a sink that had nothing to carry what it waits for."""
    if (first_commit := sink.details.get("waits_for")) is not None:
        print_line(
            f"{name}: nothing to carry: it waits for {first_commit}, by `tidemark reconcile`, an append or an ingest"
        )
