"""`tidemark append`, `staged`, `flush`, `discard`, `mode`: batches, what waits, and who may publish."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.console import print_json, print_line, print_report, print_table, stderr, working
from tidemark.cli.options import (
    AsJson,
    IntervalOption,
    Name,
    Names,
    connect_shards,
    current_user,
    load_deployment,
    load_settings,
    load_settings_to_look,
)
from tidemark.clock import Clock, SystemClock
from tidemark.collections.deployment import Deployment, Mode
from tidemark.entry_points import parse_interval, record
from tidemark.errors import Refused, TidemarkError, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.state_reader import COLLECTIONS
from tidemark.interval import Interval, time_text
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from tidemark.collections.staged.batches import BatchName, QueuedBatch

File = Annotated[Path | None, typer.Argument(metavar="FILE", help="Parquet, CSV or JSON lines.")]
Producer = Annotated[
    str | None, typer.Option(metavar="P", help="Who made the batch; each producer has a ledger of its own.")
]
RangeText = Annotated[
    str | None,
    typer.Option(
        "--range", metavar="START:END", help="The numbers of the batch, the end excluded: a sequence, or times in ms."
    ),
]
Format = Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="parquet, csv or json, if the name of "
                                            "the file does not say.")]  # fmt: skip
Discarded = Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="All that is staged for them.")]
SomeNames = Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Collections; without any: all.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the record.")]
SelectedProducer = Annotated[str | None, typer.Option("--producer", metavar="P", help="Only batches of this producer.")]
SelectedGeneration = Annotated[
    int | None, typer.Option("--generation", min=1, metavar="G", help="Only batches that this deployment staged.")
]
TakenOver = Annotated[
    list[int] | None,
    typer.Option(min=1, metavar="G", help="Also publish what the older deployment G staged, which never led."),
]
SelectedRange = Annotated[str | None, typer.Option("--range", metavar="START:END", help="Only batches of this range.")]
Yes = Annotated[bool, typer.Option("--yes", help="Discard without a question.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything that is staged.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what would go; allowed in read-only mode.")]
# People get them below the table.
_FLUSH_DETAILS = ("taken_over", "already_published", "to_ingest_again", "superseded", "foreign_commits", "waiting")
WantedMode = Annotated[str | None, typer.Argument(metavar="[read-only|read-write]", help="Without it: show the mode.")]


def append(
    name: Name,
    file: File = None,
    *,
    producer: Producer = None,
    range_: RangeText = None,
    interval: IntervalOption = None,
    format_: Format = None,
    as_json: AsJson = False,
) -> int:
    """Append the rows of FILE as one batch, once: a range that is there already is skipped.

    In read-only mode the batch is staged: written, invisible, and published by the next `flush`. Rows that do not parse
    go to the collection NAME_quarantine, with the reason. Where NAME declares `writes_to`, the rows go into that write
    buffer, and are visible where it is ingested.

    With --interval instead of FILE the batch is that slice of the declared source, computed by Spark.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.staged.batches import BatchName, parse_range  # noqa: PLC0415

    batch: tuple[Path, BatchName] | Interval
    if file is not None and producer is not None and range_ is not None and interval is None:
        batch = file, BatchName(producer, parse_range(range_))
    elif interval is not None and file is None and range_ is None:
        batch = parse_interval(*interval)
    else:
        raise UsageError(
            "append needs FILE with --producer and --range, or --interval alone",
            hint="for example: tidemark append weather monday.csv --producer noaa --range 0:24",
        )
    clock = SystemClock()
    started_at = clock.now_ms()
    settings = load_settings(writes=True)
    try:
        deployment = deployment_of(settings)
        if isinstance(batch, Interval):
            report = _append_interval(name, batch, producer, deployment=deployment, clock=clock)
        else:
            report = _append_file(name, *batch, format_, deployment=deployment, clock=clock)
    except UsageError:
        raise
    except TidemarkError as error:
        seconds = (clock.now_ms() - started_at) / 1000
        outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
        report = CollectionReport(outcome=outcome, seconds=seconds, error=ErrorReport.of(error))
    whole = Report(
        operation="append",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=settings.generation,
        collections={name: report},
    )
    code = _print_report(whole, as_json=as_json)
    record(settings, whole, clock=clock)
    return code


