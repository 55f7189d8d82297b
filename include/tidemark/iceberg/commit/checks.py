"""The checks of a commit: pure functions of the fresh head and of the batches to publish."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from tidemark.errors import InputsGone, InvalidBatch, RangeOverlap, UpperMismatch
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state import ShardKind, ShardState

_LONG = struct.Struct("<q")


def check_upper(state: ShardState, lower: Frontier, new_upper: Frontier) -> None:
    """Refuse a publish whose ``[lower, new_upper)`` does not start at the present upper.

    Raises:
        UpperMismatch: If the upper has moved.
        InvalidBatch: If the interval is empty or reversed.
    """
    if state.upper != lower:
        raise UpperMismatch(lower, state.upper)
    if not lower < new_upper:
        raise InvalidBatch(f"[{lower}, {new_upper}) is empty or reversed")


def bounds(file: DataFile, schema: Schema, column: str) -> tuple[int, int]:
    """Return the smallest and largest value of a long column. Raises ``InvalidBatch`` if the file has no statistics."""
    field_id = schema.find_field(column).field_id
    lower, upper = file.lower_bounds.get(field_id), file.upper_bounds.get(field_id)
    if lower is None or upper is None:
        raise InvalidBatch(f"{file.file_path} has no statistics for {column}: write it with metrics for every column")
    return _LONG.unpack(lower)[0], _LONG.unpack(upper)[0]


def check_times(
    batches: Sequence[Batch], schema: Schema, *, layout: ShardKind, lower: Frontier, new_upper: Frontier
) -> int | None:
    """Check the times and diffs of all files; return the one time of a differential batch (None if it has no rows).

    A differential batch has one time, because a snapshot of main is the contents at one time. Files added to main
    hold ``_diff`` = 1, files for the change log alone hold -1.

    Raises ``InvalidBatch`` if a time lies outside ``[lower, new_upper)``, or a diff is not what its place demands.
    """
    if layout is ShardKind.APPEND_ONLY:
        return None
    times: set[int] = set()
    added = [(file, 1) for batch in batches for file in batch.added]
    retracted = [(file, -1) for batch in batches for file in batch.retracted]
    for file, diff in added + retracted:
        first, last = bounds(file, schema, TIME)
        if first < lower or not last < new_upper:
            raise InvalidBatch(
                f"{file.file_path} has times {first} to {last}, outside [{lower}, {new_upper})",
                hint="stamp the batch with a time from lower on and below the new upper",
            )
        times.update((first, last))
        if layout is ShardKind.DIFFERENTIAL and bounds(file, schema, DIFF) != (diff, diff):
            raise InvalidBatch(f"{file.file_path} must hold {DIFF} = {diff} alone")
    if layout is ShardKind.LOG:
        return None
    if len(times) > 1:
        raise InvalidBatch(f"a batch of a differential shard has one time, this one has {min(times)} to {max(times)}")
    return times.pop() if times else None


def check_schema(batches: Sequence[Batch], schema_id: int, *, shard: str) -> None:
    """Raise ``InputsGone`` if a batch was made for another schema than ``schema_id``; compute the batch again."""
    for batch in batches:
        if batch.schema_id is not None and batch.schema_id != schema_id:
            raise InputsGone(
                f"shard {shard!r} has schema {schema_id} by now, the batch was made for schema {batch.schema_id}",
                hint="compute it again",
            )


def check_deleted_from(batches: Sequence[Batch], live: Collection[str], *, shard: str) -> None:
    """Raise ``InputsGone`` if maintenance has rewritten a file that deletes name; compute the batch again."""
    missing = {path for batch in batches for path in batch.deleted_from} - set(live)
    if missing:
        raise InputsGone(
            f"{len(missing)} data files of shard {shard!r} were rewritten since they were read, "
            f"for example {min(missing)}",
            hint="compute the corrections again",
        )


def check_branches(batches: Sequence[Batch], present: Mapping[str, int], *, shard: str) -> None:
    """Raise ``InputsGone`` if somebody has published, discarded or replaced a batch on its staging branch since."""
    for batch in batches:
        for branch, snapshot_id in batch.branches:
            if present.get(branch) != snapshot_id:
                raise InputsGone(f"staging branch {branch!r} of shard {shard!r} is gone or was staged again")


def add_ranges(ledgers: Mapping[str, Ledger], batches: Sequence[Batch], *, shard: str) -> dict[str, Ledger]:
    """Return the ledgers with the ranges of all batches; ranges that touch become one.

    Raises ``RangeOverlap`` if a batch's range shares a number with a published range; the message names both.
    """
    merged = dict(ledgers)
    for batch in batches:
        if batch.producer is None or batch.range is None:
            continue
        ledger = merged.get(batch.producer, Ledger())
        if overlap := ledger.overlaps(batch.range):
            raise RangeOverlap(
                f"range {batch.range} of producer {batch.producer!r} overlaps {', '.join(map(str, overlap))}, "
                f"published in {shard!r}"
            )
        merged[batch.producer] = ledger.add(batch.range)
    return merged
