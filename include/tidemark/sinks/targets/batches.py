"""Rows on their way into files: as tables, under the columns of the target, asked for in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread
from typing import TypeVar

import pyarrow as pa

from tidemark.errors import InputMissing, Unreachable

PATIENCE_S = 3.5  # of the 5 s in which an unreachable target is reported; the rest is for the start of Python
_BATCH_BYTES, _BATCH_ROWS = 256 * 1024 * 1024, 1_000_000
_Answer = TypeVar("_Answer")


def as_table(batch: pa.RecordBatch) -> pa.Table:
    """Return one batch as a table."""
    return pa.Table.from_batches([batch])


def project(rows: pa.Table, schema: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Table:
    """Return ``rows`` with the columns of ``schema``; a column that they lack is NULL.

    ``names`` are those that the rows have for the columns; by default the same.
    """
    arrays = []
    for field in schema:
        name = field.name if names is None else names.get(field.name)
        is_there = name is not None and name in rows.column_names
        arrays.append(rows.column(name).cast(field.type) if is_there else pa.nulls(rows.num_rows, field.type))
    return pa.table(arrays, schema=schema)


def gather(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in few large pieces, each of which is one file or more."""
    pieces: list[pa.Table] = []
    for table in rows:
        pieces.append(table)
        if sum(each.num_rows for each in pieces) >= _BATCH_ROWS or sum(each.nbytes for each in pieces) >= _BATCH_BYTES:
            yield pa.concat_tables(pieces)
            pieces = []
    if pieces:
        yield pa.concat_tables(pieces)


def file_gone(title: str, error: FileNotFoundError) -> InputMissing:
    """Build the error for a file that a target names, and that somebody removed."""
    return InputMissing(
        f"{title} names a file that is gone: {error}",
        hint="restore it, or mount its file system; else drop the sink, and declare it again with `existing: replace`, "
        "which loads all rows anew",
    )


def in_time(title: str, question: Callable[[], _Answer]) -> _Answer:
    """Return the answer to a question that a dead mount, or a dead server, may never answer.

    Raises ``Unreachable`` if there is none within 5 s; what the question raises in time is raised, too.
    """
    answers: list[_Answer] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    if errors:
        raise errors[0]
    if not answers:
        raise Unreachable(f"{title}: no answer", hint="is it there, and the network? History is kept until then")
    return answers[0]
