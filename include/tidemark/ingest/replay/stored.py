"""Finds the rows on `main` that a replay replaces, by producer, number of the entry and event time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Snapshot

from tidemark.iceberg.files.row_positions import PlacedRows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.maintenance.row_removal import Removal
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.iceberg.shard.damage import damage_of
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.order.entry_numbers import numbers_of
from tidemark.ingest.partitions.event_times import to_milliseconds
from tidemark.ingest.persist.inputs import bounds_of, find_times, is_touched
from tidemark.ingest.persist.time_order import find_time_order
from tidemark.ingest.replay.damaged import check_covered
from tidemark.ingest.replay.plan import find_needed, floor_times
from tidemark.ingest.replay.search import EntryBounds, Search
from tidemark.ingest.replay.unnumbered import UnnumberedRows
from tidemark.lifecycle.partitions import name_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The rows to replace, how many they are by partition, and the data files that cannot be read, with the reason."""

    removal: Removal = field(default_factory=Removal)
    rows: Counter[str] = field(default_factory=Counter)
    staying: int = 0  # rows that the plan needs, and whose entries do not come back
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_rows(self) -> bool:
        return bool(self.rows or self.damaged)


@dataclass(slots=True)
class _Chosen:
    """Rows of one file."""

    positions: list[NDArray[np.int64]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)  # by partition
    staying: int = 0


def find_replaced(head: ShardHead, snapshot: Snapshot | None, search: Search) -> Replaced:
    """Return the rows in a snapshot of ``head`` that the plan needs; none if there is no snapshot.

    A data file that cannot be read is taken away, if all of its rows come back.

    Raises:
        EntriesUnknown: If rows that may be among them bear no numbers.
        DamageNotCovered: If rows of a damaged file may not come back.
    """
    if snapshot is None:
        return Replaced()
    stored = StoredRows.in_snapshot(head.table, snapshot)
    positions: dict[str, NDArray[np.int64]] = {}
    dropped: set[str] = set()
    damaged: dict[str, str] = {}
    rows: Counter[str] = Counter()
    staying = 0
    unnumbered = UnnumberedRows(search)
    for file in stored.files:
        reads = _Reads.of(head, file, search)
        if not reads.anything:
            continue
        try:
            chosen = _scan(stored, file, search, unnumbered, reads=reads)
        except Exception:
            damage = damage_of(head.table, file, whole=True)
            if not damage:
                raise
            check_covered(head, file, search, damage)
            damaged[file.file_path] = damage
            continue
        rows += chosen.rows
        staying += chosen.staying
        if chosen.rows.total() == stored.live(file):
            dropped.add(file.file_path)
        elif chosen.positions:
            positions[file.file_path] = np.concatenate(chosen.positions)
    unnumbered.check(head.table.name()[-1])
    removal = Removal(
        dropped=frozenset(dropped | damaged.keys()),
        positions=positions,
        rows=sum(rows.values()),
        deletes=stored.deletes,
    )
    return Replaced(removal=removal, rows=rows, staying=staying, damaged=damaged)


@dataclass(frozen=True, slots=True)
class _Reads:
    """Whether a file may have rows to replace, and rows without numbers that matter."""

    numbered: bool
    unnumbered: bool

    @property
    def anything(self) -> bool:
        return self.numbered or self.unnumbered

    @classmethod
    def of(cls, head: ShardHead, file: DataFile, search: Search) -> _Reads:
        column, plan = search.rules.column, search.plan
        times = find_times(file, head.table.schema().find_field(column))
        if times is None:
            return cls(numbered=False, unnumbered=False)
        if plan.only is not None and not is_touched(times, sorted(map(bounds_of, plan.only))):
            return cls(numbered=False, unnumbered=False)
        entries = EntryBounds.of(head, file)
        ranges = [numbers for numbers in plan.numbers.values() if not numbers.is_empty]
        numbered = not entries.all_null and any(
            (entries.upper is None or entries.upper >= numbers.start)
            and (entries.lower is None or entries.lower < numbers.end)
            for numbers in ranges
        )
        # Rows of a persisted file are persisted; whatever their numbers are, only a rewound sequencer needs them.
        order_id = find_time_order(head.table, column)
        is_persisted = order_id is not None and file.sort_order_id == order_id
        unnumbered = bool(ranges) and not entries.no_null and (not is_persisted or bool(plan.rewound))
        return cls(numbered=numbered, unnumbered=unnumbered)


def _scan(stored: StoredRows, file: DataFile, search: Search, unnumbered: UnnumberedRows, *, reads: _Reads) -> _Chosen:
    """Return the rows to replace; keep those without numbers that matter."""
    chosen = _Chosen()
    for placed in stored.scan(file, (PRODUCER, BATCH, ENTRY, search.rules.column)):
        if reads.unnumbered:
            unnumbered.add(placed.rows)
        if reads.numbered:
            _choose(placed, search, chosen)
    return chosen


def _choose(placed: PlacedRows, search: Search, chosen: _Chosen) -> None:
    """Add the rows to replace among ``placed`` to ``chosen``."""
    is_timed = pc.and_(pc.is_valid(placed.rows.column(search.rules.column)), pc.is_valid(placed.rows.column(ENTRY)))
    found: list[NDArray[np.int64]] = []
    for producer in pc.unique(placed.rows.column(PRODUCER)).to_pylist():
        if (sequencer_id := search.sequencer_of(producer)) is None:
            continue
        is_own = pc.and_(pc.equal(placed.rows.column(PRODUCER), producer), is_timed)
        mask = pc.fill_null(is_own, fill_value=False).to_numpy()
        rows = placed.rows.filter(pa.array(mask))
        numbers = numbers_of(rows.column(ENTRY)).to_numpy()
        times_ms = to_milliseconds(rows.column(search.rules.column)).to_numpy(zero_copy_only=False)
        wanted = search.plan.numbers[sequencer_id]
        needed = (numbers >= wanted.start) & (numbers < wanted.end)
        needed &= find_needed(search.plan, search.rules.unit, sequencer_id, numbers, times_ms)
        if search.decoded is not None:
            is_there = search.decoded[sequencer_id].find(numbers)
            chosen.staying += int(np.count_nonzero(needed & ~is_there))
            needed &= is_there
        starts, counts = np.unique(floor_times(search.rules.unit, times_ms[needed]), return_counts=True)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            chosen.rows[name_partition(search.rules.unit, start)] += count
        found.append(placed.positions[mask][needed])
    if any(map(len, found)):
        chosen.positions.append(np.sort(np.concatenate(found)))
