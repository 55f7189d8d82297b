"""The rows of a collection as a sink carries them: its first contents, and its updates cut into transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tidemark.collections.schema.convert import from_iceberg
from tidemark.iceberg.shard.column_names import TIME
from tidemark.iceberg.shard.foreign_commits import is_marked
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS
from tidemark.iceberg.shard.state import CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.time_travel import ancestry
from tidemark.sinks.progress import SinkColumn
from tidemark.sinks.reading.appended_rows import AppendedCommit, read_commit, read_contents, with_diff
from tidemark.sinks.reading.net_changes import check_keys

TRANSACTION_ROWS = 1_000_000  # about so many updates are read into memory, and go into one transaction


def columns_of(head: ShardHead) -> tuple[SinkColumn, ...]:
    """Return the user's columns of a collection."""
    schema, system = head.table.schema(), SYSTEM_COLUMNS[head.state.layout]
    fields = [field for field in schema.fields if field.name not in system]
    types = from_iceberg(schema, without=system)
    return tuple(
        SinkColumn(field.field_id, field.name, column.type) for field, column in zip(fields, types, strict=True)
    )


def first_snapshot(head: ShardHead) -> Snapshot:
    """Return the snapshot of the first contents.

    Rows that another engine appended after our last commit to an append-only collection come with the next one.
    """
    return head.own if head.state.layout is ShardKind.APPEND_ONLY else head.contents


def carried_snapshot(head: ShardHead) -> int:
    """Return the snapshot that a target remembers as carried; 0 where times alone tell."""
    return head.own.snapshot_id if head.state.layout is ShardKind.APPEND_ONLY else 0


def first_rows(head: ShardHead, columns: Sequence[str], *, time: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the contents in pieces; ``time``, if given, is the ``_time`` of all rows, with ``_diff`` 1."""
    for batch in read_contents(head.table, first_snapshot(head), columns):
        yield batch if time is None else _at_time(with_diff(batch, 1), time)


def keyed_rows(rows: Iterator[pa.RecordBatch], key: Sequence[str], *, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the same; raise ``Refused`` at the first piece with a NULL in the key."""
    for batch in rows:
        check_keys(batch, key, where=where)
        yield batch


def read_keys(head: ShardHead, key: Sequence[str]) -> pa.Table:
    """Return the key columns of the contents."""
    schema = head.table.schema().select(*key).as_arrow()
    return pa.Table.from_batches(first_rows(head, key, time=None), schema).combine_chunks()


def appended_rows(
    head: ShardHead, commits: Sequence[AppendedCommit], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the updates of the commits in their order, each with the lower of its commit as ``_time``."""
    for commit in commits:
        for batch in read_commit(head, commit, columns):
            yield _at_time(batch, commit.lower)


class TimeCut(NamedTuple):
    """An interval of times that begins where the one before ends; ``updates`` is how many the log has there."""

    end: int  # exclusive
    updates: int


def cut_times(head: ShardHead, from_: int, until: int, *, rows: int = TRANSACTION_ROWS) -> list[TimeCut]:
    """Return intervals that cut ``[from_, until)`` between commits; each holds about ``rows`` updates at most.

    A commit is never cut, and so a large one stays whole; the last end is ``until``.
    """
    assert head.updates is not None, "a differential collection"  # noqa: S101 - callers know
    commits: list[tuple[int, int]] = []
    for snapshot in ancestry(head.table.metadata, head.updates.snapshot_id):
        if not is_marked(snapshot) or snapshot.summary is None:
            continue
        state = ShardState.parse(snapshot.summary.additional_properties, shard=head.table.name()[-1])
        if not isinstance(state.upper, int) or state.upper <= from_:
            break
        if state.kind is not CommitKind.COMPACT:
            commits.append((state.upper, int(snapshot.summary["added-records"] or 0)))
    cuts: list[TimeCut] = []
    counted, last = 0, from_
    for upper, added in sorted(commits):
        if counted and counted + added > rows and last < until:
            cuts.append(TimeCut(last, counted))
            counted = 0
        counted, last = counted + added, upper
    return [*cuts, TimeCut(until, counted)]


def cut_commits(commits: Sequence[AppendedCommit], *, rows: int = TRANSACTION_ROWS) -> list[list[AppendedCommit]]:
    """Return the commits in groups of about ``rows`` rows at most, the last one perhaps empty.

    A large commit stays whole. So do commits that leave one upper: progress at that time says that all are carried.
    """
    groups: list[list[AppendedCommit]] = [[]]
    counted = 0
    for commit in commits:
        is_later = bool(groups[-1]) and commit.state.upper != groups[-1][-1].state.upper
        if counted and is_later and counted + commit.row_count > rows:
            groups.append([])
            counted = 0
        groups[-1].append(commit)
        counted += commit.row_count
    return groups


def _at_time(updates: pa.RecordBatch, time: int) -> pa.RecordBatch:
    """Return updates, whose last column is `_diff`, with `_time` before it."""
    times = pa.repeat(pa.scalar(time, pa.int64()), updates.num_rows)
    return updates.add_column(updates.num_columns - 1, TIME, times)
