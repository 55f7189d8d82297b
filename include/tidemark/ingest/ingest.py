"""Ingests collections, in steps: open, look, plan, read, decode, write, quarantine bad rows, publish or stage.

Rows and bad rows are staged; then one commit makes the rows and their numbers visible; then the bad rows follow. These
are the steps of ``parts``, which several processes may share: here one process takes all of them.
"""

from __future__ import annotations

from dataclasses import replace

from tidemark.clock import Clock
from tidemark.collections.append.ways_in import Rules
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import Late
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import stands_by
from tidemark.errors import FencedByEpoch, InputsGone, RangeOverlap, UpperMismatch
from tidemark.iceberg.shards import Shards
from tidemark.ingest.order.lost_numbers import record_lost
from tidemark.ingest.parts.ingesting import Engine, Ingesting, open_ingesting
from tidemark.ingest.parts.reporting import closing_of, name_of, report
from tidemark.ingest.parts.shares import Minted, share_out
from tidemark.ingest.parts.steps import append, count_entries, join, look, plan, read_planned, write_part
from tidemark.ingest.publish import drop_attempts, name_attempt
from tidemark.ingest.range_rows import Tally
from tidemark.ingest.stage import stage_batch
from tidemark.report import CollectionReport, Outcome
from tidemark.retry import retrying

ATTEMPTS = 8
_FIRST_PAUSE_S = 0.05


def ingest(
    shards: Shards, declaration: Declaration, *, deployment: Deployment, clock: Clock, engine: Engine
) -> CollectionReport:
    """Ingest the waiting entries of one collection, up to watermarks that are read once.

    Raises:
        NeedsSpark: If too many entries wait for this process and there is no Spark; nothing was changed.
        UsageError: If the collection does not read a buffer.
        ConfigurationInvalid: If its buffer is not set.
        BufferUnreachable: If its buffer does not answer.
        BufferMissing: If its buffer does not exist.
        LogRecreated: If the log is another one than before, and the declaration does not accept that.
        SequencerGone: If the log has lost a sequencer.
        AfterWatermark: If the log was cut.
        NoLongerExists: If retention removed waiting entries, and the declaration does not accept that.
        ReadOnly: If the deployment is read-only and the collection rejects batches meanwhile.
        TidemarkError: As an append.
    """
    start_ms = clock.now_ms()
    attempts = retrying(
        UpperMismatch,
        FencedByEpoch,
        InputsGone,
        RangeOverlap,
        attempts=ATTEMPTS,
        what=f"the ingest of {declaration.name!r}",
        first_pause_s=_FIRST_PAUSE_S,
    )
    with open_ingesting(shards, declaration, deployment=deployment, clock=clock, engine=engine) as run:
        told = attempts(_ingest_once, run)
    return replace(told, seconds=(clock.now_ms() - start_ms) / 1000)


def _ingest_once(run: Ingesting) -> CollectionReport:
    """Take the steps of an ingest; after a conflict with another commit, the loop takes all steps again."""
    join(run)
    look(run)
    minted = plan(run)
    if isinstance(minted, CollectionReport):
        return minted
    if run.mode is Mode.READ_ONLY:
        return _stage(run, minted)
    (share,) = share_out(minted, [0], 0).values()
    return append(run, minted, [write_part(run, minted, share, branch=name_attempt(run.target))])


def _stage(run: Ingesting, minted: Minted) -> CollectionReport:
    """Read, decode and stage every range, and every appended batch, as a batch of its own, for the next flush.

    Raises ``ReadOnly`` if the collection rejects batches meanwhile.
    """
    target, closing = run.target, closing_of(run, minted)
    Rules.declared(run.declaration).refuse_when_read_only(run.mode, generation=target.deployment.generation)
    puts_aside = closing is not None and closing.rules.lifecycle.late is Late.QUARANTINE
    table, entries = run.head.table, count_entries(minted.planned, minted.batches.batches)
    record_lost(target, minted.planned, minted.batches.batches)
    leads = not stands_by(target.deployment)  # where an ingestion begins, the deployment that leads decides
    tallies: list[Tally] = []
    row_count = 0
    for name, planned, batches, begun in [
        *((name_of(target.log, part), [part], [], part.begun) for part in minted.planned),
        *((batch.name, [], [batch], None) for batch in minted.batches.batches),
    ]:
        # A flush publishes no second batch of the same name in the quarantine: what is late by now comes in instead.
        has_quarantined = any(part.has_quarantined for part in planned) or any(one.has_quarantined for one in batches)
        keeps_late = puts_aside and has_quarantined
        rows = read_planned(run, minted, planned, batches, table=table, entries=entries, keeps_late=keeps_late)
        staged = stage_batch(target, name, rows, closing, turn=minted.turn, begun=begun if leads else None)
        tallies += staged.tallies
        row_count += staged.batch.rows
    drop_attempts(target, run.other_attempts)
    return report(run, minted, Outcome.STAGED, tallies, rows=row_count)
