"""Appends rows that nobody numbered: they take the producer's next numbers, whatever others wrote meanwhile."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from tidemark.collections.append.append import Appended, check_append_only, with_batch_columns
from tidemark.collections.append.status_delivery import refuse_if_moved
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import join_to_write, read_only
from tidemark.collections.staged.batches import BatchName, queued_batches
from tidemark.errors import ConflictsUnsettled, FencedByEpoch, InputsGone, RangeOverlap, Sealed, UpperMismatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.files import stage_files
from tidemark.report import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.clock import Clock
    from tidemark.collections.append.statuses import StatusFilter
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

ATTEMPTS = 12
_BACKOFF_S = 0.02


def append_blindly(
    shard: Shard,
    rows: pa.Table,
    *,
    producer: str,
    deployment: Deployment,
    clock: Clock,
    stage_when_read_only: bool = True,
    force_writable: bool = False,
    status: StatusFilter | None = None,
) -> Appended:
    """Append ``rows`` at some time from now on; every call adds them once, so only the caller can repeat it.

    Args:
        shard: An append-only collection.
        rows: Exactly its user columns, in any order.
        producer: May be shared by any number of processes of one deployment.
        deployment: Whose this is; another one's numbers of the same producer are others.
        clock: Tells the time.
        stage_when_read_only: Whether rows are staged while the deployment is read-only.
        force_writable: Whether they are published even then: for shards that this deployment alone writes.
        status: Leaves out statuses that are no news; if none is left, nothing is written.

    Raises:
        ReadOnly: If the deployment is read-only and rows are not to be staged.
        UsageError: If the collection is not append-only.
        Sealed: If the collection is closed.
        ConflictsUnsettled: If other commits kept winning; nothing was appended.
    """
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
        writer, mode = join_to_write(shard, deployment)
        head = shard.load()
        check_append_only(head, shard.name)
        may_publish = mode is Mode.READ_WRITE or force_writable
        if not may_publish and not stage_when_read_only:
            raise read_only(deployment.generation, f"append to {shard.name!r}")
        news = rows if status is None else status.choose(head, rows)
        if rows.num_rows and not news.num_rows:
            return Appended(outcome=Outcome.APPENDED)
        # The deployment is part of the name: beside a leader its numbers are handed out without looking at the other's.
        name = _next_name(head, shard.name, f"{producer}.g{deployment.generation}", news.num_rows)
        try:
            if may_publish:
                return _publish(writer, head, name, news, clock=clock)
            return _stage(shard, head, name, news, generation=deployment.generation, alone=status is not None)
        except (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap) as error:
            failure = error
    raise ConflictsUnsettled(f"an append to {shard.name!r} kept losing to other commits", hint="try again") from failure


def _next_name(head: ShardHead, collection: str, producer: str, count: int) -> BatchName:
    ledger = head.state.ledgers.get(producer)
    ends = [ledger.ranges[-1].end] if ledger and ledger.ranges else []
    ends += [
        each.name.range.end for each in queued_batches(head, collection=collection) if each.name.producer == producer
    ]
    start = max(ends, default=0)
    return BatchName(producer, Range(start, start + max(count, 1)))


def _publish(writer: Writer, head: ShardHead, name: BatchName, rows: pa.Table, *, clock: Clock) -> Appended:
    """Publish under the numbers that were next in ``head``: if others took them, the upper has moved."""
    lower = head.state.upper
    if not isinstance(lower, int):
        raise Sealed(f"collection {writer.shard.name!r} is sealed", hint="nothing can be written to it any more")
    files = write_rows(head.table, with_batch_columns(rows, name))
    schema_id = head.table.metadata.current_schema_id
    batch = Batch(added=files, schema_id=schema_id, producer=name.producer, range=name.range)
    try:
        published = writer.compare_and_append(batch, lower=lower, new_upper=max(clock.now_ms(), lower) + 1)
    except (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap):
        delete_files(head.table, [file.file_path for file in files])
        raise
    return Appended(outcome=Outcome.APPENDED, rows=rows.num_rows, lower=lower, upper=published.state.upper)


def _stage(shard: Shard, head: ShardHead, name: BatchName, rows: pa.Table, *, generation: int, alone: bool) -> Appended:
    """Stage the rows; ``alone``: only if nobody has published or staged anything since ``head``."""
    files = write_rows(head.table, with_batch_columns(rows, name))

    def check(fresh: ShardHead) -> None:
        taken = _next_name(fresh, shard.name, name.producer, rows.num_rows)
        if taken.range.start != name.range.start:
            raise InputsGone(f"the numbers {name.range} of {name.producer!r} were taken by another process")
        if alone:
            refuse_if_moved(head, fresh, collection=shard.name)

    try:
        stage_files(
            shard,
            files,
            branch=name.branch(generation),
            fingerprint=str(uuid4()),  # nobody else's batch is this one, whatever its name
            schema_id=head.table.metadata.current_schema_id,
            replaces=False,
            check=check,
        )
    except InputsGone:
        delete_files(head.table, [file.file_path for file in files])
        raise
    return Appended(outcome=Outcome.STAGED, rows=rows.num_rows)
