"""Leaves out of a batch of statuses what is no news, as the stored history shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.collections.append.supersession import StatusRow, choose_news, note
from tidemark.collections.staged.batches import queued_batches
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.files.newest_rows import find_newest
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.time_travel import ancestry
from tidemark.iceberg.staging.branches import read_intact

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from pyiceberg.manifest import DataFile

    from tidemark.collections.append.supersession import Key, Seen
    from tidemark.collections.declarations.append_only import StatusHistory
    from tidemark.iceberg.shard.head import ShardHead

_ADDING = frozenset({CommitKind.APPEND, CommitKind.FLUSH})
_KEEPING = frozenset({CommitKind.FENCE, CommitKind.ADVANCE, CommitKind.COMPACT, CommitKind.DOWNGRADE, CommitKind.SEAL})


class StatusFilter:
    """Chooses among the rows of one collection; what it has read of the history it need not read again.

    It knows only what is stored: a status that was not written, because it was refused or the commit was lost, is news
    the next time. What this deployment has staged counts as stored.

    Memory: one status for each key.
    """

    def __init__(self, status: StatusHistory, *, collection: str, generation: int) -> None:
        self._status, self._collection, self._generation = status, collection, generation
        self._snapshot_id: int | None = None  # up to which the history was read
        self._latest: dict[Key, Seen] = {}

    def choose(self, head: ShardHead, rows: pa.Table) -> pa.Table:
        """Return the rows that are news after the contents of ``head`` and after each other, in their order."""
        self._follow(head)
        latest = dict(self._latest)
        for each in queued_batches(head, collection=self._collection, generation=self._generation):
            staged = read_intact(head.table, each.branch, None, of_present_schema=False)
            self._note(latest, head, staged.files if staged else ())
        return rows.take(pa.array(choose_news(self._read(rows), latest), pa.int64()))

    def _follow(self, head: ShardHead) -> None:
        """Read what was added since the last look, or everything if rows were taken away or this is the first one."""
        added = self._added_since(head)
        if added is None:
            self._latest = {}
            self._note_newest(self._latest, StoredRows.in_contents(head))
        else:
            for files in added:
                self._note(self._latest, head, files)
        self._snapshot_id = head.contents.snapshot_id

    def _added_since(self, head: ShardHead) -> list[list[DataFile]] | None:
        """Return the files of each commit since the last look, oldest first; None if that cannot be told."""
        added: list[list[DataFile]] = []
        for snapshot in ancestry(head.table.metadata, head.contents.snapshot_id):
            if snapshot.snapshot_id == self._snapshot_id:
                return added[::-1]
            kind = snapshot.summary["tidemark.kind"] if snapshot.summary else None
            if kind in _ADDING:
                added.append(read_added_files(head.table.io, snapshot))
            elif kind not in _KEEPING:  # rows were taken away, or another engine wrote
                return None
        return None

    def _note(self, latest: dict[Key, Seen], head: ShardHead, files: Iterable[DataFile]) -> None:
        self._note_newest(latest, StoredRows.in_files(head.table, files))

    def _note_newest(self, latest: dict[Key, Seen], stored: StoredRows) -> None:
        """Take the newest status of each key; of equal times the one of the later batch."""
        key, time = self._status.key, self._status.time
        pieces, order = stored.by_age([*key, self._status.column], [time])
        newest = find_newest(pieces, key=key, order=order)
        for row in self._read(newest) if newest is not None else ():
            note(latest, row)

    def _read(self, rows: pa.Table) -> Iterator[StatusRow]:
        keys = zip(*(rows.column(name).to_pylist() for name in self._status.key), strict=True)
        statuses = rows.column(self._status.column).to_pylist()
        times = _whole(rows.column(self._status.time)).to_pylist()
        for key, status, time in zip(keys, statuses, times, strict=True):
            yield StatusRow(tuple(map(_comparable, key)), None if status is None else str(status), time)


def _whole(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.int32() if pa.types.is_date32(times.type) else pa.int64())


def _comparable(value: Hashable) -> Hashable:
    """Return a value that equals itself: NaN does not."""
    return value if value == value else "NaN"  # noqa: PLR0124