def _append_file(
    name: str, file: Path, batch_name: BatchName, format_: str | None, *, deployment: Deployment, clock: Clock
) -> CollectionReport:
    from tidemark.collections.append.file import FileBatch, append_file  # noqa: PLC0415

    shards = connect_shards(deployment.settings)
    shard = shards.open(name, COLLECTIONS)
    declaration = deployment.registry.find(name)
    batch = FileBatch(path=file, format_=format_)
    if declaration is not None:
        batch = FileBatch.declared(file, declaration, format_=format_)
    return append_file(shards, shard, batch_name, batch, deployment=deployment, clock=clock)


def _append_interval(
    name: str, interval: Interval, producer: str | None, *, deployment: Deployment, clock: Clock
) -> CollectionReport:

    shards = connect_shards(deployment.settings)
    declaration = deployment.registry.get(name)
    from tidemark.collections.isolation import find_resting  # noqa: PLC0415

    if (skipped := find_resting(deployment, clock).get(name)) is not None:
        return skipped
    from tidemark.collections.append.forward import check_before_spark  # noqa: PLC0415
    from tidemark.collections.append.interval import DEFAULT_PRODUCER, append_interval, check_interval_source  # noqa: PLC0415
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    check_interval_source(declaration)  # before Spark starts, which takes seconds
    check_before_spark([declaration], deployment)
    with working("Starting Spark"), spark_session(deployment.settings, app_name="tidemark-append") as spark:
        return append_interval(
            spark,
            shards,
            declaration,
            interval,
            deployment=deployment,
            clock=clock,
            producer=producer or DEFAULT_PRODUCER,
        )


def staged(names: SomeNames = None, *, as_json: AsJson = False) -> None:
    """List what is staged: written, invisible, waiting for a flush, of whatever deployment.

    Below the table stand the corrections that do not fit the contents any more, and what reconciles their rows.
    """
    from tidemark.collections.staged.batches import list_batches  # noqa: PLC0415
    from tidemark.collections.staged.slices import describe_stale  # noqa: PLC0415

    found = list_batches(connect_shards(load_settings_to_look()), names or ())
    _print_batches(found, as_json=as_json, nothing="Nothing is staged.")
    for line in [] if as_json else describe_stale(found):
        print_line(line)


def flush(names: SomeNames = None, *, take_over: TakenOver = None, as_json: AsJson = False) -> int:
    """Publish what is staged, one commit per collection; refused while this deployment is read-only.

    That is what this deployment staged, and what older ones staged that led before it. The report says what else waits,
    and for whom. Corrections that do not fit the contents any more stay staged (75): the report has the reconciles that
    take their place.
    """
    deployment = load_deployment()
    from tidemark.collections.staged.flush import flush_all  # noqa: PLC0415

    deployment = replace(deployment, takes_over=frozenset(take_over or ()))
    report = flush_all(connect_shards(deployment.settings), deployment, names or (), clock=SystemClock())
    code = _print_report(report, as_json=as_json)
    record(deployment.settings, report, clock=SystemClock())
    if as_json:
        return code
    print_flush_details(report)
    return code


def print_flush_details(report: Report) -> None:
    """Print, for people, what became of staged batches that were not simply published."""
    for name, collection in report.collections.items():
        for detail in _FLUSH_DETAILS:
            if detail in collection.details:
                print_line(f"{name}: {detail.replace('_', ' ')}: {collection.details[detail]}")


