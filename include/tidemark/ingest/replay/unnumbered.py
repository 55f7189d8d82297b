"""Rows of the log that do not bear the numbers of their entries: whether a replay may have to replace some."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import NotPossible
from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.ingest.order.entry_numbers import numbers_of
from tidemark.ingest.partitions.event_times import to_milliseconds
from tidemark.ingest.replay.plan import floor_times
from tidemark.ingest.replay.search import Search
from tidemark.lifecycle.partitions import name_partition


class EntriesUnknown(NotPossible):
    """Rows that a replay may have to replace do not bear the numbers of their entries."""


class _Unnumbered(NamedTuple):
    """Rows of a sequencer without the numbers of their entries: of one batch and partition."""

    sequencer_id: int
    batch: int
    partition: str
    time_ms: int  # the latest event time


class UnnumberedRows:
    """Rows without numbers, and what bounds their numbers: batches do not overlap, and rows bear their starts."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._found: Counter[_Unnumbered] = Counter()
        self._firsts: dict[int, set[int]] = {}  # by sequencer, of each batch with numbers one of these

    def add(self, rows: pa.Table) -> None:
        for producer in pc.unique(rows.column(PRODUCER)).to_pylist():
            if (sequencer_id := self._search.sequencer_of(producer)) is None:
                continue
            own = rows.filter(pc.fill_null(pc.equal(rows.column(PRODUCER), producer), fill_value=False))
            numbered = own.filter(pc.is_valid(own.column(ENTRY)))
            numbered = pa.table({BATCH: numbered.column(BATCH), ENTRY: numbers_of(numbered.column(ENTRY))})
            firsts = numbered.group_by(BATCH).aggregate([(ENTRY, "min")]).column(f"{ENTRY}_min").to_pylist()
            self._firsts.setdefault(sequencer_id, set()).update(firsts)
            self._add_unnumbered(own.filter(pc.is_null(own.column(ENTRY))), sequencer_id)

    def _add_unnumbered(self, rows: pa.Table, sequencer_id: int) -> None:
        rules = self._search.rules
        rows = rows.filter(pc.is_valid(rows.column(rules.column)))
        if not rows.num_rows:
            return
        times_ms = to_milliseconds(rows.column(rules.column))
        starts = pa.array(floor_times(rules.unit, times_ms.to_numpy(zero_copy_only=False)))
        grouped = pa.table({"batch": rows.column(BATCH), "start": starts, "time": times_ms}).group_by(
            ["batch", "start"]
        )
        for each in grouped.aggregate([("time", "max"), ("time", "count")]).to_pylist():
            partition = name_partition(rules.unit, each["start"])
            self._found[_Unnumbered(sequencer_id, each["batch"], partition, each["time_max"])] += each["time_count"]

    def check(self, collection: str) -> None:
        """Raise ``EntriesUnknown`` if the plan may need some of the rows."""
        plan = self._search.plan
        may_be_needed: Counter[str] = Counter()
        begins: dict[int, int] = {}  # by sequencer the first number from which on none of them is needed
        for each, count in self._found.items():
            numbers = plan.numbers[each.sequencer_id]
            after = (first for first in self._firsts[each.sequencer_id] if first > each.batch)
            last = min(min(after, default=numbers.end), numbers.end) - 1
            is_within = each.batch < numbers.end and last >= numbers.start
            if is_within and plan.filter_of(each.partition, each.sequencer_id).needs_row(last, each.time_ms):
                may_be_needed[each.partition] += count
                begins[each.sequencer_id] = max(begins.get(each.sequencer_id, 0), last + 1)
        if may_be_needed:
            named = ", ".join(f"{count} of {name}" for name, count in sorted(may_be_needed.items())[:5])
            later = [f"--from {id_}:{n}" for id_, n in sorted(begins.items()) if n < plan.numbers[id_].end]
            begin = f"begin later, with {' '.join(later)}, or " if len(later) == len(begins) else ""
            raise EntriesUnknown(
                f"{sum(may_be_needed.values())} rows that may have to be replaced came before rows bore the numbers of "
                f"their entries: {named}",
                hint=f"persist them, with `tidemark buffer persist {collection} --now`, and replay what is not "
                f"persisted; or {begin}choose other partitions",
            )
