"""`tidemark status`: how every collection, ingestion and sink is, in one table."""

from __future__ import annotations

import sys
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.console import clear, print_error, print_json, print_line, print_table
from tidemark.cli.options import AsJson, complete_object, load_settings_to_look
from tidemark.errors import TidemarkError
from tidemark.report import ErrorReport

if TYPE_CHECKING:
    from tidemark.collections.system.status_table import ObjectStatus

SomeNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME…]", help="Collections, ingestions and sinks; without any: all.", autocompletion=complete_object
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Show the table again and again, until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch does so.")]
_COLUMNS = ("name", "kind", "status", "since", "again at", "rows", "upper", "lag", "last run", "seconds", "reason")
_NEVER = "never run"


def status(names: SomeNames = None, *, watch: Watch = False, every: Every = 5.0, as_json: AsJson = False) -> None:
    """Show how all objects are: what each does, since when and why, and the measures of its last run.

    An object that is named is also shown after it was dropped, for as long as that is on record.
    """
    _show(names or [], as_json=as_json)
    if not watch:
        return
    with suppress(KeyboardInterrupt):  # the way to end it
        while True:
            sys.stdout.flush()
            sleep(every)
            try:
                _show(names or [], as_json=as_json, clears=True)
            except TidemarkError as error:  # a store may be away for a while
                print_error(ErrorReport.of(error), as_json=as_json)


def _show(names: list[str], *, as_json: bool, clears: bool = False) -> None:
    """Read and print all objects; ``clears`` empties a terminal first, once everything is read."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.system.status_table import read_status_table  # noqa: PLC0415

    found = read_status_table(deployment_of(load_settings_to_look()), names)
    if as_json:
        print_json({"objects": [each.to_json() for each in found]})
        return
    if clears:
        clear()
    if not found:
        print_line("Nothing is declared: run `tidemark apply PATH`.")
        return
    print_table(_COLUMNS, [_row_of(each) for each in found])
    for each in found:
        if each.hint:
            print_line(f"{each.name}: → {each.hint}")


def _row_of(found: ObjectStatus) -> list[object]:
    return [
        found.name,
        found.kind,
        found.status or _NEVER,
        _time_text(found.since_ms),
        _time_text(found.retry_at_ms),
        "" if found.rows is None else found.rows,
        "" if found.upper is None else found.upper,
        "" if found.lag_ms is None else f"{found.lag_ms / 1000:.1f} s",
        _time_text(found.last_run_ms),
        "" if found.seconds is None else f"{found.seconds:.1f}",
        found.reason or "",
    ]


def _time_text(time_ms: int | None) -> str:
    from tidemark.interval import time_text  # noqa: PLC0415

    return "" if time_ms is None else time_text(time_ms // 1000 * 1000)
