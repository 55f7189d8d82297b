"""Rows that did not parse, kept beside their collection with the reason: nothing is lost, nothing wrong is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256

import pyarrow as pa
from pyiceberg.expressions.parser import parse

from tidemark.clock import Clock
from tidemark.collections.append.append import append_rows
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX
from tidemark.collections.deployment import Deployment
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.types import Column, Primitive
from tidemark.collections.staged.batches import BatchName, queued_batches
from tidemark.errors import CorruptState, RangeOverlap
from tidemark.iceberg.reading.arrow import scan_snapshot
from tidemark.iceberg.shard.layout import BATCH, PRODUCER
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

_DIGITS, _LONGEST_PRODUCER = 12, 100
COLUMNS = (
    Column("file", Primitive("string")),
    Column("row", Primitive("bigint")),  # from 1, without the header
    Column("reason", Primitive("string")),
    Column("content", Primitive("string")),
)


def set_aside(
    shards: Shards,
    collection: str,
    name: BatchName,
    rejected: Sequence[RejectedRow],
    *,
    file: str,
    deployment: Deployment,
    clock: Clock,
) -> BatchName:
    """Append the rejected rows of one batch to the collection's quarantine, once; return the name they have there.

    Done before the batch itself: after a crash in between the batch is appended again, and its quarantine is there.
    The name is the batch's own, unless other rows have it: a batch that was refused, or discarded while it was staged,
    leaves its rejected rows, and may come again with others. Those go under a producer named after them.
    The quarantine is a collection of its own, made when it is first needed and staged like any other.
    """
    shard = shards.create(collection + QUARANTINE_SUFFIX, schema=to_iceberg(COLUMNS), kind=ShardKind.APPEND_ONLY)
    rows = pa.table(
        {
            "file": pa.array([file] * len(rejected), pa.string()),
            "row": pa.array([row.number for row in rejected], pa.int64()),
            "reason": pa.array([row.reason for row in rejected], pa.string()),
            "content": pa.array([row.content for row in rejected], pa.string()),
        }
    )
    with suppress(RangeOverlap):  # a part of the range has rejected rows, of a batch that was cut otherwise
        append_rows(shard, name, rows, deployment=deployment, clock=clock)
        # The answer does not say whose rows have the name: a branch that stood there may be published by now.
        if set(rejected) <= _kept_as(shard, name, generation=deployment.generation):
            return name
    own = _named_after(rejected, name)
    append_rows(shard, own, rows, deployment=deployment, clock=clock)
    return own


def _kept_as(shard: Shard, name: BatchName, *, generation: int) -> set[RejectedRow]:
    """Return the rows that are published, or staged by this deployment, under ``name``; not those that are damaged."""
    head = shard.load()
    start, end = name.range
    of_name = parse(f"{PRODUCER} = '{name.producer}' and {BATCH} >= {start} and {BATCH} < {end}")  # no name has a quote
    snapshots = [head.contents]
    for queued in queued_batches(head, collection=shard.name, generation=generation):
        if queued.name.producer == name.producer and Ledger((queued.name.range,)).overlaps(name.range):
            snapshot = head.table.metadata.snapshot_by_id(queued.snapshot_id)
            snapshots += [snapshot] if snapshot is not None else []
    kept: set[RejectedRow] = set()
    for snapshot in snapshots:
        with suppress(CorruptState, OSError, pa.ArrowException):  # kept once more rather than not at all
            found = scan_snapshot(head, snapshot, columns=["row", "reason", "content"], row_filter=of_name)
            kept |= set(map(RejectedRow._make, zip(*found.to_pydict().values(), strict=True)))
    return kept


def _named_after(rejected: Iterable[RejectedRow], name: BatchName) -> BatchName:
    """Return a name that these rows of this batch alone have, whenever they come."""
    text = json.dumps([name.producer, *name.range, *sorted(rejected)])
    digest = sha256(text.encode()).hexdigest()[:_DIGITS]
    return BatchName(f"{name.producer[: _LONGEST_PRODUCER - _DIGITS - 1]}.{digest}", name.range)
