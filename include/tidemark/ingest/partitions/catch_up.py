"""Finds rows that the state of partitions does not know: what a flush published, or was there before the state was.

The rows bear their producers and batches, and the ledgers say which of these are published; so nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import RETRIED, RETRIED_ROWS, ROWS_BITS, BufferLog
from tidemark.ingest.partitions.arrivals import Arrival, Arrivals
from tidemark.ingest.partitions.event_times import EventTimes, to_milliseconds
from tidemark.ingest.partitions.state import Arrived


def read_arrivals(head: ShardHead, missing: Mapping[str, Ledger], log: BufferLog, times: EventTimes) -> list[Arrived]:
    """Return the accepted rows of the ``missing`` numbers, by producer; those without an event time do not count.

    Only three columns are read, of files that may have such rows.
    """
    missing = _by_rows(missing)
    if not missing:
        return []
    first = min(ledger.ranges[0].start for ledger in missing.values())
    producers = ", ".join(f"'{producer}'" for producer in sorted(missing))  # no name has a quote
    scans = [
        head.table.scan(
            row_filter=f"{PRODUCER} in ({producers}) and {BATCH} >= {first}",
            selected_fields=(times.column, PRODUCER, BATCH),
            snapshot_id=snapshot.snapshot_id,
        )
        for snapshot in (head.contents, head.open)
        if snapshot is not None
    ]
    found: dict[str, Arrivals] = {}
    for rows in chain.from_iterable(scan.to_arrow_batch_reader() for scan in scans):
        for producer in pc.unique(rows.column(PRODUCER)).to_pylist():
            of_producer = rows.filter(pc.equal(rows.column(PRODUCER), producer))
            counted = Arrivals(partitions=_count(of_producer, missing[producer], times))
            found[producer] = found.get(producer, Arrivals()).add(counted)
    return [Arrived(log.sequencer_of(producer), arrivals.partitions) for producer, arrivals in found.items()]


def _by_rows(missing: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """Return the numbers as rows bear them: a row that was retried by itself bears its entry's."""
    found: dict[str, Ledger] = {}
    for name, ledger in missing.items():
        producer, numbers = name, list(ledger.ranges)
        if name.endswith(RETRIED_ROWS):
            producer = name.removesuffix(RETRIED_ROWS) + RETRIED
            numbers = [Range(start >> ROWS_BITS, ((end - 1) >> ROWS_BITS) + 1) for start, end in ledger.ranges]
        found[producer] = found.get(producer, Ledger()).add_free(numbers)
    return found


def _count(rows: pa.RecordBatch, missing: Ledger, times: EventTimes) -> dict[str, Arrival]:
    batches = rows.column(BATCH)
    chosen = [batch for batch in pc.unique(batches).to_pylist() if missing.covers(Range(batch, batch + 1))]
    at = to_milliseconds(pa.chunked_array([rows.column(times.column)]))
    is_counted = pc.and_(pc.is_in(batches, pa.array(chosen, batches.type)), pc.is_valid(at))
    found = times.count(batches.filter(is_counted), at.filter(is_counted))
    return {name: _up_to_the_end(arrival, missing) for name, arrival in found.items()}


def _up_to_the_end(arrival: Arrival, missing: Ledger) -> Arrival:
    """Return the arrival up to the end of its last batch: rows bear the starts of batches alone."""
    (last,) = missing.overlaps(Range(arrival.end - 1, arrival.end))
    return arrival._replace(end=last.end)
