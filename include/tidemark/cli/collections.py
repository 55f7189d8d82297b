"""`tidemark apply`, `collections`, `show`, `read` and `changes`: what is declared, and what is in the tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.console import print_json, print_line, print_table, working
from tidemark.cli.options import (
    AsJson,
    Limit,
    Name,
    connect_shards,
    load_deployment,
    load_settings_to_look,
    parse_frontier_time,
)
from tidemark.clock import SystemClock
from tidemark.errors import CorruptState, UnknownObject
from tidemark.frontier import Empty, Frontier, frontier_json
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.state_reader import ShardSummary
from tidemark.settings import Settings
from tidemark.spark.session import spark_on_demand

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.collections.declarations.collection import Declaration

_SHOWN_ROWS = 100  # of a table for people, unless they say how many

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH…", help="Declaration files, or folders of them (*.yaml, *.yml).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be created or altered; change nothing.")]
AsOf = Annotated[
    str | None, typer.Option(metavar="T", help="Contents at a time: ms since 1970, or ISO (UTC). Without it: now.")
]
Everything = Annotated[bool, typer.Option("--all", help="Also those that the system writes about itself.")]
From = Annotated[str, typer.Option("--from", metavar="T", help="First time, included: ms since 1970, or ISO (UTC).")]
Until = Annotated[str | None, typer.Option(metavar="T", help="Last time, excluded. Without it: the upper.")]
WithOpen = Annotated[
    bool, typer.Option("--with-open", help="Add rows that are accepted, and visible once they are persisted.")
]
WithTime = Annotated[
    bool,
    typer.Option(
        "--with-time",
        help="Add `_time`, when each row appeared (ms since 1970); of appended rows `_producer`, `_batch`, `_entry`.",
    ),
]


def apply(paths: Paths, *, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Make declarations the applied ones: create tables, evolve their columns. Doing it again changes nothing.

    New columns are added, types widened (int to bigint, float to double, more digits of a decimal), columns renamed as
    `renames` says, all at once, and dropped if a declared `schema` no longer names them. What cannot be changed in
    place is refused (76), and nothing is changed then. A collection that was applied before and is in none of the files
    stays as it is, and is named: `tidemark drop NAME` removes a collection.
    """
    deployment = load_deployment(writes=not dry_run)
    settings = deployment.settings
    from tidemark.collections.apply.execute import Application  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.apply.inspect_source import SourceInspector  # noqa: PLC0415
    from tidemark.collections.declarations.files import load_declarations  # noqa: PLC0415
    from tidemark.collections.mode import refuse_when_read_only  # noqa: PLC0415
    from tidemark.ingest.progress import count_waiting_in  # noqa: PLC0415
    from tidemark.sinks.inspection import inspect_target  # noqa: PLC0415

    shards = connect_shards(settings)
    registry = deployment.registry
    if not dry_run:
        refuse_when_read_only(deployment, "change of declarations")
    applied = registry.read()
    declarations = load_declarations(paths, known=applied.declarations, known_sinks=applied.sinks)
    starting = partial(working, "Starting Spark: only it can tell the columns of some sources")
    with spark_on_demand(settings, app_name="tidemark-apply", starting=starting) as start_spark:
        application = Application(
            shards=shards,
            deployment=deployment,
            inspector=SourceInspector(shards, settings, start_spark, deployment.buffers),
            count_waiting=partial(count_waiting_in, settings),
            inspect_sink=partial(inspect_target, settings),
            clock=SystemClock(),
        )
        if dry_run:
            plan = application.plan(declarations)
        else:
            with holding(settings, "apply", [*declarations.by_name]):
                plan = application.run(declarations)
    if as_json:
        print_json({"dry_run": dry_run, **plan.to_json()})
        return
    for step in plan.steps:
        print_line(f"{step.name}: {'would ' if dry_run else ''}{step}")
    if plan.unchanged:
        print_line(f"unchanged: {', '.join(plan.unchanged)}")
    if plan.kept:
        print_line(f"kept: {', '.join(plan.kept)}: applied before, and in none of these files: goes on as before; "
                   "`tidemark drop NAME` removes a collection")  # fmt: skip


def collections(*, everything: Everything = False, as_json: AsJson = False) -> None:
    """List the declared collections."""
    from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.iceberg.shard.state_reader import SYSTEM, read_states  # noqa: PLC0415

    settings = load_settings_to_look()
    states, declared = read_states(settings), [*_read_declarations(settings).values()]
    if everything:
        states |= read_states(settings, SYSTEM)
        declared += [declaration for name, declaration in SYSTEM_DECLARATIONS.items() if name in states]
    rows = [_row_of(declaration, states.get(declaration.name)) for declaration in declared]
    if as_json:
        print_json({"collections": rows})
        return
    if not rows:
        print_line("Nothing is declared: run `tidemark apply PATH`.")
        return
    for row in rows:
        row["upper"] = row.pop("error", None) or _frontier_text(row["upper"])
        row["tags"] = ", ".join(row["tags"])
    columns = ["name", "kind", "rows", "upper", "tags"]
    print_table(columns, [[row[column] for column in columns] for row in rows])


