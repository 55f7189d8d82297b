"""Ingests the changes of one collection, which keeps the latest row of each key; in this process, portion by portion.

Each portion is one commit: `main`, `updates` and the ledgers agree at every instant. Bad rows are staged in the
quarantine before, are named by a property of the same commit, and are published after (see ``ingest/publish.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import join_to_write, read_only
from tidemark.collections.objects.applied import check_applied
from tidemark.collections.quality.guards import check_foreign_commits
from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.errors import FencedByEpoch, InputsGone, RangeOverlap, TidemarkError, UpperMismatch, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state import ShardState
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.latest.commit import Attempt, commit_portion
from tidemark.ingest.latest.decoding import ChangeDecoder
from tidemark.ingest.latest.portion import PORTION_BYTES, PORTION_ENTRIES, ChangeReading, read_portion
from tidemark.ingest.messages import decoded_columns
from tidemark.ingest.order.lost_numbers import record_lost
from tidemark.ingest.plan import PlannedRange, plan_ingest
from tidemark.ingest.progress import GROUP_PREFIX, measure
from tidemark.ingest.publish import Target, drop_attempts, find_attempts, finish_pending, finish_quarantine
from tidemark.ingest.quarantine import quarantine_name
from tidemark.ingest.range_rows import Tally
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, Outcome
from tidemark.retry import retrying
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

FAIL_POINTS = ("latest.after-plan", "latest.after-publish", "latest.after-quarantine-publish")
ATTEMPTS = 8
_FIRST_PAUSE_S = 0.05


def ingest_latest(
    shards: Shards,
    declaration: Declaration,
    *,
    deployment: Deployment,
    clock: Clock,
    max_entries: int | None = None,
    portion_entries: int = PORTION_ENTRIES,
    portion_bytes: int = PORTION_BYTES,
) -> CollectionReport:
    """Ingest the waiting changes of one collection, up to watermarks that are read once, at most ``max_entries``.

    While the deployment is read-only, nothing is ingested: the buffer keeps the changes, and the report has the lag.

    Raises:
        UsageError: If the collection does not keep the latest row of each key.
        ConfigurationInvalid: If its buffer is not set.
        BufferUnreachable: If its buffer does not answer.
        BufferMissing: If its buffer does not exist.
        LogRecreated: If the log is another one than before, and the declaration does not accept that.
        SequencerGone: If the log has lost a sequencer.
        AfterWatermark: If the log was cut.
        NoLongerExists: If retention removed waiting entries, and the declaration does not accept that.
        KeySpread: If a key has changes in several sequencers, and the declaration refuses that.
        ForeignCommit: If another engine wrote to the collection, and the declaration refuses that.
        ConflictsUnsettled: If other commits kept winning.
        Others as ``check_applied``.
    """
    source = check_buffer_source(declaration)
    check_latest(declaration)
    connection = find_connection(source.buffer, deployment.settings.connections)
    shard = shards.open(declaration.name)
    conflicts: list[type[TidemarkError]] = [UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap]
    if source.on_expired is not OnLost.FAIL:
        conflicts.append(NoLongerExists)  # retention removed planned entries before they were read
    attempts = retrying(
        *conflicts, attempts=ATTEMPTS, what=f"the ingest of {declaration.name!r}", first_pause_s=_FIRST_PAUSE_S
    )
    start_ms = clock.now_ms()
    with open_reader(connection) as reader:
        buffer_log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
        target = Target(shards=shards, shard=shard, log=buffer_log, deployment=deployment, clock=clock)
        run = _Run(target, declaration, source, connection, reader, max_entries, portion_entries, portion_bytes)
        while attempts(_ingest_portion, run):
            pass
        report = _report(run)
    return replace(report, seconds=(clock.now_ms() - start_ms) / 1000)


def check_latest(declaration: Declaration) -> None:
    """Raise ``UsageError`` if the collection does not keep the latest row of each key."""
    if declaration.kind is not Kind.LATEST:
        raise UsageError(f"{declaration.name!r} is {declaration.kind}, and does not keep the latest row of each key")


@dataclass(slots=True)
class _Done:
    """What all portions of a run did."""

    ranges: list[PlannedRange] = field(default_factory=list)  # one by sequencer
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    tallies: dict[int, Tally] = field(default_factory=dict)
    inserted: int = 0
    retracted: int = 0
    spread: int = 0  # rows whose key is of another sequencer
    lost: int = 0
    foreign: str = ""  # commits of other engines that were undone
    first: ShardState | None = None  # what the first commit left
    last: ShardState | None = None  # what the last one left

    def add(self, attempt: Attempt, state: ShardState) -> None:
        """Count what a commit published."""
        portion = attempt.portion
        ranges = {part.sequencer_id: part for part in self.ranges}
        for part in portion.ranges:
            before = ranges.get(part.sequencer_id)
            ranges[part.sequencer_id] = (
                part if before is None else replace(part, start=before.start, first=before.first)
            )
            self.lost += part.lost
        self.ranges = [ranges[sequencer_id] for sequencer_id in sorted(ranges)]
        for name in attempt.names:
            self.ledgers[name.producer] = self.ledgers.get(name.producer, Ledger()).add(name.range)
        for sequencer_id, tally in portion.tallies.items():
            known = self.tallies.get(sequencer_id)
            self.tallies[sequencer_id] = tally if known is None else known.add(tally)
        self.inserted += sum(batch.inserted_rows for batch in attempt.batches)
        self.retracted += sum(batch.retracted_rows for batch in attempt.batches)
        self.spread += attempt.spread
        self.foreign = self.foreign or (str(attempt.head.foreign) if attempt.head.foreign else "")
        self.first, self.last = self.first or state, state


@dataclass(slots=True)
class _Run:
    """One ingest of one collection: the request, and what was done so far."""

    target: Target
    declaration: Declaration
    source: BufferSource
    connection: Connection
    reader: Reader
    max_entries: int | None
    portion_entries: int
    portion_bytes: int
    left: int | None = None  # how many numbers are still to be read; None: nothing was planned yet
    mode: Mode = field(init=False)
    head: ShardHead = field(init=False)
    planned: list[PlannedRange] = field(init=False)
    done: _Done = field(default_factory=_Done)


def _ingest_portion(run: _Run) -> bool:
    """Take the steps for one commit; return whether more may wait. After a conflict, the loop takes all steps again."""
    target = run.target
    writer, run.mode = join_to_write(target.shard, target.deployment)
    other_attempts = find_attempts(target, run.mode)
    head = run.head = target.shard.load()
    _plan(run)
    check_applied(target.deployment, run.declaration)
    if run.mode is Mode.READ_ONLY:
        return False
    check_foreign_commits(head.foreign or head.foreign_updates, run.declaration)
    finish_pending(target, head)  # the publish below requires the upper of this head: nothing else can be pending
    if not run.planned and not head.foreign:
        return False
    fail_point("latest.after-plan")
    decoder = ChangeDecoder.of(run.declaration, run.source, decoded_columns(head.table))
    reading = ChangeReading(run.connection, run.reader, target.log, decoder)
    portion = read_portion(reading, run.planned, most_bytes=run.portion_bytes)
    attempt = Attempt(target, run.declaration, writer, head, reading, portion)
    record_lost(target, portion.ranges)
    state = commit_portion(attempt)
    fail_point("latest.after-publish")
    run.done.add(attempt, state)
    run.left = (run.left or 0) - portion.count
    if attempt.pending:
        finish_quarantine(target, attempt.pending)
        fail_point("latest.after-quarantine-publish")
    # They were computed for what this commit has changed: nobody can publish them any more.
    drop_attempts(target, other_attempts)
    run.reader.tell_progress(
        GROUP_PREFIX + run.declaration.name, {part.sequencer_id: part.end for part in portion.ranges}
    )
    return run.left > 0


def _plan(run: _Run) -> None:
    """Plan the next numbers that the log holds and the collection does not have."""
    target, ledgers = run.target, run.head.state.ledgers
    # Read after the ledgers: a ledger that is newer than the watermarks could lie beyond them.
    present = look_at(run.reader)
    if run.left is None:
        waiting = plan_ingest(target.log, present, ledgers, {}, starts={}, source=run.source, limit=run.max_entries)
        run.left = sum(part.end - part.first for part in waiting)
        if any(part.end == part.first for part in waiting):  # all of it is lost, which is to be committed, too
            run.left = max(run.left, 1)
    limit = min(run.left, run.portion_entries)
    run.planned = plan_ingest(target.log, present, ledgers, {}, starts={}, source=run.source, limit=limit)


def _report(run: _Run) -> CollectionReport:
    done, upper = run.done, run.head.state.upper
    details: dict[str, Any] = {"buffer": run.reader.name}
    bad_rows = sum(tally.bad_rows for tally in done.tallies.values())
    waiting = [replace(part, first=part.start, end=part.start) for part in run.planned]
    skipped = run.mode is Mode.READ_ONLY and bool(waiting) and not done.ranges
    if skipped:
        generation = run.target.deployment.generation
        details[SKIPPED_BECAUSE] = str(read_only(generation, f"ingest of {run.declaration.name!r}"))
    if done.ranges:
        details["ranges"] = {name: [list(part) for part in ledger.ranges] for name, ledger in done.ledgers.items()}
    if measured := done.ranges or waiting:
        try:
            details["sequencers"] = measure(run.reader, measured, done.tallies, now_ms=run.target.clock.now_ms())
        except TidemarkError as error:  # the rows are published: a broker that stopped since does not fail the run
            details["unmeasured"] = str(error)
    told: dict[str, object] = {"lost": done.lost, "key_spread": done.spread, "foreign_commits": done.foreign}
    details |= {name: what for name, what in told.items() if what}
    if bad_rows:
        details |= {"quarantined": bad_rows, "quarantine": quarantine_name(run.declaration.name)}
    changed = done.inserted or done.retracted or done.foreign
    return CollectionReport(
        outcome=Outcome.SKIPPED if skipped else Outcome.CORRECTED if changed else Outcome.UNCHANGED,
        lower=done.first.lower if done.first else upper,
        upper=done.last.upper if done.last else upper,
        inserted=done.inserted,
        retracted=done.retracted,
        rows_source=sum(t.rows + t.bad_rows for t in done.tallies.values()) if done.ranges else None,
        batches=sum(len(ledger.ranges) for ledger in done.ledgers.values()),
        details=details,
    )
