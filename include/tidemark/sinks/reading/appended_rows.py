"""The updates of an append-only collection, commit by commit: rows that came, and rows that a rewrite took away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.errors import HistoryGone
from tidemark.iceberg.files.manifests import read_added_files, read_data_files
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.reading.arrow import consolidate_arrow
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.iceberg.shard.damage import damage_of
from tidemark.iceberg.shard.foreign_commits import is_marked
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind, ShardState
from tidemark.iceberg.shard.time_travel import ancestry

_ADDING = frozenset({CommitKind.APPEND, CommitKind.FLUSH})
_REWRITING = frozenset({CommitKind.COMPACT, CommitKind.CORRECT})  # a persist, and a replay
_KEEPING = frozenset({Operation.APPEND, Operation.REPLACE})  # no row goes


@dataclass(frozen=True, slots=True)
class AppendedCommit:
    """One own commit that may have changed rows at times ``[lower, upper)``, and the commits of others just below."""

    snapshot: Snapshot
    state: ShardState
    foreign: tuple[Snapshot, ...] = ()

    @property
    def lower(self) -> int:
        return self.state.lower if isinstance(self.state.lower, int) else 0

    @property
    def row_count(self) -> int:
        """How many rows the commit has written."""
        summaries = [each.summary for each in (*self.foreign, self.snapshot) if each.summary is not None]
        return sum(int(summary["added-records"] or 0) for summary in summaries)

    @property
    def is_append(self) -> bool:
        return self.state.kind in _ADDING

    @property
    def rewrites_rows(self) -> bool:
        """Whether rows may have gone: by a rewrite that took a time of its own, or by a commit of another engine."""
        took_time = self.state.lower != self.state.upper
        is_rewrite = self.state.kind in _REWRITING and took_time and self.state.changed == self.state.upper
        return is_rewrite or any(_operation_of(each) not in _KEEPING for each in self.foreign)


def list_commits(head: ShardHead, from_: int, carried: int, *, collection: str) -> list[AppendedCommit]:
    """Return the own commits above the snapshot ``carried``, oldest first.

    If that snapshot is expired, they are those with times from ``from_`` on.

    Raises ``HistoryGone`` if another tool expired some of their snapshots.
    """
    way = [
        (snapshot, _own_state(snapshot, collection)) for snapshot in ancestry(head.table.metadata, head.own.snapshot_id)
    ]
    ids = [snapshot.snapshot_id for snapshot, _ in way]
    if carried in ids:
        new = way[: ids.index(carried)]
    else:
        new = list(takewhile(lambda each: each[1] is None or each[1].upper > from_, way))
    commits: list[AppendedCommit] = []
    foreign: list[Snapshot] = []
    for snapshot, state in reversed(new):
        if state is None:
            foreign.append(snapshot)
        else:
            commits.append(AppendedCommit(snapshot, state, tuple(foreign)))
            foreign = []
    if carried not in ids and len(new) == len(way) and commits and commits[0].lower > from_:
        raise HistoryGone(
            f"snapshots of {collection!r} between {from_} and {commits[0].lower} were expired by another tool",
            hint="drop the sink and declare it again with `existing: replace`; let Tidemark alone expire its tables",
        )
    return commits


def _operation_of(snapshot: Snapshot) -> Operation | None:
    return None if snapshot.summary is None else snapshot.summary.operation


def _own_state(snapshot: Snapshot, collection: str) -> ShardState | None:
    """Return the state that one of our commits left; None for a commit of another engine."""
    if snapshot.summary is None or not is_marked(snapshot):
        return None
    return ShardState.parse(snapshot.summary.additional_properties, shard=collection)


def read_commit(head: ShardHead, commit: AppendedCommit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the updates of a commit in pieces: ``columns`` under the present schema, and `_diff`.

    Rows that retention removes are not told; all others that went are: by a merge of duplicates, by a replay that
    decodes rows otherwise, by another engine.

    Raises ``HistoryGone`` if the rows before the commit cannot be read any more.
    """
    if commit.rewrites_rows:
        until = commit.foreign[-1] if commit.state.kind is CommitKind.RETAIN else commit.snapshot
        yield from _read_changes(head, (*commit.foreign, commit.snapshot)[0], until, columns)
        return
    appends = [each for each in commit.foreign if _operation_of(each) is Operation.APPEND]
    for snapshot in (*appends, commit.snapshot) if commit.is_append else appends:
        stored = StoredRows.in_files(head.table, read_added_files(head.table.io, snapshot))
        for file in stored.files:
            yield from _read_updates(head, stored, file, columns, diff=1)


def with_diff(batch: pa.RecordBatch, diff: int) -> pa.RecordBatch:
    """Return the rows as updates."""
    return batch.append_column(DIFF, pa.repeat(pa.scalar(diff, pa.int64()), batch.num_rows))


def read_contents(table: Table, snapshot: Snapshot, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a snapshot, their ``columns`` under the present schema, in pieces."""
    stored = StoredRows.in_snapshot(table, snapshot)
    for file in stored.files:
        for placed in stored.scan(file, columns):
            yield from placed.rows.to_batches()


def _read_changes(head: ShardHead, first: Snapshot, last: Snapshot, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield what the snapshots ``first`` to ``last`` changed: rows that went before those that came, summed up."""
    table = head.table
    parent = table.metadata.snapshot_by_id(first.parent_snapshot_id or -1)
    if parent is None:
        raise HistoryGone(
            f"the snapshot before {first.snapshot_id} of {table.name()[-1]!r} was expired by another tool",
            hint="drop the sink and declare it again with `existing: replace`",
        )
    before, after = StoredRows.in_snapshot(table, parent), StoredRows.in_snapshot(table, last)
    present = {path: after.live(file) for path, file in after.by_path.items()}
    same = {path for path, file in before.by_path.items() if present.get(path) == before.live(file)}
    pieces = [
        batch
        for stored, diff in ((before, -1), (after, 1))
        for file in stored.files
        if file.file_path not in same
        for batch in _read_updates(head, stored, file, columns, diff=diff)
    ]
    if pieces:
        yield from consolidate_arrow(pa.Table.from_batches(pieces), columns).sort_by(DIFF).to_batches()


def _read_updates(
    head: ShardHead, stored: StoredRows, file: DataFile, columns: Sequence[str], *, diff: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, each with ``diff``.

    Raises ``HistoryGone`` if a file of the past cannot be read: nobody knows which of its rows are still there.
    """
    try:
        for placed in stored.scan(file, columns):
            for batch in placed.rows.to_batches():
                yield with_diff(batch, diff)
    except Exception as error:
        damage = damage_of(head.table, file, whole=True)
        if not damage or file.file_path in read_data_files(head.table.io, head.contents):
            raise
        raise HistoryGone(
            f"{file.file_path} of {head.table.name()[-1]!r} {damage}, and its rows were replaced since",
            hint="drop the sink and declare it again with `existing: replace`, which loads all rows anew",
        ) from error
