"""`tidemark catalog …`: who holds the system's own catalog, and moving it from the stash to persist and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.commands.catalog_items import TITLES, combined_catalog, get, history, set_, set_kind
from include.commands.options import AsJson
from include.console import print_json, print_line, print_table
from include.errors import IncompatibleDataVersion, Unreachable, UsageError
from include.exit_codes import ExitCode

if TYPE_CHECKING:
    from include.catalog.back_end import Head
    from include.catalog.combined import CombinedCatalog
    from include.catalog.combined_open import Direction
    from include.catalog.heads import TruthHead

SHOWN = 50  # lines for people, unless they say how many

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


catalog.command()(get)
catalog.command(name="set")(set_)
catalog.command(name="set-kind")(set_kind)
catalog.command()(history)


@catalog.command()
def status(*, as_json: AsJson = False) -> int:
    """Show which back end is the truth, both epochs, who leads, and how many items there are of each kind.

    Works while one of the back ends does not answer; what is then not known is shown as such, and the exit code is 69.
    """
    combined = combined_catalog()
    stash = combined.ends.stash.head()
    silent = ""
    persist: Head | None
    try:
        persist = combined.ends.persist.head()
    except Unreachable as error:
        persist, silent = None, str(error)
    truth = combined.truth() if persist is not None or not stash.tombstone else None
    answer = {
        "truth": "persist" if stash.tombstone else "stash",
        "tombstone": stash.tombstone,
        "stash_epoch": stash.epoch,
        "persist_epoch": persist.epoch if persist else None,
        "generation": _generation(truth),
        "leader": f"epoch {truth.epoch} of generation {_generation(truth)}" if truth and truth.is_led else None,
        "counts": _counts(combined, truth) if truth else {},
    }
    if as_json:
        print_json({**answer, **({"unreachable": silent} if silent else {})})
    else:
        for name, value in answer.items():
            if name != "counts":
                print_line(f"{name.replace('_', ' ')}: {_told(name, value)}")
        if answer["leader"] is None:
            print_line(_why_nobody_leads(stash, persist))
        print_table(["kind", "items"], list(_counts_of(answer).items()))
        if silent:
            print_line(f"the persist catalog does not answer: {silent}")
    return ExitCode.UNREACHABLE if silent else ExitCode.OK


def _told(name: str, value: object) -> str:
    if name == "tombstone":
        return "unset" if value is None else str(value).lower()
    return "-" if value is None else str(value)


def _why_nobody_leads(stash: Head, persist: Head | None) -> str:
    if stash.epoch is None and persist is not None and persist.epoch is not None:
        return (
            "nobody leads: there is a persist side, and this stash was never opened: check TIDEMARK_STASH_URI; "
            "only if the stash is lost: tidemark catalog open"
        )
    return "nobody leads: an open is under way, or died, or there was none yet (tidemark catalog open)"


@catalog.command(name="open")
def open_(*, dry_run: DryRun = False, force: Force = False, as_json: AsJson = False) -> None:
    """Become the leader: fence everybody else, and do what `set-kind` asks for, if anything; else nothing moves."""
    _open("open", None, dry_run=dry_run, force=force, as_json=as_json)


@catalog.command()
def migrate(*, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Become the leader and make the persist catalog the truth; nothing to copy if it is already."""
    from include.catalog.combined_open import Direction  # noqa: PLC0415 - help is shown without pydantic

    _open("migrate", Direction.MIGRATE, dry_run=dry_run, force=False, as_json=as_json)


