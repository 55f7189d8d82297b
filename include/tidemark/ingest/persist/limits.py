"""The declared limits of open rows: above the soft one the oldest are persisted, above the hard one an ingest waits."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import HardLimit
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.partitions.state import PartitionRules, Partitions
from tidemark.ingest.persist.time_order import read_open_files
from tidemark.lifecycle.chunks import Chunk
from tidemark.lifecycle.policy import PartitionChunks


class OpenRows(NamedTuple):
    """What lies in open files."""

    rows: int
    size_bytes: int

    @classmethod
    def of(cls, head: ShardHead, column: str) -> OpenRows:
        files = read_open_files(head, column)
        return cls(sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files))


def check_hard_limit(head: ShardHead, rules: PartitionRules, *, collection: str) -> None:
    """Raise ``HardLimit`` if so much is open that no more rows are to come."""
    _, hard = rules.lifecycle.limits
    if hard is None:
        return
    present = OpenRows.of(head, rules.column)
    amount = present.rows if hard.unit == "rows" else present.size_bytes
    if amount >= hard.amount:
        raise HardLimit(
            f"{collection!r} has {amount:,} open {hard.unit}, and `hard_limit` is {hard.amount:,}: what waits stays in "
            "the buffer",
            hint=f"the DAG `buffer_lifecycle` persists them, or `tidemark buffer persist {collection} --now`; then "
            "ingest again",
        )


def as_chunks(head: ShardHead, partitions: Partitions, rules: PartitionRules) -> dict[str, PartitionChunks]:
    """Return each partition with its open rows as one chunk.

    Without a limit a chunk says nothing of rows and sizes. With one, each partition has its share of what lies in open
    files, since these hold rows of several partitions.
    """
    found = partitions.state.partitions
    present = OpenRows(0, 0) if rules.lifecycle.limits == (None, None) else OpenRows.of(head, rules.column)
    counts = {name: sum(window.rows for window in each.windows.unpersisted) for name, each in found.items()}
    total = max(1, sum(counts.values()))
    return {
        name: PartitionChunks(
            windows=each.windows,
            chunks=[
                Chunk(
                    id=0,
                    rows=-(-present.rows * counts[name] // total),
                    size_bytes=-(-present.size_bytes * counts[name] // total),
                    start_ms=min(window.start_ms for window in each.windows.unpersisted),
                    last_write_ms=each.windows.last_ms,
                )
            ]
            if counts[name]
            else [],
        )
        for name, each in found.items()
    }
