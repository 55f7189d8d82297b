"""The rows that own commits added to an append-only collection, commit by commit, in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.errors import HistoryGone
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.reading.arrow import consolidate_arrow
from tidemark.iceberg.shard.column_names import BATCH, DIFF
from tidemark.iceberg.shard.foreign_commits import is_marked
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import origin_columns, user_column_names
from tidemark.iceberg.shard.state import CommitKind, ShardState
from tidemark.iceberg.shard.time_travel import ancestry

log = logging.getLogger(__name__)

_ADDING = frozenset({CommitKind.APPEND, CommitKind.FLUSH})
_REWRITING = frozenset({CommitKind.COMPACT, CommitKind.CORRECT})  # a persist that shows rows, and a replay


@dataclass(frozen=True, slots=True)
class AppendedCommit:
    """One own commit that may have added rows at times ``[lower, upper)``, and the appends of others just below."""

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
    def shows_rows(self) -> bool:
        """Whether a rewrite changed the rows: it took a time of its own, and the contents changed up to its end."""
        took_time = self.state.lower != self.state.upper
        return self.state.kind in _REWRITING and took_time and self.state.changed == self.state.upper


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


def _own_state(snapshot: Snapshot, collection: str) -> ShardState | None:
    """Return the state that one of our commits left; None for a commit of another engine."""
    if snapshot.summary is None or not is_marked(snapshot):
        return None
    return ShardState.parse(snapshot.summary.additional_properties, shard=collection)


def read_commit(head: ShardHead, commit: AppendedCommit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a commit added, their ``columns`` under the present schema, in pieces."""
    table = head.table
    for snapshot in commit.foreign:
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.APPEND:
            yield from _read_files(StoredRows.in_files(table, read_added_files(table.io, snapshot)), columns)
        elif operation is not Operation.REPLACE:
            log.warning("a commit of another tool to %s is not told to sinks: %s", table.name(), snapshot.snapshot_id)
    if commit.is_append:
        yield from _read_files(StoredRows.in_files(table, read_added_files(table.io, commit.snapshot)), columns)
    elif commit.shows_rows:
        yield from _read_shown(head, commit.snapshot).select(list(columns)).to_batches()


def read_contents(table: Table, snapshot: Snapshot, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a snapshot, their ``columns`` under the present schema, in pieces."""
    return _read_files(StoredRows.in_snapshot(table, snapshot), columns)


def _read_files(stored: StoredRows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for file in stored.files:
        for placed in stored.scan(file, columns):
            yield from placed.rows.to_batches()


def _read_shown(head: ShardHead, snapshot: Snapshot) -> pa.Table:
    """Return the rows of ``snapshot`` that its parent does not show, of the files in which the two differ."""
    table = head.table
    parent = table.metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    if parent is None:
        raise HistoryGone(
            f"the snapshot before {snapshot.snapshot_id} of {table.name()[-1]!r} was expired by another tool",
            hint="drop the sink and declare it again with `existing: replace`",
        )
    schema, layout = table.schema(), head.state.layout
    # A replay cuts batches anew, so that a row is known by its producer and entry.
    origin = [name for name in origin_columns(schema, layout) if name != BATCH]
    columns = [*user_column_names(schema, layout), *origin]
    before, after = StoredRows.in_snapshot(table, parent), StoredRows.in_snapshot(table, snapshot)
    present = {path: after.live(file) for path, file in after.by_path.items()}
    same = {path for path, file in before.by_path.items() if present.get(path) == before.live(file)}
    pieces = [
        piece.append_column(DIFF, pa.repeat(pa.scalar(sign, pa.int64()), piece.num_rows))
        for stored, sign in ((after, 1), (before, -1))
        for file in stored.files
        if file.file_path not in same
        for piece in (placed.rows for placed in stored.scan(file, columns))
    ]
    if not pieces:
        return before.empty(columns)
    changed = consolidate_arrow(pa.concat_tables(pieces), columns)
    shown = changed.filter(pc.greater(changed.column(DIFF), 0))
    counts = shown.column(DIFF).to_pylist()
    return shown.take(pa.array([row for row, count in enumerate(counts) for _ in range(count)], pa.int64()))
