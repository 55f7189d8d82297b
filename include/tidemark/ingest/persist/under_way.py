"""Persists that other passes have under way: what they have read is left to them, as long as they are alive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.leases.holding import seems_alive
from tidemark.iceberg.leases.table import read_leases
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.partitions.state import Partitions
from tidemark.ingest.persist.inputs import bounds_of, find_times, is_touched, merge_intervals
from tidemark.interval import time_text
from tidemark.lifecycle.policy import Decision
from tidemark.settings import Settings


class Other(NamedTuple):
    """A persist of one partition by a living process."""

    partition: str
    operation: str
    by: str  # host and process
    since_ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "operation": self.operation,
            "by": self.by,
            "since": time_text(self.since_ms),
        }


def find_others(partitions: Partitions, settings: Settings, *, own_lease: str) -> list[Other]:
    """Return the persists under way of other living processes; those of a dead one are anybody's.

    Raises ``Unreachable`` if the database of the leases does not answer.
    """
    begun = {name: flush for name, flush in partitions.under_way.items() if flush.lease not in ("", own_lease)}
    if not begun:
        return []
    leases, now_ms = read_leases(settings)
    alive = {lease.id: lease for lease in leases if seems_alive(lease, now_ms)}
    return [
        Other(name, flush.operation_id, alive[flush.lease].writer, flush.started_ms)
        for name, flush in sorted(begun.items())
        if flush.lease in alive
    ]


def share_files(head: ShardHead, column: str, decided: Iterable[Decision], others: Iterable[Other]) -> set[str]:
    """Return the decided partitions that may have rows in a file which one of the ``others`` has read.

    A pass takes a file whole, and whoever takes it first leaves the other one's work to be thrown away.
    """
    busy = sorted(bounds_of(each.partition) for each in others)
    field = head.table.schema().find_field(column)
    files = [
        times
        for snapshot in (head.contents, head.open)
        if snapshot is not None
        for file in read_data_files(head.table.io, snapshot).values()
        if (times := find_times(file, field)) is not None and is_touched(times, busy)
    ]
    taken = merge_intervals(files)
    return {each.partition for each in decided if is_touched(bounds_of(each.partition), taken)}
