"""`tidemark apply`, `collections` and `show`: what is declared, and how each collection stands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.console import print_json, print_line, print_table, working
from tidemark.cli.options import AsJson, Name, load_deployment, load_settings
from tidemark.errors import CorruptState, UnknownCollection
from tidemark.frontier import Empty, Frontier, frontier_json
from tidemark.spark.spark_on_demand import spark_on_demand

if TYPE_CHECKING:
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.iceberg.shard.state_reader import ShardSummary
    from tidemark.settings import Settings

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH…", help="Declaration files, or folders of them (*.yaml, *.yml)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be created or altered; change nothing.")]


def apply(paths: Paths, *, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Make declarations the applied ones: create tables, evolve their columns. Doing it again changes nothing.

    New columns are added, types widened (int to bigint, float to double, more digits of a decimal), columns renamed as
    `renames` says, and dropped if a declared `schema` no longer names them. What cannot be changed in place is refused
    (76), and nothing is changed then.
    """
    deployment = load_deployment()
    settings = deployment.settings
    from tidemark.collections.apply.execute import Application  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.apply.inspect_source import SourceInspector  # noqa: PLC0415
    from tidemark.collections.declarations.files import load_declarations  # noqa: PLC0415
    from tidemark.collections.mode import refuse_when_read_only  # noqa: PLC0415
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    shards = Shards.connect(settings)
    registry = deployment.registry
    if not dry_run:
        refuse_when_read_only(deployment, "change of declarations")
    declarations = load_declarations(paths, known=registry.read().declarations)
    starting = partial(working, "Starting Spark: only it can tell the columns of some sources")
    with spark_on_demand(settings, app_name="tidemark-apply", starting=starting) as start_spark:
        application = Application(
            shards=shards,
            registry=registry,
            inspector=SourceInspector(shards, settings, start_spark),
            generation=settings.generation,
        )
        plan = application.plan(declarations) if dry_run else application.run(declarations)
    if as_json:
        print_json({"dry_run": dry_run, **plan.to_json()})
        return
    for step in plan.steps:
        print_line(f"{step.name}: {'would ' if dry_run else ''}{step}")
    if plan.unchanged:
        print_line(f"unchanged: {', '.join(plan.unchanged)}")


def collections(*, as_json: AsJson = False) -> None:
    """List the declared collections."""
    from tidemark.iceberg.shard.state_reader import read_states  # noqa: PLC0415 - help is shown without pyiceberg

    settings = load_settings()
    states = read_states(settings)
    found = [_listed(each, states.get(each.name)) for each in _read_declarations(settings).values()]
    if as_json:
        print_json({"collections": found})
        return
    if not found:
        print_line("Nothing is declared yet: run `tidemark apply PATH`.")
        return
    rows = [
        (each["name"], each["kind"], each["rows"], each.get("error") or _told(each["upper"]), ", ".join(each["tags"]))
        for each in found
    ]
    print_table(["name", "kind", "rows", "upper", "tags"], rows)


def show(name: Name, *, as_json: AsJson = False) -> None:
    """Show one collection: its frontiers, who may write, what is staged and held, and its declaration."""
    from tidemark.iceberg.shard.state_reader import read_state  # noqa: PLC0415 - help is shown without pyiceberg

    settings = load_settings()
    declared = _read_declarations(settings)
    if name not in declared:
        raise UnknownCollection.named(name, declared)
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
            reader: {"since": hold.since, "expires_at": hold.expires_at_ms} for reader, hold in state.holds.items()
        },
        "ledger": {
            producer: [[each.start, each.end] for each in ledger.ranges] for producer, ledger in state.ledgers.items()
        },
        "declaration": declaration.to_json(),
    }
    if as_json:
        print_json(shown)
        return
    shown["upper"], shown["since"] = _told(state.upper), _told(state.since)
    fields = shown.pop("declaration")
    rows = [*shown.items(), *((field, fields[field]) for field in fields if field not in shown)]
    print_table(["what", "value"], [(field, value) for field, value in rows if value not in ([], {})])


def _read_declarations(settings: Settings) -> dict[str, Declaration]:
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415

    return deployment_of(settings).registry.read().declarations


def _listed(declaration: Declaration, seen: ShardSummary | CorruptState | None) -> dict[str, Any]:
    summary = None if isinstance(seen, CorruptState) else seen
    listed = {
        "name": declaration.name,
        "kind": declaration.kind.value,
        "upper": None if summary is None else frontier_json(summary.state.upper),
        "rows": None if summary is None else summary.rows,
        "tags": list(declaration.tags),
    }
    return listed | {"error": str(seen)} if isinstance(seen, CorruptState) else listed


def _told(frontier: Frontier | str | None) -> str | None:
    """Return a frontier as people read it, with the number that commands take."""
    from tidemark.interval import time_text  # noqa: PLC0415

    if frontier is None or isinstance(frontier, str):
        return frontier
    if isinstance(frontier, Empty) or frontier == 0:
        return str(frontier)
    return f"{frontier} ({time_text(frontier)} UTC)"
