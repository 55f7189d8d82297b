"""Output of the command line: results on stdout, as tables for people or JSON for programs; the rest on stderr."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from tidemark.exit_codes import ExitCode
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Report, plain

_SHOWN_SAMPLE = 10  # of the rows for which a run was refused
_PLAIN_WIDTH = 200  # of tables in a file or a pipe, which have no screen


def stdout() -> Console:
    """Return the console for results; made anew, because tests and pipes replace the stream."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PLAIN_WIDTH
    return console


def stderr() -> Console:
    """Return the console for progress and errors."""
    return Console(stderr=True, highlight=False)


def clear() -> None:
    """Empty the terminal; a file or a pipe stays as it is."""
    stdout().clear()


def print_json(value: object) -> None:
    """Print one JSON document; values that JSON lacks (dates, decimals, NaN) become text."""
    is_utf_8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    # A terminal or a pipe with another encoding gets JSON's own escapes, which are ASCII.
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=not is_utf_8, allow_nan=False) + "\n")


def escape_unknown_letters() -> None:
    """Print letters that the encoding of the output lacks as escapes, instead of failing half-way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str) -> None:
    """Print one line of text without markup."""
    stdout().print(escape(text), soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table with numbers aligned to the right, and NULL for None."""
    cells = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        is_number = all(isinstance(row[number], int | float | Decimal | None) for row in cells)
        table.add_column(escape(name), justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(_cell(value) for value in row))
    stdout().print(table)


def red(text: str) -> Text:
    """Return a cell of a table that catches the eye on a terminal."""
    return Text(text, style="bold red")


def change(before: object, after: object) -> object:
    """Return a cell of a table that shows both values, if they differ."""
    if (before is None) == (after is None) and _text(before) == _text(after):  # also NaN, which equals nothing
        return after
    return Text(f"{_text(before)} → {_text(after)}", style="bold yellow")


def print_result(
    result: object, columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool, title: str | None = None
) -> None:
    """Print ``result`` as JSON, or ``rows`` as a table."""
    if as_json:
        print_json(result)
    else:
        print_table(columns, rows, title=title)


def print_report(
    report: Report,
    columns: Sequence[str],
    row_of: Callable[[CollectionReport], Sequence[object]],
    *,
    as_json: bool,
    nothing: str,
    what: str = "collection",
    outcome_of: Callable[[CollectionReport], str] = lambda collection: collection.outcome.value,
    print_details: Callable[[str, CollectionReport], None] = lambda _name, _collection: None,
) -> ExitCode:
    """Print a report, as JSON or a row of ``columns`` for each collection and its failure; return the exit code.

    ``nothing`` is printed if there is no collection, ``print_details`` prints after the table and before the failures.
    ``what`` heads the names, and ``outcome_of`` tells what people read as the outcome.
    """
    if as_json:
        print_json(report.to_json())
    elif not report.collections:
        print_line(nothing)
    else:
        collections = report.collections.items()
        rows = [(name, outcome_of(collection), *row_of(collection)) for name, collection in collections]
        print_table([what, "outcome", *columns], rows)
        for name, collection in collections:
            if (reason := collection.details.get(SKIPPED_BECAUSE)) is not None:
                print_line(f"{name}: skipped: {reason}")
            print_details(name, collection)
        print_failures(report)
    return report.exit_code


def print_failures(report: Report) -> None:
    """Print the error of every collection that failed, and what to do."""
    for name, collection in report.collections.items():
        if collection.error:
            print_line(f"{name}: {collection.error.kind}: {collection.error.message}")
            if collection.error.hint:
                print_line(f"  → {collection.error.hint}")
            if rows := collection.error.sample[:_SHOWN_SAMPLE]:
                columns = list(dict.fromkeys(column for row in rows for column in row))
                print_table(columns, [[row.get(column, "") for column in columns] for row in rows])


def print_error(error: ErrorReport, *, as_json: bool) -> None:
    """Print an error and what to do: on stdout for programs, on stderr for people."""
    if as_json:
        print_json({"error": error.to_json()})
        return
    console = stderr()
    console.print(f"[bold red]{escape(error.kind)}[/]: {escape(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(f"[dim]→ {escape(error.hint)}[/]", soft_wrap=True)
    for row in error.sample:
        console.print(f"  {escape(json.dumps(plain(row), ensure_ascii=False))}", soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Status]:
    """Show on a terminal that work is going on."""
    with stderr().status(escape(text)) as status:
        yield status


def _cell(value: object) -> str | Text:
    if isinstance(value, Text):
        return value
    return "[dim]NULL[/]" if value is None else escape(_text(value))


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = plain(value)
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