def discard(
    names: Discarded = None,
    *,
    producer: SelectedProducer = None,
    generation: SelectedGeneration = None,
    range_: SelectedRange = None,
    everything: Everything = False,
    why: Why = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give up staged batches for good: those that fit everything that is given. Their rows exist nowhere else.

    Only a write buffer may still have its entries: the next ingest reads them again. On a terminal it shows what would
    go, and asks.
    """
    from tidemark.collections.staged.batches import parse_range  # noqa: PLC0415
    from tidemark.collections.staged.discard import Selection, choose_discarded, discard_batches  # noqa: PLC0415

    selection = Selection(
        names=tuple(names or ()),
        producer=producer,
        generation=generation,
        range=parse_range(range_) if range_ else None,
        everything=everything,
    )
    deployment = load_deployment()
    shards = connect_shards(deployment.settings)
    chosen = choose_discarded(shards, deployment, selection)
    if chosen and not yes and sys.stdin.isatty():
        for batch in chosen:
            what = f"{batch.rows} rows of {batch.collection}, {batch.name.producer} {batch.name.range_text}"
            stderr().print(f"discard {what}, staged by deployment {batch.generation}", markup=False, soft_wrap=True)
        typer.confirm("Discard?", abort=True, err=True)
    discarded = discard_batches(shards, deployment, chosen, who=current_user(), why=why, clock=SystemClock())
    _print_batches(discarded, as_json=as_json, nothing="Nothing that is staged fits the selection.")
    if discarded and not as_json:
        again = (
            " Rows of a write buffer come again with the next ingest." if any(b.is_ingested for b in discarded) else ""
        )
        print_line(f"Discarded for good: {sum(batch.rows for batch in discarded)} rows.{again}")


def retain(names: Names, *, dry_run: DryRun = False, as_json: AsJson = False) -> int:
    """Remove the rows that the declared retention lets go; `maintain_collections` does the same once a day."""
    deployment = load_deployment()
    from tidemark.collections.maintenance.retain import require_retention, retain_all  # noqa: PLC0415

    shards = connect_shards(deployment.settings)
    chosen = [deployment.registry.get(name) for name in dict.fromkeys(names)]
    for declaration in chosen:
        require_retention(declaration)
    report = retain_all(shards, deployment, chosen, clock=SystemClock(), dry_run=dry_run)
    code = print_report(
        report,
        ["stays", "rows that would go" if dry_run else "rows gone", "seconds"],
        lambda collection: (collection.details.get("retention", ""), collection.retracted, collection.seconds),
        as_json=as_json,
        nothing="No collection was named.",
    )
    if not dry_run:
        record(deployment.settings, report, clock=SystemClock())
    return code


def mode(wanted: WantedMode = None, *, why: Why = "", as_json: AsJson = False) -> None:
    """Show or switch the mode of this deployment: read-write publishes, read-only stages.

    A switch to read-only fences every writer that joined before, and every run of a sink, in its target; leaving it
    loses nothing that was staged.
    """
    from tidemark.catalog.deployment.modes import look_at_mode  # noqa: PLC0415
    from tidemark.cli.catalog.items import load_catalog  # noqa: PLC0415
    from tidemark.collections.mode import mode_of, switch_mode  # noqa: PLC0415

    settings = load_settings()
    unfenced: list[str] = []
    if wanted is None:
        stored = look_at_mode(load_catalog().ends)
        leads = stored.generation <= settings.generation
        shown = mode_of(stored, settings.generation) if leads else Mode.READ_ONLY
    else:
        if wanted not in set(Mode):
            raise UsageError(f"{wanted!r} is no mode", hint="modes are read-only and read-write")
        deployment = load_deployment()
        stored = switch_mode(connect_shards(settings), deployment, Mode(wanted), who=current_user(), why=why)
        shown = mode_of(stored, settings.generation)
        if shown is Mode.READ_ONLY:
            from tidemark.sinks.fencing import fence_sinks  # noqa: PLC0415

            unfenced = fence_sinks(deployment)
    answer = {"mode": shown.value, "generation": settings.generation, "since": stored.since_ms}
    if as_json:
        print_json({**answer, "leader": stored.generation, "who": stored.who, "why": stored.why, "unfenced": unfenced})
        return
    for why_not in unfenced:
        stderr().print(why_not, markup=False, soft_wrap=True)
    since = ""
    if stored.since_ms:
        since = f" since {time_text(stored.since_ms // 1000 * 1000)}, set by {stored.who or 'nobody'}"
    reason = f": {stored.why}" if stored.why else ""
    leader = ""
    if stored.generation != settings.generation:  # when, by whom and why are of the leader's mode
        leader = f": deployment {stored.generation} leads, and is {stored.mode.value}"
    print_line(f"deployment {settings.generation} is {shown.value}{leader}{since}{reason}")


def _print_report(report: Report, *, as_json: bool) -> ExitCode:
    return print_report(
        report,
        ["batches", "rows visible", "quarantined", "seconds"],
        lambda found: (found.batches, found.inserted, found.details.get("quarantined", 0), found.seconds),
        as_json=as_json,
        nothing="Nothing is staged.",
    )


def _print_batches(batches: list[QueuedBatch], *, as_json: bool, nothing: str) -> None:
    if as_json:
        print_json({"batches": [batch.to_json() for batch in batches]})
        return
    if not batches:
        print_line(nothing)
        return
    rows = [
        (
            batch.collection,
            batch.name.producer,
            batch.name.range_text,
            batch.generation,
            batch.rows,
            batch.size_bytes,
            time_text(batch.staged_at_ms // 1000 * 1000),
        )
        for batch in batches
    ]
    print_table(["collection", "producer", "range", "generation", "rows", "bytes", "staged at"], rows)
