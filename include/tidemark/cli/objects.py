"""`tidemark pause`, `resume` and `drop`: the life of collections, ingestions and sinks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from tidemark.cli.console import print_json, print_line, stderr
from tidemark.cli.options import AsJson, complete_object, connect_shards, current_user, load_deployment
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import refuse_when_read_only
from tidemark.errors import UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.holding import holding

FAIL_POINTS = ("drop.unrecorded",)

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME…", help="Collections, ingestions and sinks.", autocompletion=complete_object),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="The reason, which everybody sees who asks.")]
Yes = Annotated[bool, typer.Option("--yes", help="Drop without a question.")]


def pause(names: Names, *, why: Why = "", as_json: AsJson = False) -> None:
    """Keep objects from running, from their next run on, until they are resumed; each run says so.

    Nobody appends to a paused collection, and what is staged for it waits. Readers go on, and so does maintenance, but
    for retention.
    """
    deployment = load_deployment()
    refuse_when_read_only(deployment, "pause")
    before = deployment.objects.pause(list(dict.fromkeys(names)), why=why)
    _record_standings(deployment, names)
    if as_json:
        print_json({"paused": {name: asdict(standing) for name, standing in deployment.objects.read().items()
                               if name in names}})  # fmt: skip
        return
    for name in dict.fromkeys(names):
        print_line(f"{name}: {f'nothing to do: {before[name]}' if name in before else 'paused'}")


def resume(names: Names, *, as_json: AsJson = False) -> None:
    """Let paused objects run again, from their next run on; suspended ones are tried again then."""
    deployment = load_deployment()
    refuse_when_read_only(deployment, "resume")
    ended = deployment.objects.resume(list(dict.fromkeys(names)))
    _record_standings(deployment, ended)
    if as_json:
        print_json({"resumed": {name: asdict(standing) for name, standing in ended.items()}})
        return
    for name in dict.fromkeys(names):
        was = f"runs again; it was {ended[name]}" if name in ended else "nothing to do: neither paused nor suspended"
        print_line(f"{name}: {was}")


def drop(names: Names, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Drop objects for good. Their names are free at once; maintenance removes the tables some days later.

    Refused while another collection reads one of them, or a sink carries it, unless that is dropped, too. The rows that
    did not parse go with their collection.
    """
    deployment = load_deployment()
    refuse_when_read_only(deployment, "drop")
    from tidemark.collections.objects.drop import drop as drop_planned  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.objects.drop import plan_drop  # noqa: PLC0415
    from tidemark.collections.system.recorder import record_drops  # noqa: PLC0415
    from tidemark.sinks.removal import clear_sinks  # noqa: PLC0415

    shards, clock = connect_shards(deployment.settings), SystemClock()
    plans = plan_drop(shards, deployment, names, clock=clock)
    if not yes:
        for plan in plans:
            stderr().print(f"drop {plan}", markup=False, soft_wrap=True)
        if not sys.stdin.isatty():
            raise UsageError("drop takes all of it away for good", hint="say --yes, if that is meant")
        typer.confirm("Drop?", abort=True, err=True)
    leaving = [plan.leaving.name for plan in plans]
    known = {name: found for name, found in deployment.registry.objects().items() if name in leaving}
    with holding(deployment.settings, "drop", leaving):
        gone = drop_planned(shards, deployment, plans, clock=clock)
        fail_point("drop.unrecorded")
        record_drops(deployment, known, who=current_user(), clock=clock)
        waiting = clear_sinks(shards, deployment, gone)
    if as_json:
        print_json({"dropped": [{**asdict(each), "table": each.table} for each in gone], "waiting": waiting})
        return
    for plan in plans:
        print_line(f"dropped {plan}")
    for why in waiting:
        print_line(f"{why}: maintenance tries again")


def _record_standings(deployment: Deployment, names: Iterable[str]) -> None:
    from tidemark.collections.system.recorder import record_standings  # noqa: PLC0415 - help is shown without pyiceberg

    record_standings(deployment, names, clock=SystemClock())
