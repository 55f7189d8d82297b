"""Ingests while the deployment is read-only: stages the range of each sequencer as a batch of its own.

A flush publishes these batches like any others. The good rows wait on a pending branch until their bad rows are staged
in the quarantine under the same batch name; only then the good rows' branch gets the name of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemark.collections.append.append import Append, Appended
from tidemark.collections.staged.batches import BatchName, only_whole, queued_batches
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.ingest.delivery import Rows, StagedRows
from tidemark.ingest.plan import PlannedRange
from tidemark.ingest.publish import Target
from tidemark.ingest.quarantine import open_quarantine
from tidemark.ingest.range_rows import Tally
from tidemark.report import Outcome

FAIL_POINTS = ("ingest.after-staged-quarantine", "ingest.after-staged-range")


class StagedRange(NamedTuple):
    """The number of rows that became a batch, and the counts of the entries."""

    rows: int
    tallies: list[Tally]


def staged_ranges(target: Target, shard: Shard, head: ShardHead) -> dict[str, list[Range]]:
    """Return the ranges that wait for a flush by this deployment, by producer, without damaged batches."""
    found: dict[str, list[Range]] = {}
    queued = queued_batches(head, collection=shard.name, deployment=target.deployment)
    for batch in only_whole(head.table, queued):
        found.setdefault(batch.name.producer, []).append(batch.name.range)
    return found


def drop_useless(target: Target, head: ShardHead) -> None:
    """Drop batches of this log that nobody can publish: damaged ones, and ones that overlap the ledger in part.

    Their numbers are read again as far as the buffer still has them. A batch that a leader has published in other
    pieces would be in the way of every flush.
    """
    queued = [
        batch
        for batch in queued_batches(head, collection=target.shard.name, deployment=target.deployment)
        if target.log.sequencer_of(batch.name.producer) is not None
    ]
    whole = {batch.branch for batch in only_whole(head.table, queued)}
    useless = []
    for batch in queued:
        ledger = head.state.ledgers.get(batch.name.producer)
        overlaps = ledger is not None and ledger.overlaps(batch.name.range) and not ledger.covers(batch.name.range)
        if overlaps or batch.branch not in whole:
            useless.append(batch.branch)
    if useless:
        drop_staged(target.shard, useless, seen=head)


def end_as_begun(target: Target, planned: Sequence[PlannedRange]) -> list[PlannedRange]:
    """Cut or prolong ranges to the ranges whose bad rows the quarantine has already, staged or published.

    The quarantine has such bad rows if an earlier run died before it staged the good rows, or these were discarded. The
    quarantine could not take the bad rows of a range that overlaps one of its ranges in part.
    """
    quarantine = target.quarantine
    if quarantine is None:
        return list(planned)
    fitted = []
    for part in planned:
        ledger = _quarantined(target, quarantine, target.log.producer(part.sequencer_id))
        overlaps = ledger.overlaps(part.range)
        end = part.end
        if overlaps:
            end = overlaps[0].end if overlaps[0].start <= part.start else overlaps[0].start
        end = min(end, part.watermark)
        fitted.append(replace(part, end=end, first=min(part.first, end)))
    return fitted


def _quarantined(target: Target, quarantine: Shard, producer: str) -> Ledger:
    """Return the numbers of one sequencer whose bad rows the quarantine has, staged or published."""
    head = quarantine.load()
    staged = staged_ranges(target, quarantine, head).get(producer, ())
    return head.state.ledgers.get(producer, Ledger()).add_free(staged)


def stage_range(target: Target, planned: PlannedRange, rows: Rows, *, stage_when_read_only: bool) -> StagedRange:
    """Stage one range as an append of a batch whose name is the range.

    Raises:
        ReadOnly: If the collection rejects batches meanwhile.
        TidemarkError: As ``append_rows``.
    """
    with Append(
        shard=target.shard,
        name=BatchName(target.log.producer(planned.sequencer_id), planned.range),
        deployment=target.deployment,
        clock=target.clock,
        stage_when_read_only=stage_when_read_only,
        expect=target.expect,
    ) as batch:
        done, staged = batch.attempts()(_stage_once, target, batch, rows)
    return StagedRange(done.rows, [] if staged is None else list(staged.tallies))


def _stage_once(target: Target, batch: Append, rows: Rows) -> tuple[Appended, StagedRows | None]:
    """Take the steps of an append; bad rows are in the quarantine before the good ones are whole."""
    if (answer := batch.look()) is not None:
        return answer, None
    pending, fingerprint = batch.begin_pending(), str(batch.name)
    drop_staged(target.shard, [pending])  # of an earlier attempt, perhaps with rows decoded for other columns
    staged = rows.stage(target.shard, pending, fingerprint=fingerprint)
    if staged.bad_rows:
        quarantine = open_quarantine(target.shards, target.shard.name)
        if not _quarantined(target, quarantine, batch.name.producer).covers(batch.name.range):
            with Append(shard=quarantine, name=batch.name, deployment=target.deployment, clock=target.clock) as bad:
                bad.attempts()(_stage_bad_once, bad, rows, staged)
        fail_point("ingest.after-staged-quarantine")
    batch.take(staged.batch)
    done = batch.finish()
    if done.outcome is Outcome.STAGED:
        fail_point("ingest.after-staged-range")
    return done, staged


def _stage_bad_once(batch: Append, rows: Rows, staged: StagedRows) -> Appended:
    if (answer := batch.look()) is not None:
        return answer
    pending = batch.begin_pending()
    drop_staged(batch.shard, [pending])
    batch.take(rows.stage_bad(batch.shard, pending, staged, fingerprint=str(batch.name)))
    return batch.finish()
