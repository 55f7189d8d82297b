"""`tidemark buffer ingest`, `persist`, `replay` and `quarantine`: rows from buffers, and rows that did not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.console import print_line, print_report, print_result, print_table, working
from tidemark.cli.options import (
    AsJson,
    Name,
    connect_shards,
    current_user,
    load_settings,
    load_settings_to_look,
    selected,
)
from tidemark.clock import SystemClock
from tidemark.entry_points import record
from tidemark.exit_codes import ExitCode
from tidemark.report import CollectionReport, Report
from tidemark.settings import Settings
from tidemark.spark.session import spark_on_demand

if TYPE_CHECKING:
    from tidemark.ingest.quarantine import QuarantinedRow

SHOWN_CHARACTERS = 60
_COMPACTED = ("outcome", "files_before", "files_after")

quarantine = typer.Typer(
    name="quarantine", help="Entries and rows that could not be ingested, with the reason.", no_args_is_help=True
)

SomeNames = Annotated[list[str] | None, selected("Collections", otherwise="all that read a buffer")]
PersistNow = Annotated[bool, typer.Option("--now", help="All rows, however young, and whatever is declared.")]
PersistedNames = Annotated[list[str] | None, selected("Collections", otherwise="all with event times")]
MaxEntries = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="The most that a collection gets, shared by what waits where.")
]
Partition = Annotated[int | None, typer.Option(min=0, metavar="N", help="Only entries of this sequencer.")]
Offset = Annotated[int | None, typer.Option(min=0, metavar="NUMBER", help="Only the entry of this number.")]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="Show at most N rows.")]
RetryTable = Annotated[str | None, typer.Option("--table", metavar="T", help="The table of JSON rows that name none.")]
ReplayPlanOnly = Annotated[bool, typer.Option("--plan", help="Only show what would be read and replaced.")]
ReplayedPartitions = Annotated[
    list[str] | None, typer.Option("--partition", metavar="P", help="Only this hour, day or month; may be given again.")
]
ReplayStarts = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="S:N", help="Of sequencer S all from number N on, persisted or not; may be given again."
    ),
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Go on without entries that the buffer has lost, on the record.")
]


def ingest(names: SomeNames = None, *, max_entries: MaxEntries = None, as_json: AsJson = False) -> int:
    """Ingest what waits, once: resumed by what the collections have, up to the watermarks of now.

    In read-only mode it is staged, for the next `flush`. Spark is started only where much waits. What fails is
    suspended: left out for a while, unless it is named; so is what storage workers ingest all the time.
    """
    from tidemark.ingest.preflight import check_at_start  # noqa: PLC0415 - help is shown without Kafka and pyiceberg

    clock = SystemClock()
    settings = Settings.load(os.environ)
    silent = check_at_start(settings)
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.collections.isolation import with_skipped  # noqa: PLC0415
    from tidemark.collections.system.suspension import settle  # noqa: PLC0415
    from tidemark.ingest.parts.ingesting import Engine  # noqa: PLC0415
    from tidemark.ingest.run import choose_ingested, ingest_all  # noqa: PLC0415
    from tidemark.storage.running import leave_to_workers  # noqa: PLC0415

    words, deployment = names or [], deployment_of(settings)
    chosen = choose_ingested(deployment, words)
    deployment = replace(deployment, asked_for=frozenset(each.name for each in chosen if words))
    chosen, on_workers = leave_to_workers(deployment, chosen, words)
    starting = partial(working, "Starting Spark")
    with spark_on_demand(settings, app_name="tidemark-ingest", starting=starting) as start_spark:
        engine = Engine(start_spark=start_spark, max_entries=max_entries)
        shards = connect_shards(settings)
        report, _ = ingest_all(shards, deployment, chosen, clock=clock, engine=engine, silent=silent)
    report = with_skipped(settle(deployment, report), on_workers)
    code = _print_report(report, as_json=as_json)
    record(settings, report, clock=clock)
    return code


def partitions(name: Name, *, as_json: AsJson = False) -> None:
    """Show the partitions of NAME by event time: what they hold, which are closed, and who holds the others open.

    Rows are those that ingests counted: what somebody deleted since is among them. Open rows are not persisted yet, and
    at most so many; the earliest and the latest event time are theirs. The chunk is open while rows are not persisted,
    frozen while a persist of them is under way. `open until T`: an ingest closes the partition
    once the watermark is T; the watermarks of sequencers are those of now. Of closed partitions that are persisted, the
    newest are shown: older ones are forgotten.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.partitions.status import read_partitions  # noqa: PLC0415

    settings = load_settings_to_look()
    shown = read_partitions(settings, deployment_of(settings).registry.get(name), now_ms=SystemClock().now_ms())
    columns = ["partition", "chunk", "rows", "late_rows", "open_rows", "earliest", "latest", "state"]
    rows = [[row[column] for column in columns] for row in shown["partitions"]]
    print_result(shown, columns, rows, as_json=as_json, title=name)
    if not as_json:
        columns = ["sequencer", "watermark", "holds_back"]
        print_table(
            columns,
            [[row[column] for column in columns] for row in shown["sequencers"]],
            title="sequencers, as of now: the next ingest closes what they have passed",
        )
        for told in ("batches_wait", "watermark_ahead"):
            if told in shown:
                print_line(shown[told])


