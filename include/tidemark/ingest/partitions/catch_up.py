"""Finds rows that the state of partitions does not know: what a flush published, or was there before the state was.

The rows bear their producers and batches, and the ledgers say which of these are published; so nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from tidemark.iceberg.shard.column_names import BATCH, ENTRY, PRODUCER
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import RETRIED, RETRIED_ROWS, ROWS_BITS, BufferLog
from tidemark.ingest.order.entry_numbers import numbers_of
from tidemark.ingest.partitions.arrivals import Arrival, Arrivals
from tidemark.ingest.partitions.event_times import EventTimes, to_milliseconds
from tidemark.ingest.partitions.state import Arrived
from tidemark.ingest.persist.time_order import find_time_order


def read_arrivals(head: ShardHead, missing: Mapping[str, Ledger], log: BufferLog, times: EventTimes) -> list[Arrived]:
    """Return the accepted rows of the ``missing`` numbers, by producer; those without an event time do not count.

    Rows in files with the time order are persisted, whoever persisted them. Only four columns are read, of files that
    may have such rows. Raises ``CorruptState`` if one of these files is damaged.
    """
    missing = _by_rows(missing)
    if not missing:
        return []
    first = min(ledger.ranges[0].start for ledger in missing.values())
    producers = ", ".join(f"'{producer}'" for producer in sorted(missing))  # no name has a quote
    row_filter = parse(f"{PRODUCER} in ({producers}) and {BATCH} >= {first}")
    snapshots = [snapshot for snapshot in (head.contents, head.open) if snapshot is not None]
    scans = [head.table.scan(row_filter=row_filter, snapshot_id=snapshot.snapshot_id) for snapshot in snapshots]
    order_id = find_time_order(head.table, times.column)
    found: dict[tuple[bool, str], Arrivals] = {}
    with naming_damage(lambda: head):
        tasks = [*chain.from_iterable(scan.plan_files() for scan in scans)]
        for is_persisted in (False, True):
            chosen = [t for t in tasks if is_persisted is (order_id is not None and t.file.sort_order_id == order_id)]
            for rows in _scan(head, chosen, row_filter, times.column):
                for producer in pc.unique(rows.column(PRODUCER)).to_pylist():
                    of_producer = rows.filter(pc.equal(rows.column(PRODUCER), producer))
                    counted = _count(of_producer, missing[producer], times, is_persisted=is_persisted)
                    place = is_persisted, producer
                    found[place] = found.get(place, Arrivals()).add(Arrivals(partitions=counted))
    return [
        Arrived(log.sequencer_of(producer), arrivals.partitions, is_persisted)
        for (is_persisted, producer), arrivals in found.items()
    ]


def _scan(
    head: ShardHead, tasks: Sequence[FileScanTask], row_filter: BooleanExpression, column: str
) -> Iterator[pa.RecordBatch]:
    schema = head.table.schema()
    columns = [name for name in (column, PRODUCER, BATCH, ENTRY) if name in schema.column_names]
    scan = ArrowScan(
        head.table.metadata, head.table.io, projected_schema=schema.select(*columns), row_filter=row_filter
    )
    return scan.to_record_batches(tasks) if tasks else iter(())


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


def _count(rows: pa.RecordBatch, missing: Ledger, times: EventTimes, *, is_persisted: bool) -> dict[str, Arrival]:
    batches = rows.column(BATCH)
    chosen = [batch for batch in pc.unique(batches).to_pylist() if missing.covers(Range(batch, batch + 1))]
    at = to_milliseconds(pa.chunked_array([rows.column(times.column)]))
    is_counted = pc.and_(pc.is_in(batches, pa.array(chosen, batches.type)), pc.is_valid(at))
    # What is persisted ends with its last row, if that is known: later rows of the same batch may be open.
    has_numbers = is_persisted and ENTRY in rows.schema.names and not rows.column(ENTRY).null_count
    numbers = numbers_of(rows.column(ENTRY)) if has_numbers else batches
    found = times.count(numbers.filter(is_counted), at.filter(is_counted))
    return found if has_numbers else {name: _up_to_the_end(arrival, missing) for name, arrival in found.items()}


def _up_to_the_end(arrival: Arrival, missing: Ledger) -> Arrival:
    """Return the arrival up to the end of its last batch: rows bear the starts of batches alone."""
    (last,) = missing.overlaps(Range(arrival.end - 1, arrival.end))
    return arrival._replace(end=last.end)
