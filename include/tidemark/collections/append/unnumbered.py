"""Appends rows without numbers: the rows get the next numbers of the producer, whatever others wrote meanwhile."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.append.append import check_append_only, write_batch
from tidemark.collections.append.forward import Appended
from tidemark.collections.append.statuses import StatusFilter, refuse_if_moved
from tidemark.collections.append.ways_in import NOTHING_ASKED, Rules, Writing
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import join_to_write
from tidemark.collections.publish import ATTEMPTS, publish
from tidemark.collections.staged.batches import BatchName, queued_batches
from tidemark.errors import InputsGone
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.files import stage_files
from tidemark.report import Outcome
from tidemark.retry import retrying


def append_blindly(
    shard: Shard,
    rows: pa.Table,
    *,
    producer: str,
    deployment: Deployment,
    clock: Clock,
    rules: Rules = NOTHING_ASKED,
    status: StatusFilter | None = None,
) -> Appended:
    """Append ``rows``, which have exactly the user columns, in any order; every call appends the rows once more.

    Any number of processes of one deployment may share a ``producer``; each deployment has its own numbers for it. A
    read-only deployment stages or refuses the rows, as the ``rules`` say. ``status`` leaves out superseded statuses; if
    all are superseded, nothing is written. The caller has checked what the rules expect.

    Raises:
        OnlyThroughBuffer: If all rows of the collection come out of a write buffer.
        ReadOnly: If the deployment is read-only and must not stage the rows.
        UsageError: If the collection is not append-only.
        Sealed: If the collection is closed.
        ConflictsUnsettled: If other commits kept winning; nothing was appended.
    """
    rules.refuse_direct_write()
    if status is not None:
        rules.refuse_statuses()

    def append_once() -> Appended:
        writer, mode = join_to_write(shard, deployment)
        head = shard.load()
        check_append_only(head, shard.name)
        may_publish = mode is Mode.READ_WRITE
        if not may_publish:
            rules.refuse_when_read_only(mode, generation=deployment.generation)
        news = rows if status is None else status.choose(head, rows)
        count, lower = news.num_rows, head.state.upper
        if rows.num_rows and not count:
            return Appended(outcome=Outcome.APPENDED)
        if may_publish and isinstance(rules.role, Writing):
            with rules.role.open(shard.name, deployment) as log:
                return Appended(outcome=Outcome.FORWARDED, rows=log.add([news], None, clock=clock), buffer=log.title)
        # The name contains the deployment: a deployment beside the leader takes numbers without reading the leader's.
        name = _next_name(head, shard.name, f"{producer}.g{deployment.generation}", count)
        batch = write_batch(head, news, name)
        if not may_publish:
            _stage(shard, head, batch, name, generation=deployment.generation, alone=status is not None)
            return Appended(outcome=Outcome.STAGED, rows=count)
        # If others took the numbers that were next in ``head``, the upper has moved.
        published = publish(writer, head, [batch], clock=clock, written=batch.added)
        return Appended(outcome=Outcome.APPENDED, rows=count, lower=lower, upper=published.state.upper)

    attempts = retrying(InputsGone, attempts=ATTEMPTS, what=f"an append to {shard.name!r}", hint="try again")
    with holding(deployment.settings, "append", [shard.name]):
        return attempts(append_once)


def _next_name(head: ShardHead, collection: str, producer: str, count: int) -> BatchName:
    ledger = head.state.ledgers.get(producer)
    ends = [ledger.ranges[-1].end] if ledger and ledger.ranges else []
    ends += [
        batch.name.range.end for batch in queued_batches(head, collection=collection) if batch.name.producer == producer
    ]
    start = max(ends, default=0)
    return BatchName(producer, Range(start, start + max(count, 1)))


def _stage(shard: Shard, head: ShardHead, batch: Batch, name: BatchName, *, generation: int, alone: bool) -> None:
    """Stage the batch; with ``alone`` only if nothing was published or staged since ``head``."""

    def check(fresh: ShardHead) -> None:
        taken = _next_name(fresh, shard.name, name.producer, batch.inserted_rows)
        if taken.range.start != name.range.start:
            raise InputsGone(f"the numbers {name.range} of {name.producer!r} were taken by another process")
        if alone:
            refuse_if_moved(head, fresh, collection=shard.name)

    try:
        stage_files(
            shard,
            batch.added,
            branch=name.branch(generation),
            fingerprint=str(uuid4()),  # no other batch is equal to this batch, even under the same name
            schema_id=head.table.metadata.current_schema_id,
            replaces=False,
            check=check,
        )
    except InputsGone:
        delete_files(head.table, [file.file_path for file in batch.added])
        raise