def persist(names: PersistedNames = None, *, now: PersistNow = False, as_json: AsJson = False) -> int:
    """Write the rows of partitions that are due anew, sorted by event time, into files of their own.

    The contents stay as they are, but for duplicates. Which partitions are due, `lifecycle` of the declaration says.
    What another pass is persisting is left to it, unless --now asks for all rows.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.persist.persist import Engine, choose_persisted, persist_all  # noqa: PLC0415

    settings = Settings.load(os.environ)
    deployment = deployment_of(settings)
    chosen = choose_persisted(deployment, names or [])
    starting = partial(working, "Starting Spark")
    with spark_on_demand(settings, app_name="tidemark-persist", starting=starting) as start_spark:
        shards = connect_shards(settings)
        engine = Engine(start_spark=start_spark, everything=now)
        report, _ = persist_all(shards, deployment, chosen, clock=SystemClock(), engine=engine)
    code = print_report(
        report,
        ["partitions", "files_before", "files_after", "duplicates"],
        _files,
        as_json=as_json,
        nothing="No collection has event times.",
        outcome_of=lambda done: done.strategy or done.outcome.value,  # a persist leaves the contents `unchanged`
        print_details=_print_decisions,
    )
    record(settings, report, clock=SystemClock())
    return code


def compact(names: PersistedNames = None, *, as_json: AsJson = False) -> int:
    """Merge small files, of open rows, too, as they are: no row becomes visible, and none is persisted."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.collections.maintenance.maintain import compact_all  # noqa: PLC0415
    from tidemark.ingest.persist.persist import choose_persisted  # noqa: PLC0415

    settings = Settings.load(os.environ)
    deployment = deployment_of(settings)
    chosen = [declaration.name for declaration in choose_persisted(deployment, names or [])]
    starting = partial(working, "Starting Spark")
    with spark_on_demand(settings, app_name="tidemark-compact", starting=starting) as start_spark:
        report = compact_all(deployment, chosen, start_spark=start_spark)
    code = print_report(
        report,
        ["result", "files_before", "files_after"],
        lambda done: tuple(done.details.get("compaction", {}).get(n, "") for n in _COMPACTED),
        as_json=as_json,
        nothing="No collection has event times.",
    )
    record(settings, report, clock=SystemClock())
    return code


