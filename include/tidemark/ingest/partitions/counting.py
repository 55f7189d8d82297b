"""Counts rows into partitions in the commit that makes them visible, with those that the state does not know so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.collections.declarations.lifecycle import Late
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.partitions.catch_up import read_arrivals
from tidemark.ingest.partitions.event_times import EventTimes
from tidemark.ingest.partitions.state import PROPERTY, Arrived, Changes, PartitionRules, Partitions
from tidemark.ingest.persist.duplicates import MERGED_FIELDS
from tidemark.interval import EARLIEST_MS, LATEST_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The state that a commit leaves, and what changed in it."""

    partitions: Partitions
    changes: Changes
    is_new: bool  # whether the state is worth a commit of its own

    @property
    def properties(self) -> dict[str, str]:
        return {PROPERTY: str(self.partitions)}


def count_rows(
    head: ShardHead,
    rules: PartitionRules,
    log: BufferLog,
    names: Sequence[BatchName] = (),
    arrived: Mapping[int, Iterable[Arrived]] | None = None,
    *,
    now_ms: int,
) -> Counted:
    """Return what a commit of rows, by the time in ms that they ``arrived``, leaves under these names on ``head``."""
    before = Partitions.parse(head.table.properties, rules.column, rules.unit)
    missing = before.missing(head.state.ledgers)
    found = read_arrivals(head, missing, log, judging(rules, None))
    if not before.known and MERGED_FIELDS in head.table.properties:  # another engine may have rewritten merged rows
        found = [each._replace(may_be_merged=True) for each in found]
    added, reopened, late_rows = before.add(found, now_ms=now_ms, rules=rules.lifecycle)
    for arrived_ms, rows in sorted((arrived or {}).items()):
        added, reopened_then, late_then = added.add(rows, now_ms=arrived_ms, rules=rules.lifecycle)
        reopened, late_rows = reopened + reopened_then, late_rows + late_then
    known = dict(head.state.ledgers)
    for name in names:  # the commit itself refuses those that another run published
        known[name.producer] = known.get(name.producer, Ledger()).add_free([name.range])
    changes = Changes(reopened=tuple(reopened), late_rows=late_rows)
    return Counted(partitions=replace(added, known=known), changes=changes, is_new=bool(missing))


def judging(
    rules: PartitionRules, passed_ms: int | None, *, since_ms: int = EARLIEST_MS, now_ms: int = LATEST_MS
) -> EventTimes:
    """Return what judges rows that arrive in ``[since_ms, now_ms]``, when the state has passed that event time."""
    keeps_late = rules.lifecycle.late is Late.APPEND
    return EventTimes(
        column=rules.column,
        unit=rules.unit,
        max_ahead_ms=rules.lifecycle.max_ahead_ms,
        passed_ms=None if keeps_late else passed_ms,
        since_ms=since_ms,
        now_ms=now_ms,
    )
