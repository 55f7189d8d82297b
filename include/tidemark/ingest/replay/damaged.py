"""Data files that cannot be read: taken away if all of their rows come back, as far as their statistics tell."""

from __future__ import annotations

from pyiceberg.manifest import DataFile

from tidemark.errors import NotPossible
from tidemark.iceberg.shard.column_names import PRODUCER
from tidemark.iceberg.shard.head import ShardHead
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.persist.inputs import bounds_of, find_times
from tidemark.ingest.replay.search import EntryBounds, Search
from tidemark.interval import Interval
from tidemark.lifecycle.partitions import name_partition

MOST_PARTITIONS = 10_000  # that are looked at one by one


class DamageNotCovered(NotPossible):
    """A damaged file may hold rows that a replay does not bring back."""


def check_covered(head: ShardHead, file: DataFile, search: Search, damage: str) -> None:
    """Raise ``DamageNotCovered`` if rows of a damaged file may not come back, as far as its statistics tell."""
    if not _is_covered(head, file, search):
        raise DamageNotCovered(
            f"{file.file_path} {damage}, and may hold rows that this replay does not bring back",
            hint="replay more: all partitions, and with --from what is persisted; or restore the file from a backup",
        )


def _is_covered(head: ShardHead, file: DataFile, search: Search) -> bool:
    entries, column = EntryBounds.of(head, file), head.table.schema().find_field(search.rules.column)
    times, nulls = find_times(file, column), (file.null_value_counts or {}).get(column.field_id)
    if not entries.no_null or entries.lower is None or entries.upper is None or nulls != 0 or times is None:
        return False
    sequencers = _sequencers_in(head, file, search.log)
    if not sequencers or not sequencers <= search.plan.numbers.keys():
        return False
    names = _partitions_in(times, search.rules)
    return bool(names) and all(
        search.plan.numbers[id_].start <= entries.lower
        and entries.upper < search.plan.numbers[id_].end
        and not any(entries.lower <= number <= entries.upper for number in search.undecoded.get(id_, ()))
        # The smallest number and time are the least needed.
        and search.plan.filter_of(name, id_).needs_row(entries.lower, max(times.start_ms, bounds_of(name).start_ms))
        for id_ in sequencers
        for name in names
    )


def _sequencers_in(head: ShardHead, file: DataFile, log: BufferLog) -> set[int]:
    """Return the sequencers whose rows a file holds; none if there may be rows of anybody else."""
    field_id = head.table.schema().find_field(PRODUCER).field_id
    lower, upper = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    # Bounds of long names are cut: the lower one is still not above the names, the upper one not below.
    known = [
        producer
        for producer in head.state.ledgers
        if (lower is None or lower <= producer.encode()) and (upper is None or producer.encode() <= upper)
    ]
    found = {log.sequencer_of(producer) for producer in known}
    return set() if None in found else {id_ for id_ in found if id_ is not None}


def _partitions_in(times: Interval, rules: PartitionRules) -> list[str]:
    """Return the partitions that an interval touches; none if they are too many to look at."""
    names: list[str] = []
    at = times.start_ms
    while at < times.end_ms and len(names) <= MOST_PARTITIONS:
        names.append(name_partition(rules.unit, at))
        at = bounds_of(names[-1]).end_ms
    return names if at >= times.end_ms else []
