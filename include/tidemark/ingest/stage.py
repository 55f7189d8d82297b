"""Ingests while the deployment is read-only: stages the range of each sequencer as a batch of its own.

A flush publishes these batches like any others. Good and bad rows are written onto branches that bear the name of the
attempt. One commit renames the good rows' branch to the batch, and names the bad rows' branch in a table property;
then that branch becomes the batch of the same name in the quarantine. If the process dies in between, the next run
renames that branch before it does anything else. So the quarantine has the bad rows of accepted ranges alone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from tidemark.collections.staged.batches import (
    BatchName,
    QueuedBatch,
    Standing,
    only_whole,
    queued_batches,
    standing_in,
)
from tidemark.errors import DamagedBatch, InputsGone, RangeOverlap, TidemarkError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import drop_staged, settle
from tidemark.ingest.delivery import Rows, StagedRows
from tidemark.ingest.order.log_turns import remember_turn
from tidemark.ingest.partitions.closing import Closing, check_late
from tidemark.ingest.plan import START, PlannedRange
from tidemark.ingest.publish import Target, describe_bad, drop_attempts, name_attempt, settle_quarantine, waits_for_name
from tidemark.ingest.quarantine import open_quarantine

log = logging.getLogger(__name__)

FAIL_POINTS = ("ingest.after-staged-quarantine", "ingest.after-staged-range")


def staged_ranges(target: Target, head: ShardHead) -> dict[str, list[Range]]:
    """Return the ranges that wait for a flush by this deployment, by producer, without damaged batches."""
    found: dict[str, list[Range]] = {}
    queued = queued_batches(head, collection=target.shard.name, deployment=target.deployment)
    for batch in only_whole(head.table, queued):
        found.setdefault(batch.name.producer, []).append(batch.name.range)
    return found


def drop_useless(target: Target, logged: Collection[BatchName]) -> list[dict[str, str]]:
    """Drop batches of this log, and those that are ``logged`` in it, that nobody can publish; return which, and why.

    These are damaged batches, and batches that overlap the ledger in part, as a leader leaves them that publishes the
    same numbers in other pieces: they would be in the way of every flush. Their numbers are read again as far as the
    buffer still has them. Batches that a leader published as a whole go without a word. With a batch go its bad rows,
    also if the batch was discarded: whoever has published or reads again the good rows has these, too.
    """
    quarantine = target.quarantine
    seen = None if quarantine is None else quarantine.load()  # before the batches that its batches belong to
    head = target.shard.load()
    queued = _queued_of_log(target, target.shard, head, logged, head)
    whole = {batch.branch for batch in only_whole(head.table, queued)}
    accepted, dropped = dict(head.state.ledgers), dict[str, TidemarkError | None]()
    for batch in queued:
        producer, numbers = batch.name.producer, batch.name.range
        published = head.state.ledgers.get(producer, Ledger())
        if published.covers(numbers):
            dropped[batch.branch] = None
        elif published.overlaps(numbers):
            dropped[batch.branch] = RangeOverlap(f"the ledger has a part of {batch.name}: {published}")
        elif batch.branch not in whole:
            dropped[batch.branch] = DamagedBatch(f"the staged batch {batch.name} of {batch.collection!r} is damaged")
        else:
            accepted[producer] = accepted.get(producer, Ledger()).add_free([numbers])
    if quarantine is not None and seen is not None:
        left = [
            batch.branch
            for batch in _queued_of_log(target, quarantine, seen, logged, head)
            if batch.branch in dropped or not accepted.get(batch.name.producer, Ledger()).covers(batch.name.range)
        ]
        drop_staged(quarantine, left, seen=seen)
    drop_staged(target.shard, dropped, seen=head)
    reported = []
    for batch in queued:
        if (error := dropped.get(batch.branch)) is not None:
            log.warning("dropped, to be read again: %s", error)  # the run may fail before it has a report
            reported.append({"batch": str(batch.name), "kind": error.kind, "message": str(error)})
    return reported


def _queued_of_log(
    target: Target, shard: Shard, head: ShardHead, logged: Collection[BatchName], rows: ShardHead
) -> list[QueuedBatch]:
    """Return the batches of this log that wait for a flush by this deployment; ``rows`` is the collection's own head.

    Those that were appended into the buffer are known by their names, while they are looked at, or published.
    """
    queued = queued_batches(head, collection=shard.name, deployment=target.deployment)

    def was_appended(name: BatchName) -> bool:
        return name in logged or rows.state.ledgers.get(name.producer, Ledger()).covers(name.range)

    return [
        batch
        for batch in queued
        if target.log.sequencer_of(batch.name.producer) is not None
        or (batch.is_ingested and was_appended(batch.name))  # an append may have staged rows of the same name
    ]


def fit_to_quarantine(target: Target, planned: Sequence[PlannedRange]) -> list[PlannedRange]:
    """Cut ranges so that the quarantine has published the bad rows of all numbers of a range, or of none.

    It has those of a batch that was given up when a flush had published its bad rows already. They are not put aside
    again.
    """
    if (quarantine := target.quarantine) is None:
        return list(planned)
    ledgers = quarantine.load().state.ledgers
    fitted = []
    for part in planned:
        overlaps = ledgers.get(target.log.producer(part.sequencer_id), Ledger()).overlaps(part.range)
        has_quarantined = bool(overlaps) and overlaps[0].start <= part.start
        end = min(part.end, overlaps[0].end if has_quarantined else overlaps[0].start) if overlaps else part.end
        fitted.append(replace(part, end=end, first=min(part.first, end), has_quarantined=has_quarantined))
    return fitted


def stage_batch(
    target: Target, name: BatchName, rows: Rows, closing: Closing | None, *, turn: int, begun: int | None = None
) -> StagedRows:
    """Stage the rows as the batch ``name``; of a range of a sequencer, ``begun`` is the number it began with.

    The rows bear the ``turn`` of the log.

    Raises:
        InputsGone: If the columns changed, another run accepted the range, dropped the branches of this one or began
            to read another log: plan again.
        LateRows: If late rows came, and the collection refuses them.
        TidemarkError: As an append.
    """
    attempt, branch = name_attempt(target), name.branch(target.deployment.generation)
    properties = {} if begun is None else {START + name.producer: str(begun)}

    def check(fresh: ShardHead) -> None:
        standing = standing_in(fresh, name, collection=target.shard.name, deployment=target.deployment)
        if standing is not Standing.FREE:
            raise InputsGone(f"{name} of {target.shard.name!r} was accepted meanwhile")
        if target.pending_staged in properties and waits_for_name(target, fresh):
            raise InputsGone(f"bad rows of another range of {target.shard.name!r} were staged meanwhile")
        properties.update(remember_turn(target.log, turn, fresh.table.properties))

    try:
        staged = rows.stage(target.shard, attempt)
        check_late(closing, staged.tallies, collection=target.shard.name)
        if staged.with_bad:
            quarantine = open_quarantine(target.shards, target.shard)
            rows.stage_bad(quarantine, attempt, staged)
            properties[target.pending_staged] = describe_bad(attempt, [name])
        fail_point("ingest.after-staged-quarantine")
        settle(target.shard, attempt, branch, check, properties)
    except TidemarkError:
        drop_attempts(target, [attempt])
        raise
    fail_point("ingest.after-staged-range")
    if staged.with_bad:
        settle_quarantine(target, attempt, name)
    return staged
