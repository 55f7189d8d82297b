"""`tidemark status`: how every collection, ingestion and sink is, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.console import print_json, print_line, print_table
from tidemark.cli.options import AsJson, load_settings_to_look

if TYPE_CHECKING:
    from tidemark.collections.system.status_table import ObjectStatus

SomeNames = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME…]", help="Collections, ingestions and sinks; without any: all.")
]
_COLUMNS = ("name", "kind", "status", "since", "again at", "rows", "upper", "lag", "last run", "seconds", "reason")
_NEVER = "never run"


def status(names: SomeNames = None, *, as_json: AsJson = False) -> None:
    """Show how all objects are: what each does, since when and why, and the measures of its last run.

    An object that is named is also shown after it was dropped, for as long as that is on record.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.system.status_table import read_status_table  # noqa: PLC0415

    settings = load_settings_to_look()
    found = read_status_table(deployment_of(settings), names or [])
    if as_json:
        print_json({"objects": [each.to_json() for each in found]})
        return
    if not found:
        print_line("Nothing is declared yet: run `tidemark apply PATH`.")
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
        found.rows,
        found.upper,
        "" if found.lag_ms is None else f"{found.lag_ms / 1000:.1f} s",
        _time_text(found.last_run_ms),
        "" if found.seconds is None else f"{found.seconds:.1f}",
        found.reason or "",
    ]


def _time_text(time_ms: int | None) -> str:
    from tidemark.interval import time_text  # noqa: PLC0415

    return "" if time_ms is None else time_text(time_ms // 1000 * 1000)