def show(name: Name, *, as_json: AsJson = False) -> None:
    """Show one collection: its frontiers, who may write, what is staged and held, and its declaration.

    Of a sink the declaration; `tidemark sink status` says how far it has come.
    """
    from tidemark.iceberg.shard.state_reader import read_state  # noqa: PLC0415 - help is shown without pyiceberg

    settings = load_settings_to_look()
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415
    from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS  # noqa: PLC0415

    applied = deployment_of(settings).registry.read()
    if (sink := applied.sinks.get(name)) is not None:
        _show({"name": name, "kind": "sink", "declaration": sink.declaration.to_json()}, as_json=as_json)
        return
    declared = applied.declarations | SYSTEM_DECLARATIONS
    if name not in declared:
        raise UnknownObject.named(name, declared.keys() | applied.sinks.keys(), renamed=applied.renamed)
    declaration = declared[name]
    summary = read_state(settings, name)
    state = summary.state
    shown: dict[str, Any] = {
        "name": name,
        "kind": declaration.kind.value,
        "upper": frontier_json(state.upper),
        "since": frontier_json(state.since),
        "generation": state.token.generation,
        "epoch": state.token.epoch,
        "rows": summary.rows,
        "staged": list(summary.staged),
        "holds": {
            reader: {"since": hold.since, "expires_at": None if hold.is_durable else hold.expires_at_ms}
            for reader, hold in state.holds.items()
        },
        "ledger": {
            producer: [[range_.start, range_.end] for range_ in ledger.ranges]
            for producer, ledger in state.ledgers.items()
        },
        "declaration": declaration.to_json(),
    }
    if not as_json:
        shown |= {"upper": _frontier_text(state.upper), "since": _frontier_text(state.since)}
    _show(shown, as_json=as_json)


def _show(shown: dict[str, Any], *, as_json: bool) -> None:
    """Print what is known of one object; for people, the fields of its declaration stand beside the rest."""
    if as_json:
        print_json(shown)
        return
    fields = shown.pop("declaration")
    rows = [*shown.items(), *((field, fields[field]) for field in fields if field not in shown)]
    print_table(["what", "value"], [(field, value) for field, value in rows if value not in ([], {})])


def read(
    name: Name,
    *,
    as_of: AsOf = None,
    limit: Limit = None,
    with_time: WithTime = False,
    with_open: WithOpen = False,
    as_json: AsJson = False,
) -> None:
    """Print the contents of a collection, now or at a time."""
    from tidemark.iceberg.reading.arrow import read_arrow  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.iceberg.shard.state import ShardKind  # noqa: PLC0415

    shard = connect_shards(load_settings_to_look()).open(name)
    times: dict[str, Any] = {"as_of": None if as_of is None else parse_frontier_time(as_of)}
    fetched = _rows_to_fetch(limit, as_json=as_json)
    if as_of is None and not with_open:
        state = shard.load().state
        upper = state.upper
        # The answer says the upper, from which `changes` goes on, also if there are no contents yet.
        times = {"as_of": upper - 1 if isinstance(upper, int) and upper > 0 else None, "upper": frontier_json(upper)}
        if upper == 0 and state.layout is ShardKind.DIFFERENTIAL:
            fetched = 0  # and not what is committed by now: its changes begin at 0
    rows = read_arrow(shard, times["as_of"], with_time=with_time, with_open=with_open, limit=fetched)
    _print_rows(name, rows, limit=limit, as_json=as_json, **times)


def changes(name: Name, *, from_: From, until: Until = None, limit: Limit = None, as_json: AsJson = False) -> None:
    """Print the corrections with `from <= _time < until`, consolidated: `_diff` 1 came, -1 went."""
    from tidemark.iceberg.reading.arrow import changes_arrow  # noqa: PLC0415 - help is shown without pyiceberg

    shard = connect_shards(load_settings_to_look()).open(name)
    end = None if until is None else parse_frontier_time(until)
    upper = shard.load().state.upper
    if end is None and isinstance(upper, int):
        end = upper  # the answer says it, so that the next call can go on from there
    start = parse_frontier_time(from_)
    rows = changes_arrow(shard, start, end, limit=_rows_to_fetch(limit, as_json=as_json))
    _print_rows(name, rows, limit=limit, as_json=as_json, **{"from": start, "until": end})


def _read_declarations(settings: Settings) -> dict[str, Declaration]:
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415

    return deployment_of(settings).registry.read().declarations


def _row_of(declaration: Declaration, state: ShardSummary | CorruptState | None) -> dict[str, Any]:
    summary = None if isinstance(state, CorruptState) else state
    row = {
        "name": declaration.name,
        "kind": declaration.kind.value,
        "upper": None if summary is None else frontier_json(summary.state.upper),
        "rows": None if summary is None else summary.rows,
        "tags": list(declaration.tags),
    }
    return row | {"error": str(state)} if isinstance(state, CorruptState) else row


def _frontier_text(frontier: Frontier | str | None) -> str | None:
    """Return a frontier for people: the number that commands take, and the time that it means."""
    from tidemark.interval import time_text  # noqa: PLC0415

    if frontier is None or isinstance(frontier, str):
        return frontier
    if isinstance(frontier, Empty) or frontier == 0:
        return str(frontier)
    return f"{frontier} ({time_text(frontier)} UTC)"


def _rows_to_fetch(limit: int | None, *, as_json: bool) -> int | None:
    return _SHOWN_ROWS + 1 if limit is None and not as_json else limit


def _print_rows(name: str, rows: pa.Table, *, limit: int | None, as_json: bool, **times: Any) -> None:
    from tidemark.iceberg.files.arrow_values import to_rows, to_tuples  # noqa: PLC0415

    if as_json:
        print_json({"collection": name, **times, "count": rows.num_rows, "rows": to_rows(rows)})
        return
    shown = rows if limit is not None else rows.slice(0, _SHOWN_ROWS)
    print_table(rows.column_names, to_tuples(shown))
    if shown.num_rows < rows.num_rows:
        print_line(f"… and more: these are the first {_SHOWN_ROWS}, --limit N shows N")
