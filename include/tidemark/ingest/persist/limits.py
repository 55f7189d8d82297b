"""The declared limits of open rows: above the soft one the oldest are persisted, above the hard one an ingest waits."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.errors import HardLimit
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.partitions.state import PartitionRules, Partitions
from tidemark.ingest.persist.inputs import bounds_of, find_times, is_touched
from tidemark.ingest.persist.time_order import find_time_order
from tidemark.lifecycle.chunks import Action, Chunk
from tidemark.lifecycle.policy import Decision, PartitionChunks, Snapshot, decide


class OpenRows(NamedTuple):
    """What lies in open files that a persist would take, or in memory."""

    rows: int
    size_bytes: int

    def add_held(self, held: OpenRows) -> OpenRows:
        """Add rows in memory, with the size that they will have in a file: that of those that lie in one already."""
        size_bytes = held.rows * self.size_bytes // self.rows if self.rows else held.size_bytes
        return OpenRows(self.rows + held.rows, self.size_bytes + size_bytes)

    @classmethod
    def of(cls, head: ShardHead, column: str, partitions: Partitions) -> OpenRows:
        """Count the open files that may have open rows of partitions: nothing ever takes others, so they are no limit.

        Rows without an event time are such others, and rows of which the state does not know yet.
        """
        order_id, field = find_time_order(head.table, column), head.table.schema().find_field(column)
        unfinished = sorted(bounds_of(n) for n, each in partitions.state.partitions.items() if each.windows.unpersisted)
        files = [
            file
            for snapshot in (head.contents, head.open)
            if snapshot is not None
            for file in read_data_files(head.table.io, snapshot).values()
            if (order_id is None or file.sort_order_id != order_id)
            and (times := find_times(file, field)) is not None
            and is_touched(times, unfinished)
        ]
        return cls(sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files))


def check_hard_limit(head: ShardHead, rules: PartitionRules, *, collection: str) -> None:
    """Raise ``HardLimit`` if so much is open that no more rows are to come."""
    _, hard = rules.lifecycle.limits
    if hard is None:
        return
    present = OpenRows.of(head, rules.column, Partitions.parse(head.table.properties, rules.column, rules.unit))
    amount = present.rows if hard.unit == "rows" else present.size_bytes
    if amount >= hard.amount:
        raise HardLimit(
            f"{collection!r} has {amount:,} open {hard.unit}, and `hard_limit` is {hard.amount:,}: what waits stays in "
            "the buffer",
            hint=f"the DAG `buffer_lifecycle` persists them, or `tidemark buffer persist {collection} --now`; then "
            "ingest again",
        )


NOTHING_HELD: Final = OpenRows(0, 0)


def decide_open(snapshot: Snapshot, rules: LifecycleRules, *, now_ms: int) -> list[Decision]:
    """Return what ``decide`` returns; above the soft limit rows are persisted that would be merged otherwise.

    The open rows of a partition are one chunk, whatever files they lie in: each pass would merge them anew.
    """
    decided = decide(snapshot, rules, now_ms=now_ms)
    if rules.limits[0] is None:
        return decided
    persists = decide(snapshot, rules, now_ms=now_ms, slots=0)
    taken = {each.partition for each in persists}
    return [*persists, *(each for each in decided if each.action is Action.COMPACT and each.partition not in taken)]


def as_chunks(
    head: ShardHead, partitions: Partitions, rules: PartitionRules, held: OpenRows = NOTHING_HELD
) -> dict[str, PartitionChunks]:
    """Return each partition with its open rows as one chunk; ``held`` is what lies in memory, and in no file yet.

    Without a limit a chunk says nothing of sizes, and its rows are at most so many. With one, each partition has its
    share of what lies in open files and in memory, since these hold rows of several partitions.
    """
    found = partitions.state.partitions
    has_limit = rules.lifecycle.limits != (None, None)
    present = OpenRows.of(head, rules.column, partitions).add_held(held) if has_limit else NOTHING_HELD
    total = max(1, sum(window.rows for each in found.values() for window in each.windows.unpersisted))
    chunks, before = {}, 0
    for name, each in found.items():
        windows = each.windows.unpersisted
        after = before + sum(window.rows for window in windows)
        rows, size_bytes = (amount * after // total - amount * before // total for amount in present)
        rows, before = rows if has_limit else after - before, after
        chunk = Chunk(
            id=0,
            rows=rows,
            size_bytes=size_bytes,
            start_ms=min((window.start_ms for window in windows), default=0),
            last_write_ms=each.windows.last_ms,
        )
        chunks[name] = PartitionChunks(windows=each.windows, chunks=[chunk] if windows else [])
    return chunks