def unload(names: PersistedNames = None, *, as_json: AsJson = False) -> int:
    """Delete the staged copies of rows that are persisted; what is not persisted stays."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.persist.persist import choose_persisted  # noqa: PLC0415
    from tidemark.ingest.persist.unload import unload_all  # noqa: PLC0415

    settings = load_settings(writes=True)
    deployment = deployment_of(settings)
    chosen = choose_persisted(deployment, names or [])
    report = unload_all(connect_shards(settings), deployment, chosen, clock=SystemClock())
    code = print_report(
        report,
        ["snapshots", "files"],
        lambda done: tuple(done.details.get("expiry", {}).get(n, 0) for n in ("snapshots", "files")),
        as_json=as_json,
        nothing="No collection has event times.",
    )
    record(settings, report, clock=SystemClock())
    return code


def replay(
    name: Name,
    *,
    plan: ReplayPlanOnly = False,
    partition: ReplayedPartitions = None,
    from_: ReplayStarts = None,
    skip_lost: SkipLost = False,
    as_json: AsJson = False,
) -> int:
    """Read again what is not persisted of NAME, and put the rows in the place of those that are there.

    For when rows were deleted, damaged, or decoded wrongly. What the buffer holds no longer is 66, with the count.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.replay.plan import Request  # noqa: PLC0415
    from tidemark.ingest.replay.replay import replay_all  # noqa: PLC0415

    request = Request.parse(partition or [], from_ or [], skips_lost=skip_lost)
    settings = load_settings_to_look() if plan else load_settings(writes=True)
    deployment = deployment_of(settings)
    chosen = [deployment.registry.get(name)]
    report = replay_all(
        connect_shards(settings), deployment, chosen, request, clock=SystemClock(), who=current_user(), is_dry=plan
    )
    columns = ["rows at most", "entries at most", "lost"] if plan else ["rows", "replayed", "lost"]
    code = print_report(
        report, columns, _planned if plan else _replayed, as_json=as_json, nothing="", print_details=_print_replay
    )
    if not plan:
        record(settings, report, clock=SystemClock())
    return code


@quarantine.command("list")
def list_(
    name: Name, *, partition: Partition = None, offset: Offset = None, limit: Limit = 100, as_json: AsJson = False
) -> None:
    """Show what waits in the quarantine of NAME: where it stood, why it is no row, and its bytes.

    The place is that of the row in its entry, from 0; -1 is the entry as a whole.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.buffer_log import check_buffer_source  # noqa: PLC0415
    from tidemark.ingest.quarantine import Chosen, list_quarantined  # noqa: PLC0415

    settings = load_settings_to_look()
    check_buffer_source(deployment_of(settings).registry.get(name))
    found = list_quarantined(connect_shards(settings), name, Chosen(partition, offset))
    result = {"collection": name, "count": len(found), "rows": [_shown(row) for row in found[:limit]]}
    columns = ["partition", "offset", "place", "reason", "detail", "raw"]
    rows = [
        (row.partition, row.offset, row.place, row.reason, row.detail, _text(row)[:SHOWN_CHARACTERS])
        for row in found[:limit]
    ]
    print_result(result, columns, rows, as_json=as_json, title=f"{len(found)} of {name}")


@quarantine.command()
def retry(
    name: Name, *, partition: Partition = None, offset: Offset = None, table: RetryTable = None, as_json: AsJson = False
) -> int:
    """Append what is a row by now, for example after its columns were changed; the rest stays in the quarantine."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.ingest.quarantine import Chosen  # noqa: PLC0415
    from tidemark.ingest.quarantine import retry as retry_quarantined  # noqa: PLC0415

    clock, settings = SystemClock(), load_settings(writes=True)
    started_at = clock.now_ms()
    deployment = deployment_of(settings)
    done = retry_quarantined(
        connect_shards(settings),
        deployment,
        deployment.registry.get(name),
        clock=clock,
        chosen=Chosen(partition, offset),
        table=table,
    )
    report = Report(
        operation="retry",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=settings.generation,
        collections={name: done},
    )
    code = _print_report(report, as_json=as_json)
    record(settings, report, clock=clock)
    return code


def _text(row: QuarantinedRow) -> str:
    return (row.raw or b"").decode("utf-8", errors="replace")