@catalog.command()
def rollback(*, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Become the leader and make the stash the truth; nothing to copy if it is already."""
    from include.catalog.combined_open import Direction  # noqa: PLC0415

    _open("rollback", Direction.ROLLBACK, dry_run=dry_run, force=False, as_json=as_json)


@catalog.command()
def emergency(*, dry_run: DryRun = False, force: Force = False, as_json: AsJson = False) -> None:
    """Make the stash the truth as it is, without the persist catalog: what was written there since is given up.

    Only when a rollback is impossible. It does not fence the persist catalog: stop every process first.
    """
    from include.catalog.combined_open import Direction  # noqa: PLC0415

    _open("emergency", Direction.EMERGENCY, dry_run=dry_run, force=force, as_json=as_json)


@catalog.command()
def dump(*, side: Side = None, as_json: AsJson = False) -> None:
    """Print every durable record of the back ends as it is stored: two dumps are equal if nothing was changed."""
    combined = combined_catalog()
    ends = {end.name: end for end in (combined.ends.stash, combined.ends.persist)}
    if side is not None and side not in ends:
        raise UsageError(f"there is no back end {side!r}", hint="there are stash and persist")
    chosen = [end for name, end in ends.items() if side in {None, name}]
    if as_json:
        print_json({end.name: [json.loads(line) for line in end.dump()] for end in chosen})
        return
    for end in chosen:
        for line in end.dump():
            print_line(f"{end.name}\t{line}")


@catalog.command()
def diff(*, as_json: AsJson = False) -> None:
    """Compare the items of both back ends: what a migration or rollback would have to write, in full."""
    from include.catalog.back_end import OpenMode  # noqa: PLC0415
    from include.catalog.migration_report import carried  # noqa: PLC0415

    combined = combined_catalog()
    found = []
    for end in (combined.ends.stash, combined.ends.persist):
        generation = end.head().deployment_generation(f"the {end.name}")
        with end.open(OpenMode.READ_ONLY, generation=generation, clock=combined.ends.clock) as handle:
            found.append(carried(handle.snapshot()))
    stash, persist = found
    changes = stash.difference(persist)
    if as_json:
        rows = [{"only_in": _only_in(each.diff), **each.item._asdict()} for each in changes]
        print_json(
            {"equal": not rows, "stash_digest": stash.digest(), "persist_digest": persist.digest(), "items": rows}
        )
        return
    if not changes:
        print_line(f"both sides hold the same: nothing to copy (items that would be: {len(stash)})")
        return
    print_table(["only in", "kind", "key", "value"], [(_only_in(each.diff), *each.item) for each in changes[:SHOWN]])
    if len(changes) > SHOWN:
        print_line(f"… and {len(changes) - SHOWN} more; --json shows all")


def _open(operation: str, direction: Direction | None, *, dry_run: bool, force: bool, as_json: bool) -> None:
    from include.catalog.migration_report import carried  # noqa: PLC0415

    combined = combined_catalog()
    if dry_run:
        answer = combined.dry_run(direction).to_json()
    else:
        opening = combined.open(direction, is_forced=force)
        try:
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
        finally:
            opening.close()
    if as_json:
        print_json({"operation": operation, "dry_run": dry_run, **answer})
        return
    would = "would be" if dry_run else "is"
    print_line(f"{TITLES[str(answer['truth'])]} {would} the truth: {answer['inserted']} items inserted, "
               f"{answer['retracted']} retracted by the copy; digest {answer['digest'][:16]}")  # fmt: skip
    print_table(["kind", "items"], list(_counts_of(answer).items()))
    if rows := [tuple(each.values()) for each in answer.get("differing", ())]:
        print_table(["change", "kind", "key", "value"], rows, title="for example")


def _generation(truth: TruthHead | None) -> int | None:
    return truth.deployment_generation if truth is not None and truth.is_initialized else None


def _counts(combined: CombinedCatalog, truth: TruthHead) -> dict[str, int]:
    """Return the items by kind, whoever leads; none if a newer program wrote them."""
    from include.catalog.back_end import OpenMode  # noqa: PLC0415

    if not truth.is_initialized:
        return {}
    end = combined.ends.persist if truth.tombstone else combined.ends.stash
    try:
        with end.open(OpenMode.READ_ONLY, generation=truth.deployment_generation, clock=combined.ends.clock) as handle:
            return handle.snapshot().counts()
    except IncompatibleDataVersion:
        return {}


def _counts_of(answer: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = answer["counts"]
    return counts


def _only_in(diff: int) -> str:
    return "persist" if diff > 0 else "stash"
