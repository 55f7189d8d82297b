"""Which rows on `main` a replay looks for, and what a manifest says of the numbers in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile

from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.order.entry_numbers import NUMBER_BITS, NUMBERS
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.replay.entries import NumberRuns
from tidemark.lifecycle.replay_plan import ReplayPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which rows are meant."""

    log: BufferLog
    plan: ReplayPlan
    rules: PartitionRules
    decoded: Mapping[int, NumberRuns] | None = None  # entries whose rows come back, by sequencer; None: all
    undecoded: Mapping[int, set[int]] = field(default_factory=dict)  # entries that are there, and whose rows stay

    def sequencer_of(self, producer: str | None) -> int | None:
        """Return the sequencer of a producer; None if the plan reads none of that name."""
        found = None if producer is None else self.log.sequencer_of(producer)
        return found if found in self.plan.numbers else None


@dataclass(frozen=True, slots=True)
class EntryBounds:
    """What the manifest says of the numbers of entries in a file: None is unknown, as where logs are mixed."""

    lower: int | None
    upper: int | None
    nulls: int | None
    rows: int

    @classmethod
    def of(cls, head: ShardHead, file: DataFile) -> EntryBounds:
        field_id = head.table.schema().find_field(ENTRY).field_id
        bounds = [(each or {}).get(field_id) for each in (file.lower_bounds, file.upper_bounds)]
        entries = [None if bound is None else int.from_bytes(bound, "little", signed=True) for bound in bounds]
        is_one_log = len({None if entry is None else entry >> NUMBER_BITS for entry in entries}) == 1
        lower, upper = (None if entry is None or not is_one_log else entry & NUMBERS for entry in entries)
        return cls(lower=lower, upper=upper, nulls=(file.null_value_counts or {}).get(field_id), rows=file.record_count)

    @property
    def all_null(self) -> bool:
        return self.nulls == self.rows

    @property
    def no_null(self) -> bool:
        return self.nulls == 0
