"""A history of statuses: chooses the statuses of a batch that are news after the stored statuses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.manifest import DataFile

from tidemark.collections.declarations.append_only import StatusHistory
from tidemark.collections.deployment import Deployment
from tidemark.collections.staged.batches import queued_batches
from tidemark.errors import InputsGone
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.files.newest_rows import find_newest
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.time_travel import ancestry
from tidemark.iceberg.staging.branches import read_intact

_ADDING = frozenset({CommitKind.APPEND, CommitKind.FLUSH})
_KEEPING = frozenset({CommitKind.FENCE, CommitKind.ADVANCE, CommitKind.COMPACT, CommitKind.DOWNGRADE, CommitKind.SEAL})


# -- the rules -----------------------------------------------------------------------------------------------------

DROPPED, PAUSED = "dropped", "paused"

Key = tuple["Hashable", ...]
Time = int | None  # in any unit; NULL is before every time


class StatusRow(NamedTuple):
    """One status of a key."""

    key: Key
    status: str | None
    time: Time
    facts: tuple[Hashable, ...] | None = None  # a status with the facts of the last one is no news; None: always news


def is_superseded(old: str | None, by: str | None) -> bool:
    """Say whether the status ``by`` supersedes ``old``; case does not matter, and NULL is a status like any other.

    Only another ``dropped`` supersedes ``dropped``; ``paused`` does not supersede ``paused``; all other pairs do.

    Source: reference, collections_catalog_storage §4.6; but statuses of one message are compared with each other, too.
    """
    old, new = (None if status is None else status.lower() for status in (old, by))
    if old == DROPPED:
        return new == DROPPED
    return not (old == PAUSED and new == PAUSED)


def choose_news(rows: Iterable[StatusRow], stored: Mapping[Key, StatusRow]) -> list[int]:
    """Return the places, ascending, of the rows that are news after the ``stored`` statuses and after each other.

    Rows are compared in the order of their times; rows of one time in their own order.
    """
    latest = dict(stored)
    kept: list[int] = []
    for place, row in sorted(enumerate(rows), key=lambda placed: _rank(placed[1].time)):
        last = latest.get(row.key)
        if last is None or (is_superseded(last.status, row.status) and (row.facts is None or row.facts != last.facts)):
            kept.append(place)
            note(latest, row)
    return sorted(kept)


def note(latest: dict[Key, StatusRow], row: StatusRow) -> None:
    """Store ``row`` as the last status of its key, unless a later status is known; an equal time replaces."""
    last = latest.get(row.key)
    if last is None or _rank(row.time) >= _rank(last.time):
        latest.pop(row.key, None)  # else the dictionary would hold the key of the first row, too
        latest[row.key] = row


def _rank(time: Time) -> tuple[bool, int]:
    return time is not None, time or 0


# -- the stored history ----------------------------------------------------------------------------------------------


class StatusFilter:
    """Drops superseded statuses; reads each part of the stored history once.

    The filter knows stored statuses only: a status that was refused, or whose commit failed, is news the next time.
    Batches that wait for a flush by this deployment count as stored.

    ``sequence`` names a column of the key if the statuses are recorded as they happen: among those of one value there,
    a later one is stored with a later time, whatever the clock says. So a clock that was ahead once hides nothing.

    Memory: one status for each key.
    """

    def __init__(
        self, status: StatusHistory, *, collection: str, deployment: Deployment, sequence: str | None = None
    ) -> None:
        self._status, self._collection, self._deployment, self._sequence = status, collection, deployment, sequence
        self._snapshot_id: int | None = None  # up to which the history was read
        self._latest: dict[Key, StatusRow] = {}

    def of(self, status: StatusHistory) -> StatusFilter:
        """Return this filter, or a new one that has read nothing if the declaration was altered since."""
        if status == self._status:
            return self
        return StatusFilter(status, collection=self._collection, deployment=self._deployment, sequence=self._sequence)

    def choose(self, head: ShardHead, rows: pa.Table) -> pa.Table:
        """Return the rows that are news after the contents of ``head`` and after each other, in their order."""
        self._follow(head)
        latest = dict(self._latest)
        for batch in queued_batches(head, collection=self._collection, deployment=self._deployment):
            staged = read_intact(head.table, batch.branch, None, of_present_schema=False)
            self._note(latest, StoredRows.in_files(head.table, staged.files if staged else ()))
        if self._sequence is not None:
            rows = self._after(latest.values(), rows, self._status.key.index(self._sequence))
        return rows.take(pa.array(choose_news(self._read(rows), latest), pa.int64()))

    def _after(self, stored: Iterable[StatusRow], rows: pa.Table, place: int) -> pa.Table:
        """Return the rows with times after those of the stored statuses that are equal at ``place`` of the key."""
        last: dict[Hashable, int] = {}
        for each in stored:
            if each.time is not None:
                last[each.key[place]] = max(each.time, last.get(each.key[place], each.time))
        times: list[Time] = []
        for row in self._read(rows):
            before = last.get(row.key[place])
            times.append(row.time if row.time is None or before is None else max(row.time, before + 1))
        at, field = rows.schema.get_field_index(self._status.time), rows.schema.field(self._status.time)
        return rows.set_column(at, field, pa.array(times, pa.int64()).cast(field.type))

    def _follow(self, head: ShardHead) -> None:
        """Read the rows added since the last call; all rows after a removal of rows, and in the first call."""
        added = self._added_since(head)
        if added is None:
            self._latest = {}
            self._note(self._latest, StoredRows.in_contents(head))
        else:
            for files in added:
                self._note(self._latest, StoredRows.in_files(head.table, files))
        self._snapshot_id = head.contents.snapshot_id

    def _added_since(self, head: ShardHead) -> list[list[DataFile]] | None:
        """Return the files of each commit since the last call, oldest first; None if all rows have to be read again."""
        added: list[list[DataFile]] = []
        for snapshot in ancestry(head.table.metadata, head.contents.snapshot_id):
            if snapshot.snapshot_id == self._snapshot_id:
                return added[::-1]
            commit_kind = snapshot.summary["tidemark.kind"] if snapshot.summary else None
            if commit_kind in _ADDING:
                added.append(read_added_files(head.table.io, snapshot))
            elif commit_kind not in _KEEPING:  # rows were removed, or another engine wrote
                return None
        return None

    def _note(self, latest: dict[Key, StatusRow], stored: StoredRows) -> None:
        """Note the newest status of each key; of equal times the status of the later batch."""
        key, time = self._status.key, self._status.time
        pieces, order = stored.by_age([*key, self._status.column, *self._status.changes_in], [time])
        newest = find_newest(pieces, key=key, order=order)
        for row in self._read(newest) if newest is not None else ():
            note(latest, row)

    def _read(self, rows: pa.Table) -> Iterator[StatusRow]:
        keys = zip(*(rows.column(name).to_pylist() for name in self._status.key), strict=True)
        statuses = rows.column(self._status.column).to_pylist()
        facts: Iterable[tuple[Hashable, ...] | None] = [None] * rows.num_rows
        if changing := self._status.changes_in:
            facts = zip(*(rows.column(name).to_pylist() for name in changing), strict=True)
        times = rows.column(self._status.time)
        numbers = times.cast(pa.int32() if pa.types.is_date32(times.type) else pa.int64()).to_pylist()
        for key, status, time, known in zip(keys, statuses, numbers, facts, strict=True):
            text = None if status is None else str(status)
            yield StatusRow(tuple(map(_comparable, key)), text, time, known and tuple(map(_comparable, known)))


def _comparable(value: Hashable) -> Hashable:
    """Return a value that equals itself: NaN does not."""
    return value if value == value else "NaN"  # noqa: PLR0124


def refuse_if_moved(head: ShardHead, fresh: ShardHead, *, collection: str) -> None:
    """Refuse to stage statuses if other rows came after they were chosen.

    Raises ``InputsGone`` if rows were published or staged since ``head``; choose again.
    """
    if (head.main.snapshot_id, head.staged_branches) != (fresh.main.snapshot_id, fresh.staged_branches):
        raise InputsGone(f"{collection!r} got other rows while those of this batch were chosen")
