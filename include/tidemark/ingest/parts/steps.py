"""One ingest in three steps that several processes share: mint, write parts, append.

One process mints: it says which numbers come next. Each process that has a share of them reads, decodes and stages it,
its part. One process appends: it publishes all parts that arrived in one commit. What did not arrive is not in the
ledger, so the next mint plans it again: of what the steps hand to each other anything may be lost, late or doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table

from tidemark.collections.append.append import check_append_only
from tidemark.collections.declarations.lifecycle import Chunks, LifecycleRules
from tidemark.collections.deployment import Mode
from tidemark.collections.isolation import NeedsSpark
from tidemark.collections.mode import join_to_write, read_only
from tidemark.collections.objects.applied import check_applied
from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import HardLimit, InputsGone, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.staging.branches import read_intact
from tidemark.ingest.batches import PlannedBatch, look_at_batches, plan_batches
from tidemark.ingest.buffer_log import BufferLog, look_at
from tidemark.ingest.delivery import Rows, RowsForSpark, RowsInMemory, StagedRows, read_into_memory
from tidemark.ingest.messages import RowDecoder, decoded_columns
from tidemark.ingest.order.log_turns import find_turn
from tidemark.ingest.order.lost_numbers import record_lost
from tidemark.ingest.partitions.closing import Look, check_late
from tidemark.ingest.partitions.state import PartitionRules, Partitions, check_event_times
from tidemark.ingest.parts.ingesting import Ingesting
from tidemark.ingest.parts.reporting import closing_of, name_of, report
from tidemark.ingest.parts.shares import Minted, Part, Share
from tidemark.ingest.persist.limits import check_hard_limit
from tidemark.ingest.plan import PlannedRange, find_start, plan_ingest, remembered_starts
from tidemark.ingest.progress import GROUP_PREFIX, measure
from tidemark.ingest.publish import (
    Target,
    describe_bad,
    drop_attempts,
    find_attempts,
    finish_pending,
    finish_quarantine,
    finish_staged,
    publish_closed,
    publish_rows,
)
from tidemark.ingest.quarantine import open_quarantine
from tidemark.ingest.range_rows import KeyCheck, RowReading, WaitingTimes, cut_parts
from tidemark.ingest.stage import drop_useless, fit_to_quarantine, staged_ranges
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Outcome
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.registry import check_shared

log = logging.getLogger(__name__)

FAIL_POINTS = (
    "ingest.after-plan",
    "ingest.after-rows",
    "ingest.after-quarantine",
    "ingest.after-publish",
    "ingest.after-quarantine-publish",
)


def mint(run: Ingesting, *, measures: bool = True) -> Minted | CollectionReport:
    """Return what is to come next, ``engine.max_entries`` at most; or a report if nothing is to come for now.

    Nothing is to come where nothing waits (partitions that the clock has passed are closed), beyond the hard limit,
    and while the deployment is read-only, which stages nothing here. Without ``measures`` the lag is left out.

    Raises:
        UpperMismatch: If another commit was faster (or ``RangeOverlap``, ``InputsGone``, ``Fenced``): mint again.
        AppliedMeanwhile: If another declaration was applied (or ``Dropped``).
        Others as ``ingest``.
    """
    join(run)
    if run.mode is Mode.READ_ONLY:
        upper, what = run.head.state.upper, f"ingest of {run.declaration.name!r}"
        details = {SKIPPED_BECAUSE: str(read_only(run.target.deployment.generation, what))}
        return CollectionReport(outcome=Outcome.SKIPPED, lower=upper, upper=upper, details=details)
    look(run)
    return plan(run, measures=measures)


def join(run: Ingesting) -> None:
    """Read the mode, and where the collection stands."""
    shard = run.target.shard
    _, run.mode = join_to_write(shard, run.target.deployment)
    run.head = shard.load()
    check_append_only(run.head, shard.name)


def look(run: Ingesting) -> None:
    """Drop batches that nobody can publish, finish the publish of a run that died, and look at the buffer."""
    run.look_again(uuid4().hex)
    target, head = run.target, run.head
    run.other_attempts = find_attempts(target, run.mode)
    if run.mode is Mode.READ_WRITE:
        finish_pending(target, head)
    finish_staged(target, head)
    # Read after the ledgers: a ledger that is newer could lie beyond the end of the log.
    ledgers = head.state.ledgers
    run.seen = look_at_batches(run.connection, target.log, run.reader.identity, ledgers, source=run.source)
    run.dropped += drop_useless(target, run.seen.names_for(target.shard.name))
    run.head = target.shard.load()


def plan(run: Ingesting, *, measures: bool = True) -> Minted | CollectionReport:
    """Plan the numbers that the log holds and the collection lacks, after ``join`` and ``look``; else as ``mint``."""
    minted = _plan(run)
    check_applied(run.target.deployment, run.declaration)
    if not minted.planned and not minted.batches.batches:
        return _close(run, minted)
    if (error := _find_pause(run, minted)) is not None:
        return _report_pause(run, minted, error, measures=measures)
    fail_point("ingest.after-plan")
    return replace(minted, keys=run.fetch_keys())


def _plan(run: Ingesting) -> Minted:
    target, ledgers = run.target, run.head.state.ledgers
    now_ms, is_whole = target.clock.now_ms(), _must_be_whole(run)
    limit = None if is_whole else run.engine.max_entries
    # Read after the ledgers: a ledger that is newer than the watermarks could lie beyond them.
    present, staged = look_at(run.reader), staged_ranges(target, run.head)
    properties = run.head.table.properties
    starts = remembered_starts(properties)
    planned = plan_ingest(target.log, present, ledgers, staged, starts=starts, source=run.source, limit=limit)
    begun = {}
    for sequencer_id, bounds in present.items():
        producer = target.log.producer(sequencer_id)
        accepted = ledgers.get(producer, Ledger()).add_free(staged.get(producer, ()))
        begun[sequencer_id] = find_start(accepted, bounds, starts.get(producer))
    quarantine = target.quarantine
    batches = plan_batches(
        run.seen,
        present,
        ledgers,
        staged,
        begun=begun,
        collection=target.shard.name,
        source=run.source,
        title=run.reader.name,
        quarantined={} if quarantine is None else quarantine.load().state.ledgers,
        limit=limit,
    )
    passed_ms = None
    if (rules := PartitionRules.of(run.declaration)) is not None:
        check_event_times(rules, run.head.table.schema().column_names, collection=target.shard.name)
        passed_ms = Partitions.parse(properties, rules.column, rules.unit).state.passed_ms
    return Minted(
        id=run.mint,
        log=target.log.id,
        schema_id=run.head.table.metadata.current_schema_id,
        turn=find_turn(target.log, properties, {*ledgers, *staged, *starts}),
        look=Look(now_ms=now_ms, present=present, begun=begun, batches=replace(run.seen, batches=())),
        planned=tuple(fit_to_quarantine(target, planned)),
        batches=batches,
        is_whole=is_whole,
        read_ms=target.clock.now_ms(),
        passed_ms=passed_ms,
        other_attempts=tuple(run.other_attempts),
        dropped=tuple(run.dropped),
    )


def _must_be_whole(run: Ingesting) -> bool:
    """Tell whether all that waits has to come in one part.

    A batch and the rows before and after it come in one run where a persist merges values of several rows, since a
    merged row has one number: a row that comes later, with a smaller number, would give none of its values.
    """
    rules, table = PartitionRules.of(run.declaration), run.source.table
    merges = rules is not None and rules.merges_fields
    return merges and any(table in {None, batch.table} for batch in run.seen.batches)


def _close(run: Ingesting, minted: Minted) -> CollectionReport:
    """Close partitions that the clock has passed, where nothing waits."""
    published = None
    if (closing := closing_of(run, minted)) is not None:
        published = publish_closed(run.target, minted.batches.published_names, closing)
    return report(run, minted, Outcome.UNCHANGED, [], published=published)


def _find_pause(run: Ingesting, minted: Minted) -> HardLimit | None:
    """Return why no more rows are to come for now; what is staged while the deployment is read-only does not count."""
    closing = closing_of(run, minted)
    if closing is None or run.mode is Mode.READ_ONLY:
        return None
    try:
        check_hard_limit(run.head, closing.rules, collection=run.target.shard.name)
    except HardLimit as error:
        return error
    return None


def _report_pause(run: Ingesting, minted: Minted, error: HardLimit, *, measures: bool) -> CollectionReport:
    """Return the report of a run that took nothing, with the lag."""
    details: dict[str, Any] = {"buffer": run.reader.name}
    if measures:
        waiting = [replace(part, first=part.start, end=part.start) for part in minted.planned]
        details["sequencers"] = measure(run.reader, waiting, {}, now_ms=run.target.clock.now_ms())
    upper = run.head.state.upper
    return CollectionReport(
        outcome=Outcome.FAILED, lower=upper, upper=upper, details=details, error=ErrorReport.of(error)
    )


def write_part(run: Ingesting, minted: Minted, share: Share, *, branch: str, held: RowsInMemory | None = None) -> Part:
    """Read, decode and stage a share on ``branch``, and its bad rows on the branch of that name of the quarantine.

    ``held`` are the rows of the share if this process has read them before, for the same mint.

    ``branch`` is ``staged/GENERATION/ingest/NAME``, as ``name_attempt`` returns it; what another part left there is
    dropped first. Whoever cannot raise, since others wait for the part, hands on ``Part.failed``.

    Raises:
        InputsGone: If the columns changed since the mint, the buffer was made anew, or another run dropped the branch.
        NeedsSpark: If the share has too many entries for this process, and there is no Spark.
        LateRows: If late rows came, and the collection refuses them.
        Others as ``ingest``.
    """
    follow(run, minted)
    target, head = run.target, run.target.shard.load()
    check_columns(target, minted, head)
    if branch in head.staged_branches:
        drop_attempts(target, [branch])
    ranges, batches = minted.ranges_of(share), minted.batches_of(share)
    rows: Rows | None = held
    if rows is None:
        rows = read_planned(run, minted, ranges, batches, table=head.table, entries=count_entries(ranges, batches))
    try:
        staged = rows.stage(target.shard, branch)
        check_late(closing_of(run, minted), staged.tallies, collection=target.shard.name)
        fail_point("ingest.after-rows")
        if staged.with_bad:
            rows.stage_bad(open_quarantine(target.shards, target.shard), branch, staged)
        fail_point("ingest.after-quarantine")
    except TidemarkError:
        drop_attempts(target, [branch])
        raise
    return Part(
        minted=minted.id,
        share=share,
        branch=branch,
        snapshot_id=staged.batch.snapshot_id,
        rows=staged.batch.rows,
        has_bad=bool(staged.with_bad),
        tallies=tuple(staged.tallies),
    )


def read_planned(
    run: Ingesting,
    minted: Minted,
    ranges: Sequence[PlannedRange],
    batches: Sequence[PlannedBatch],
    *,
    table: Table,
    entries: int,
    keeps_late: bool = False,
) -> Rows:
    """Read and decode what is planned if it is few ``entries``; otherwise Spark's tasks do so when they write.

    With ``keeps_late`` no row is bad because it is late.

    Raises:
        InputsGone: If retention removed planned entries, and the declaration accepts that: plan again.
        NeedsSpark: If many wait, and there is no Spark.
        ConfigurationInvalid: If many wait, and Spark cannot read the buffer.
    """
    engine, reading = run.engine, reading_of(run, minted, table, keeps_late=keeps_late)
    parts = cut_parts(run.target.log, ranges, engine.part_numbers, batches)
    if entries <= engine.small_entries:
        with planning_again(run):
            in_memory = read_into_memory(reading, parts, run.reader)
        if in_memory is not None:
            return in_memory
    check_shared(run.connection)
    if engine.start_spark is None:
        raise NeedsSpark
    return RowsForSpark(engine.start_spark(), reading, parts)


def reading_of(run: Ingesting, minted: Minted, table: Table, *, keeps_late: bool = False) -> RowReading:
    """Return how planned messages become rows of ``table``; with ``keeps_late`` no row is bad because it is late."""
    closing = closing_of(run, minted)
    times = None if closing is None else closing.times(keeps_late=keeps_late)
    sequencer_ids, taken = frozenset(minted.look.present), run.source.table
    return RowReading(
        run.connection,
        run.connection.topic or run.connection.place,
        RowDecoder(decoded_columns(table), taken, times),
        minted.schema_id,
        KeyCheck(minted.keys, sequencer_ids, taken, run.source.check_keys) if minted.keys else None,
        numbers_entries=times is not None and ENTRY in table.schema().column_names,
        turn=minted.turn,
        waiting=None if closing is None else _find_waiting(closing.rules.lifecycle, now_ms=minted.read_ms),
    )


def _find_waiting(rules: LifecycleRules, *, now_ms: int) -> WaitingTimes | None:
    """Return what says since when rows count as arrived; None if they do since the commit that accepts them."""
    if rules.chunks is not Chunks.MEMORY:
        return None
    age_ms = rules.persist_age_ms
    return WaitingTimes(now_ms, most_ms=2 * age_ms, step_ms=max(rules.late_ms // 16, age_ms // 64, 1))


@contextmanager
def planning_again(run: Ingesting) -> Iterator[None]:
    """Raise ``InputsGone`` where retention removed planned entries in the block, and the declaration accepts that."""
    try:
        yield
    except NoLongerExists as error:
        if run.source.on_expired is OnLost.FAIL:
            raise
        raise InputsGone(f"planned entries are gone: {error}", hint="run it again") from error


def count_entries(ranges: Iterable[PlannedRange], batches: Iterable[PlannedBatch]) -> int:
    """Return how many entries are to be read at most: there may be holes."""
    return sum(part.end - part.first for part in ranges) + sum(batch.entries for batch in batches)


def append(run: Ingesting, minted: Minted, parts: Sequence[Part], *, measures: bool = True) -> CollectionReport:
    """Publish all parts in one commit, and then their bad rows; return the report, which names the first error.

    A part whose branch is gone or damaged counts as not delivered. What was not delivered is in no ledger, so that the
    next mint plans it again. Without ``measures`` nothing is measured, and nobody is told the progress.

    Raises:
        InputsGone: If the mint does not hold any more, or no part arrived: mint again.
        RangeOverlap: If another run published some of the numbers before; nothing became visible.
        Others as ``publish_rows``.
    """
    follow(run, minted)
    target, closing = run.target, closing_of(run, minted)
    try:
        arrived = _find_arrived(target, minted, parts)
        if not arrived:
            return _report_nothing(run, minted, parts)
        taken = Share(
            sequencers=tuple(id_ for part, _ in arrived for id_ in part.share.sequencers),
            has_batches=any(part.share.has_batches for part, _ in arrived),
        )
        ranges, batches = minted.ranges_of(taken), minted.batches_to_append(taken)
        names = [*(name_of(target.log, each) for each in ranges), *batches.published_names]
        pending = "\n".join(
            describe_bad(part.branch, _names_with_bad(target.log, minted, part, rows))
            for part, rows in arrived
            if part.has_bad
        )
        record_lost(target, ranges, batches.batches)
        published = publish_rows(
            target, names, [rows for _, rows in arrived], closing, turn=minted.turn, pending=pending
        )
    except TidemarkError:
        drop_attempts(target, [part.branch for part in parts if part.branch])
        raise
    fail_point("ingest.after-publish")
    if pending:
        finish_quarantine(target, pending)
        fail_point("ingest.after-quarantine-publish")
    if measures:
        _tell_progress(run, minted, published.state.ledgers)
    told = report(
        run,
        replace(minted, planned=tuple(ranges), batches=batches),
        Outcome.APPENDED,
        [tally for part, _ in arrived for tally in part.tallies],
        rows=sum(part.rows for part, _ in arrived),
        published=published,
        measures=measures,
    )
    lost = {part.branch for part in parts if part.branch} - {part.branch for part, _ in arrived}
    drop_attempts(target, [*minted.other_attempts, *lost])
    if left_out := sorted({each.sequencer_id for each in minted.planned} - {*taken.sequencers}):
        told.details["left_out"] = left_out
    return replace(told, error=find_error(parts))


def _tell_progress(run: Ingesting, minted: Minted, ledgers: Mapping[str, Ledger]) -> None:
    """Tell where each sequencer stands, also those that moved in commits of which nobody was told."""
    found = {id_: ledgers.get(run.target.log.producer(id_), Ledger()) for id_ in minted.look.present}
    numbers = {id_: ledger.ranges[-1].end for id_, ledger in found.items() if ledger.ranges}
    run.reader.tell_progress(GROUP_PREFIX + run.declaration.name, numbers)


def follow(run: Ingesting, minted: Minted) -> None:
    """Look at the buffer again unless this process minted. Raises ``InputsGone`` if the mint is of another log."""
    run.look_again(minted.id)
    if run.target.log.id != minted.log:
        raise InputsGone(f"{run.reader.name} was made anew since it was looked at", hint="run it again")


def check_columns(target: Target, minted: Minted, head: ShardHead) -> None:
    """Raise ``InputsGone`` if the columns changed since the mint."""
    if head.table.metadata.current_schema_id != minted.schema_id:
        raise InputsGone(f"the columns of {target.shard.name!r} were changed by another process", hint="run it again")


def _find_arrived(target: Target, minted: Minted, parts: Sequence[Part]) -> list[tuple[Part, StagedRows]]:
    """Return the parts that can be published, each number once, with what lies on their branches."""
    head = target.shard.load()
    check_columns(target, minted, head)
    quarantine = target.quarantine if any(part.has_bad for part in parts) else None
    bad = None if quarantine is None else quarantine.load().table
    arrived: list[tuple[Part, StagedRows]] = []
    for part in parts:
        before = [other.share for other, _ in arrived]
        if part.error or part.minted != minted.id or any(part.share.overlaps(share) for share in before):
            continue
        batch = read_intact(head.table, part.branch, part.branch, of_present_schema=False)
        if batch is None or batch.snapshot_id != part.snapshot_id:
            continue
        if part.has_bad and (bad is None or read_intact(bad, part.branch, None, of_present_schema=False) is None):
            continue
        arrived.append((part, StagedRows(batch, minted.schema_id, part.tallies)))
    return arrived


def find_error(parts: Iterable[Part]) -> ErrorReport | None:
    """Return the first error that the next mint does not settle by itself."""
    errors = (part.error for part in parts if part.error is not None)
    return next((error for error in errors if error.exit_code is not ExitCode.TRANSIENT), None)


def _report_nothing(run: Ingesting, minted: Minted, parts: Sequence[Part]) -> CollectionReport:
    """Return the report where no part arrived. Raises ``InputsGone`` if no part says why: mint again."""
    if (error := find_error(parts)) is None:
        raise InputsGone(f"no part of what was planned for {run.declaration.name!r} arrived", hint="run it again")
    upper = run.target.shard.load().state.upper
    details = {"buffer": run.reader.name, "left_out": sorted(part.sequencer_id for part in minted.planned)}
    return CollectionReport(outcome=Outcome.FAILED, lower=upper, upper=upper, details=details, error=error)


def _names_with_bad(log: BufferLog, minted: Minted, part: Part, rows: StagedRows) -> list[BatchName]:
    """Return the names of the ranges and batches of a part with rows that are new to the quarantine."""
    bad = {(tally.sequencer_id, tally.start if tally.is_of_batch else None) for tally in rows.with_bad}
    ranges = [name_of(log, each) for each in minted.ranges_of(part.share) if (each.sequencer_id, None) in bad]
    batches = minted.batches_of(part.share)
    return ranges + [b.name for b in batches if any((place.sequencer_id, place.start) in bad for place in b.places)]
