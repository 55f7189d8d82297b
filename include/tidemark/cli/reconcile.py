"""`tidemark plan`, `reconcile`, `compact` and `repair`: runs over collections, and their reports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.console import change, print_json, print_line, print_report, print_table, stderr, working
from tidemark.cli.options import AsJson, IntervalOption, Name, Names, connect_shards, load_deployment, selected
from tidemark.clock import SystemClock
from tidemark.collections.quality.guards import SAMPLE_ROWS, Overrides
from tidemark.entry_points import parse_interval, record
from tidemark.exit_codes import ExitCode
from tidemark.report import COMPARED_BECAUSE, FALLBACK, UNNOTICED, CollectionReport, Outcome, Report, join_reports
from tidemark.settings import Settings
from tidemark.spark.session import spark_on_demand

if TYPE_CHECKING:
    from tidemark.collections.deployment import Deployment

DifferentialNames = Annotated[list[str] | None, selected("Declared differential collections", otherwise="all of them")]
DetailedExitCode = Annotated[
    bool, typer.Option("--detailed-exitcode", help="Exit with 2 if there is something to correct.")
]
Full = Annotated[bool, typer.Option("--full", help="Compare all rows, also where the source has not changed.")]
SampleLimit = Annotated[
    int, typer.Option("--limit", min=0, metavar="N", help="Show at most N updated, N retracted and N inserted rows.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without it nothing is changed.")]
RecountPartitions = Annotated[
    bool, typer.Option("--partitions", help="Have the partitions by event time counted anew, and nothing else.")
]
AllowEmpty = Annotated[
    bool | None, typer.Option("--allow-empty/--refuse-empty", help="For this run alone: whether a source may be empty.")
]
MaxDeleteRatio = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, metavar="RATIO", help="For this run alone: how large a part of the rows may vanish."
    ),
]


def plan(
    names: DifferentialNames = None,
    *,
    interval: IntervalOption = None,
    allow_empty: AllowEmpty = None,
    max_delete_ratio: MaxDeleteRatio = None,
    full: Full = False,
    limit: SampleLimit = SAMPLE_ROWS,
    detailed_exitcode: DetailedExitCode = False,
    as_json: AsJson = False,
) -> int:
    """Compute what `reconcile` would correct, with sample rows and what the guards say; change nothing.

    Without a NAME: for every differential collection that is declared.
    """
    overrides = Overrides(max_delete_ratio=max_delete_ratio, allow_empty=allow_empty)
    report = _run(names or [], interval, overrides, dry_run=True, full=full, sample_rows=limit)
    code = _print(report, as_json=as_json)
    differs = any(collection.outcome is Outcome.CORRECTED for collection in report.collections.values())
    return ExitCode.DIFFERENCES if detailed_exitcode and differs and code is ExitCode.OK else code


def reconcile(
    names: DifferentialNames = None,
    *,
    interval: IntervalOption = None,
    allow_empty: AllowEmpty = None,
    max_delete_ratio: MaxDeleteRatio = None,
    full: Full = False,
    as_json: AsJson = False,
) -> int:
    """Make collections equal to their sources; each one's failure leaves the others' results alone.

    Without a NAME: every differential collection that is declared. A collection whose source has not changed since it
    was made equal to it (files, Iceberg tables, collections, a declared `version` of a database) is not read again.
    """
    overrides = Overrides(max_delete_ratio=max_delete_ratio, allow_empty=allow_empty)
    report = _run(names or [], interval, overrides, dry_run=False, full=full)
    code = _print(report, as_json=as_json)
    record(Settings.load(os.environ), report, clock=SystemClock())
    return code


def compact(names: Names, *, as_json: AsJson = False) -> int:
    """Merge small files and deletes of the contents and of the change log; contents stay as they are."""
    deployment = load_deployment()
    from tidemark.collections.maintenance.maintain import compact_all  # noqa: PLC0415 - help is shown without pyiceberg

    with spark_on_demand(deployment.settings, app_name="tidemark-compact") as start_spark, working("Compacting"):
        report = compact_all(deployment, names, start_spark=start_spark)
    code = _print(report, as_json=as_json)
    record(deployment.settings, report, clock=SystemClock())
    return code


def repair(name: Name, *, partitions: RecountPartitions = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Put back the branches and tags of a collection that somebody dropped, as far as their snapshots are there.

    With --partitions, in place of that: forget what is known of the partitions by event time, so that the next ingest
    counts them and their watermark anew from the rows. So a watermark comes back that a wrong clock moved ahead.

    Without --yes it only says what it would put back, or forget, and what history is lost. Reads and writes no rows.
    """
    deployment = load_deployment()
    if partitions:
        _recount(deployment, name, yes=yes, as_json=as_json)
        return
    from tidemark.collections.mode import refuse_when_read_only  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.iceberg.maintenance.repair import plan_repair  # noqa: PLC0415
    from tidemark.iceberg.maintenance.repair import repair as put_back  # noqa: PLC0415

    shard = connect_shards(deployment.settings).open(name)
    if yes:
        refuse_when_read_only(deployment, f"repair of {name!r}")
    done = (
        put_back(shard, generation=deployment.generation)
        if yes
        else plan_repair(shard.load_table().metadata, shard=name)
    )
    refs = {ref: None if snapshot is None else snapshot.snapshot_id for ref, snapshot in done.refs.items()}
    if as_json:
        print_json({"collection": name, "done": yes, "refs": refs, "lost": list(done.lost)})
        return
    if not refs:
        print_line(f"{name} lacks no branch and no tag: nothing to repair.")
        return
    print_table(["branch or tag", "snapshot"], [(ref, snapshot or "new") for ref, snapshot in refs.items()])
    for lost in done.lost:
        print_line(f"lost: {lost}")
    then = "next" if yes else f"repair it with `tidemark repair {name} --yes`; then"
    print_line(f"{then}: `tidemark doctor --deep`; a differential collection: `tidemark reconcile {name}`")


