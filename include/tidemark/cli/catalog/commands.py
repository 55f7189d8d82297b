"""`tidemark catalog …`: who holds the system's own catalog, and moving it from the stash to persist and back."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Annotated

import typer

from tidemark.cli.catalog.items import TITLES, get, history, load_catalog, set_, set_kind
from tidemark.cli.catalog.status import diff, status
from tidemark.cli.console import print_json, print_line, print_table
from tidemark.cli.options import AsJson, load_settings
from tidemark.errors import UsageError
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.lease import SYSTEM_CATALOG
from tidemark.settings import Settings

DryRun = Annotated[bool, typer.Option("--dry-run", help="Do it on copies that are thrown away, and say what it does.")]
Force = Annotated[
    bool, typer.Option("--force", help="Even if a leader may be at work on the persist catalog: its writes are lost.")
]
Side = Annotated[str | None, typer.Option("--side", metavar="stash|persist", help="One of the two; without it: both.")]

catalog = typer.Typer(
    name="catalog",
    help="The system's own catalog: which back end is the truth, and moving it to the other one.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

catalog.command()(status)
catalog.command()(diff)
catalog.command()(get)
catalog.command(name="set")(set_)
catalog.command(name="set-kind")(set_kind)
catalog.command()(history)


@catalog.command(name="open")
def open_(*, dry_run: DryRun = False, force: Force = False, as_json: AsJson = False) -> None:
    """Become the leader: fence everybody else, and do what `set-kind` asks for, if anything; else nothing moves."""
    _open("open", dry_run=dry_run, force=force, as_json=as_json)


@catalog.command()
def migrate(*, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Become the leader and make the persist catalog the truth; nothing to copy if it is already."""
    _open("migrate", dry_run=dry_run, force=False, as_json=as_json)


@catalog.command()
def rollback(*, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Become the leader and make the stash the truth; nothing to copy if it is already."""
    _open("rollback", dry_run=dry_run, force=False, as_json=as_json)


@catalog.command()
def emergency(*, dry_run: DryRun = False, force: Force = False, as_json: AsJson = False) -> None:
    """Make the stash the truth as it is, without the persist catalog: what was written there since is given up.

    Only when a rollback is impossible. It does not fence the persist catalog: stop every process first. Refused while
    a process holds a live lease (`catalog status` lists them), or the persist catalog was just written.
    """
    _open("emergency", dry_run=dry_run, force=force, as_json=as_json)


@catalog.command()
def dump(*, side: Side = None, as_json: AsJson = False) -> None:
    """Print every durable record of the back ends as it is stored: two dumps are equal if nothing was changed."""
    back_ends = load_catalog().ends
    ends = {end.name: end for end in (back_ends.stash, back_ends.persist)}
    if side is not None and side not in ends:
        raise UsageError(f"there is no back end {side!r}", hint="there are stash and persist")
    chosen = [end for name, end in ends.items() if side in {None, name}]
    if as_json:
        print_json({end.name: [json.loads(line) for line in end.dump()] for end in chosen})
        return
    for end in chosen:
        for line in end.dump():
            print_line(f"{end.name}\t{line}")


def _open(operation: str, *, dry_run: bool, force: bool, as_json: bool) -> None:
    """Open the catalog; ``operation`` is ``open``, or a direction to open it in."""
    from tidemark.catalog.deployment.modes import refuse_beside_leader  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.catalog.opening.dry_run import inconsistent_text  # noqa: PLC0415
    from tidemark.catalog.opening.opening import Direction  # noqa: PLC0415
    from tidemark.catalog.opening.side_contents import carried  # noqa: PLC0415

    direction = None if operation == "open" else Direction(operation)
    if dry_run:
        answer = load_catalog().dry_run(direction).to_json()
    else:
        if operation != "emergency":  # which must do without the persist catalog
            load_settings(writes=True)  # before anything is fenced
        opened = load_catalog()
        refuse_beside_leader(opened.ends, f"`tidemark catalog {operation}`")
        with _lease_of(operation), closing(opened.open(direction, is_forced=force)) as opening:
            contents = opening.truth.snapshot()
            answer = {
                "direction": opening.direction.value,
                "truth": opening.truth.name,
                "tombstone": opening.tombstone,
                "epoch": opening.truth.epoch,
                "generation": opening.truth.generation,
                "flipped": opening.flipped,
                "inserted": opening.replaced.inserted if opening.replaced else 0,
                "retracted": opening.replaced.retracted if opening.replaced else 0,
                "counts": contents.counts(),
                "digest": carried(contents).digest(),
            }
    if as_json:
        print_json({"operation": operation, "dry_run": dry_run, **answer})
        return
    would = "would be" if dry_run else "is"
    print_line(f"{TITLES[str(answer['truth'])]} {would} the truth: {answer['inserted']} items inserted, "
               f"{answer['retracted']} retracted by the copy; digest {answer['digest'][:16]}")  # fmt: skip
    if text := inconsistent_text(answer.get("inconsistent", 0)):
        print_line(text)
    print_table(["kind", "items"], list(answer["counts"].items()))
    if rows := [tuple(item.values()) for item in answer.get("differing", ())]:
        print_table(["change", "kind", "key", "value"], rows, title="for example")


def _lease_of(operation: str) -> AbstractContextManager[None]:
    """Return the lease of an open; an emergency, which works on the stash alone, needs none."""
    if operation == "emergency":
        return nullcontext()
    return holding(Settings.load(os.environ), f"catalog {operation}", [SYSTEM_CATALOG])