def _shown(row: QuarantinedRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "offset": row.offset,
        "place": row.place,
        "time_ms": row.time_ms,
        "headers": [[name, value] for name, value in row.headers],
        "reason": row.reason,
        "detail": row.detail,
        "raw": row.raw,  # as Base64
        "text": None if row.raw is None else _text(row),
    }


def _print_report(report: Report, *, as_json: bool) -> ExitCode:
    columns = ["inserted", "rows", "bad", "lag"]
    return print_report(report, columns, _measures, as_json=as_json, nothing="No collection reads a buffer.")


def _files(collection: CollectionReport) -> tuple[int, ...]:
    details = collection.details
    counts = (details.get(name, 0) for name in ("files_before", "files_after", "duplicates"))
    return sum(bool(each["partition"]) for each in details.get("decisions", [])), *counts


def _print_decisions(name: str, collection: CollectionReport) -> None:
    if reason := collection.details.get("reason"):
        print_line(f"{name}: {reason}")
    for each in collection.details.get("under_way", []):
        print_line(f"{name}: {each['by']} persists {each['partition']} since {each['since']}")
    for each in collection.details.get("decisions", []):
        print_line(f"{name}: {' '.join(filter(None, (each['action'], each['partition'])))}: {each['reason']}")


def _replayed(collection: CollectionReport) -> tuple[int, ...]:
    details = collection.details
    rows = sum(each["rows"] for each in details.get("partitions", []))
    return rows, collection.inserted, details.get("lost", 0)


def _planned(collection: CollectionReport) -> tuple[int, ...]:
    numbers = collection.details.get("sequencers", {}).values()
    rows, _, lost = _replayed(collection)
    return rows, sum(each["end"] - each["start"] for each in numbers), lost


def _print_replay(name: str, collection: CollectionReport) -> None:
    details, is_plan = collection.details, collection.strategy == "planned"
    for sequencer, numbers in details.get("sequencers", {}).items():
        start, end = numbers["start"], numbers["end"]
        entries = f", up to {end - start} entries to read" if is_plan else ""
        lost = f", up to {numbers['lost']} entries before are lost" if numbers["lost"] else ""
        print_line(f"{name}: sequencer {sequencer}: numbers [{start}, {end}){entries}{lost}")
    for each in details.get("partitions", []):
        count = f"up to {each['rows']} rows" if is_plan else f"{each['rows']} rows"
        by = f" by {each['replayed']}" if "replayed" in each else ""
        print_line(f"{name}: partition {each['partition']}: {count} to replace{by}")
    if is_plan:
        print_line(
            f"{name}: rows on `main` whose entries do not come back stay; how many rows come back, also into other "
            "partitions, is known once the entries are read"
        )
    for path, damage in details.get("damaged_files", {}).items():
        print_line(f"{name}: {path} {damage}: its rows come back")
    retried = details.get("retried_entries", {})
    for sequencer, numbers in retried.items():
        print_line(
            f"{name}: sequencer {sequencer}: rows of {len(numbers)} entries, such as {numbers[0]}, were let in by "
            "`quarantine retry`: these rows are not replayed, and stay as they are"
        )
    for sequencer, kept in details.get("kept_entries", {}).items():
        if numbers := sorted({*kept} - {*retried.get(sequencer, ())}):
            print_line(
                f"{name}: sequencer {sequencer}: {len(numbers)} entries cannot be decoded any more, so that their "
                f"rows stay as they are, such as {numbers[0]}"
            )
    if rows := details.get("kept_rows"):
        print_line(f"{name}: {rows} rows stay as they are, since their entries do not come back")
    for warning in details.get("warnings", []):
        print_line(f"{name}: {warning}")


def _measures(collection: CollectionReport) -> tuple[int, ...]:
    details = collection.details
    bad = details.get("quarantined", details.get("still_bad", 0))
    lag = sum(measures["sequence_number_lag"] for measures in details.get("sequencers", {}).values())
    return collection.inserted, collection.rows_source or 0, bad, lag