def _recount(deployment: Deployment, name: str, *, yes: bool, as_json: bool) -> None:
    from tidemark.ingest.partitions.recount import look, recount  # noqa: PLC0415 - help is shown without pyiceberg

    shard, declaration = connect_shards(deployment.settings).open(name), deployment.registry.get(name)
    found = recount(shard, declaration, deployment=deployment, clock=SystemClock()) if yes else look(shard, declaration)
    if as_json:
        print_json({"collection": name, "done": yes, **found._asdict()})
        return
    known = (
        f"the watermark {found.watermark or 'of no sequencer'}, {found.partitions} partitions, {found.closed} of them "
        f"closed, {found.under_way} with a persist under way"
    )
    print_line(f"{name} {'forgot' if yes else 'knows'}: {found.damage or known}")
    then = "next" if yes else f"forget that with `tidemark repair {name} --partitions --yes`; then"
    print_line(
        f"{then}, with the clock right: `tidemark buffer ingest {name}` counts all rows anew, and tells once more "
        "which partitions are closed"
    )


def _run(
    names: list[str],
    interval: tuple[str, str] | None,
    overrides: Overrides,
    *,
    dry_run: bool,
    full: bool,
    sample_rows: int = SAMPLE_ROWS,
) -> Report:
    # Errors of the call, the stores or the sources' connections are reported before Spark takes its seconds to start.
    deployment = load_deployment(writes=not dry_run)
    settings = deployment.settings
    wanted = parse_interval(*interval) if interval else None
    from tidemark.collections.reconcile.choosing.choice import choose_declarations  # noqa: PLC0415
    from tidemark.collections.reconcile.choosing.same_source import reconcile_unchanged  # noqa: PLC0415
    from tidemark.collections.sources.connections import check_connections  # noqa: PLC0415

    declarations = choose_declarations(deployment.registry.read().declarations, names)
    check_connections(declarations.values(), settings)
    chosen = list(declarations)
    console = stderr()
    if not chosen:
        now_ms = SystemClock().now_ms()
        operation = "plan" if dry_run else "reconcile"
        return Report(operation=operation, started_at=now_ms, finished_at=now_ms, generation=settings.generation)
    if not names:
        console.print(f"All differential collections: {', '.join(chosen)}", soft_wrap=True)
    full = full or overrides.are_given
    unchanged, left = reconcile_unchanged(
        deployment, declarations, interval=wanted, dry_run=dry_run, full=full, clock=SystemClock()
    )
    if not left:
        return unchanged
    from tidemark.collections.reconcile.choosing.size import is_small  # noqa: PLC0415
    from tidemark.collections.reconcile.run import reconcile_all  # noqa: PLC0415 - imports Spark
    from tidemark.spark.session import spark_session  # noqa: PLC0415

    short = is_small(connect_shards(settings), settings, [declarations[name] for name in left], interval=wanted)
    session = spark_session(settings, app_name="tidemark", is_small=short)
    with working("Starting Spark") as status, session as spark:

        def progress(name: str, report: CollectionReport | None) -> None:
            if report is None:
                status.update(f"{'Planning' if dry_run else 'Reconciling'} {name}")
            elif console.is_terminal:
                console.print(f"{name}: {report.outcome} in {report.seconds:.1f} s")

        report = reconcile_all(
            spark,
            deployment,
            left,
            interval=wanted,
            dry_run=dry_run,
            full=full,
            overrides=overrides,
            sample_rows=sample_rows,
            progress=progress,
        )
    return join_reports(unchanged, report)


def _print(report: Report, *, as_json: bool) -> ExitCode:
    return print_report(
        report,
        ["inserted", "retracted", "source rows", "how", "seconds"],
        lambda done: (done.inserted, done.retracted, done.rows_source, done.strategy, round(done.seconds, 1)),
        as_json=as_json,
        nothing="No differential collection is declared: run `tidemark apply PATH`.",
        print_details=_print_details,
    )


def _print_details(name: str, collection: CollectionReport) -> None:
    """Print what other engines wrote, and sample corrections: retracted rows with -, inserted rows with +.

    Updated rows have ~, and the old and the new value where they differ.

    Also what became of a collection because of those that it reads, why all rows were compared, and whether that found
    what nothing else told of.
    """
    # A run repairs the commits of other engines even if it inserts and retracts nothing.
    for where, key in (("", "foreign_commits"), (" on the change log", "foreign_updates")):
        if key in collection.details:
            print_line(f"{name}: written by another engine{where}: {collection.details[key]}")
    for read in collection.details.get("depends_on", ()):
        print_line(f"{name}: planned with the rows that {read} will have, which this plan changes, too")
    if "superseded" in collection.details:
        print_line(f"{name}: takes the place of what was staged: {', '.join(collection.details['superseded'])}")
    if why := collection.details.get(FALLBACK, collection.details.get(COMPARED_BECAUSE)):
        print_line(f"{name}: the whole source was read: {why}")
    if UNNOTICED in collection.details:
        print_line(f"{name}: {collection.details[UNNOTICED]}")
    sample = collection.details.get("sample", {})
    lines: list[tuple[str, dict[str, object]]] = [
        ("~", {column: change(pair["before"][column], value) for column, value in pair["after"].items()})
        for pair in sample.get("updated", ())
    ]
    lines += [("-", row) for row in sample.get("retracted", ())]
    lines += [("+", row) for row in sample.get("inserted", ())]
    if lines:
        print_line("")
        print_table(["", *lines[0][1]], [[sign, *row.values()] for sign, row in lines], title=f"{name}, for example")
