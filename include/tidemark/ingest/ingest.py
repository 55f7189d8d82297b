"""Ingests collections, in steps: open, look, plan, read, decode, write, quarantine bad rows, publish or stage.

Rows and bad rows are staged; then one commit makes the rows and their numbers visible; then the bad rows follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from tidemark.clock import Clock
from tidemark.collections.append.append import check_append_only
from tidemark.collections.append.ways_in import Rules
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import Late
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.isolation import NeedsSpark
from tidemark.collections.mode import join_to_write
from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import FencedByEpoch, HardLimit, InputsGone, RangeOverlap, TidemarkError, UpperMismatch, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shards import Shards
from tidemark.ingest.batches import BatchesSeen, PlannedBatch, PlannedBatches, look_at_batches, plan_batches
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.delivery import SMALL_ENTRIES, Rows, RowsForSpark, StagedRows, read_into_memory
from tidemark.ingest.messages import RowDecoder, decoded_columns
from tidemark.ingest.order.log_turns import find_turn
from tidemark.ingest.partitions.closing import Closing, Look, check_late, describe_changes
from tidemark.ingest.partitions.state import PartitionRules, Partitions, check_event_times
from tidemark.ingest.persist.limits import check_hard_limit
from tidemark.ingest.plan import PlannedRange, find_start, plan_ingest, remembered_starts
from tidemark.ingest.progress import GROUP_PREFIX, measure
from tidemark.ingest.publish import (
    PublishedRows,
    Target,
    describe_bad,
    drop_attempts,
    find_attempts,
    finish_pending,
    finish_quarantine,
    finish_staged,
    name_attempt,
    publish_closed,
    publish_rows,
)
from tidemark.ingest.quarantine import open_quarantine, quarantine_name
from tidemark.ingest.range_rows import NOT_CHECKED, KeyCheck, RowReading, Tally, add_up, cut_parts
from tidemark.ingest.stage import drop_useless, fit_to_quarantine, stage_batch, staged_ranges
from tidemark.report import CollectionReport, ErrorReport, Outcome
from tidemark.retry import retrying
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.keys import Spread, read_keys
from tidemark.write_buffer.ranges import DEFAULT_PART_NUMBERS
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import check_shared, open_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FAIL_POINTS = (
    "ingest.after-plan",
    "ingest.after-rows",
    "ingest.after-quarantine",
    "ingest.after-publish",
    "ingest.after-quarantine-publish",
)
ATTEMPTS = 8
_FIRST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an ingest may do its work."""

    start_spark: Callable[[], SparkSession] | None = None  # called only for much work; None: raise ``NeedsSpark``
    max_entries: int | None = None  # of one run and collection
    small_entries: int = SMALL_ENTRIES  # this process ingests up to so many, Spark ingests more
    part_numbers: int = DEFAULT_PART_NUMBERS  # of one task of Spark's

    def __post_init__(self) -> None:
        if self.max_entries is not None and self.max_entries < 1:
            raise UsageError(f"a run takes at least one entry, not {self.max_entries}", hint="leave the limit out")


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
    source = check_buffer_source(declaration)
    connection = find_connection(source.buffer, deployment.settings.connections)
    shard = shards.open(declaration.name)
    conflicts: list[type[TidemarkError]] = [UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap]
    if source.on_expired is not OnLost.FAIL:
        conflicts.append(NoLongerExists)  # retention removed planned entries before they were read
    start_ms = clock.now_ms()
    with open_reader(connection) as reader:
        log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
        target = Target(
            shards=shards, shard=shard, log=log, deployment=deployment, clock=clock, expect=declaration.expect
        )
        run = _Run(target, declaration, source, connection, reader, engine)
        attempts = retrying(
            *conflicts, attempts=ATTEMPTS, what=f"the ingest of {declaration.name!r}", first_pause_s=_FIRST_PAUSE_S
        )
        report = attempts(_ingest_once, run)
    return replace(report, seconds=(clock.now_ms() - start_ms) / 1000)


@dataclass(slots=True)
class _Run:
    """One ingest of one collection: the request, and the results of the steps of the present attempt."""

    target: Target
    declaration: Declaration
    source: BufferSource
    connection: Connection
    reader: Reader
    engine: Engine
    mode: Mode = field(init=False)
    head: ShardHead = field(init=False)
    other_attempts: list[str] = field(init=False)  # branches of attempts that died, or are still at work
    seen: BatchesSeen = field(init=False)
    turn: int = field(init=False)  # of the log
    planned: list[PlannedRange] = field(init=False)
    batches: PlannedBatches = field(init=False)
    keys: KeyCheck | None = field(init=False)
    closing: Closing | None = field(init=False)  # of a collection with event times
    dropped: list[dict[str, str]] = field(default_factory=list)  # batches that nobody could publish, of all attempts


def _ingest_once(run: _Run) -> CollectionReport:
    """Take the steps of an ingest; after a conflict with another commit, the loop takes all steps again."""
    _look(run)
    _plan(run)
    if not run.planned and not run.batches.batches:
        return _close(run)
    if (error := _find_pause(run)) is not None:
        return _report_pause(run, error)
    fail_point("ingest.after-plan")
    run.keys = _key_check(run)
    return _stage(run) if run.mode is Mode.READ_ONLY else _publish(run)


def _look(run: _Run) -> None:
    """Join, drop batches that nobody can publish, and finish the publish of a run that died."""
    target = run.target
    _, run.mode = join_to_write(target.shard, target.deployment)
    head = target.shard.load()
    check_append_only(head, target.shard.name)
    run.other_attempts = find_attempts(target, run.mode)
    if run.mode is Mode.READ_WRITE:
        finish_pending(target, head)
    finish_staged(target, head)
    # Read after the ledgers: a ledger that is newer could lie beyond the end of the log.
    ledgers = head.state.ledgers
    run.seen = look_at_batches(run.connection, target.log, run.reader.identity, ledgers, source=run.source)
    run.dropped += drop_useless(target, run.seen.names_for(target.shard.name))
    run.head = target.shard.load()


def _plan(run: _Run) -> None:
    """Plan the numbers that the log holds and the collection does not have."""
    target, ledgers = run.target, run.head.state.ledgers
    now_ms, limit = target.clock.now_ms(), _find_limit(run)
    # Read after the ledgers: a ledger that is newer than the watermarks could lie beyond them.
    present, staged = look_at(run.reader), staged_ranges(target, run.head)
    properties = run.head.table.properties
    starts = remembered_starts(properties)
    planned = plan_ingest(target.log, present, ledgers, staged, starts=starts, source=run.source, limit=limit)
    run.planned = fit_to_quarantine(target, planned)
    run.turn = find_turn(target.log, properties, {*ledgers, *staged, *starts})
    begun = {}
    for sequencer_id, bounds in present.items():
        producer = target.log.producer(sequencer_id)
        accepted = ledgers.get(producer, Ledger()).add_free(staged.get(producer, ()))
        begun[sequencer_id] = find_start(accepted, bounds, starts.get(producer))
    quarantine = target.quarantine
    run.batches = plan_batches(
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
    run.closing = _closing(run, Look(now_ms=now_ms, present=present, begun=begun, batches=run.seen))


def _find_limit(run: _Run) -> int | None:
    """Return the most entries of this run; None: all that wait.

    A batch and the rows before and after it come in one run where a persist merges values of several rows, since a
    merged row has one number: a row that comes later, with a smaller number, would give none of its values.
    """
    rules, table = PartitionRules.of(run.declaration), run.source.table
    merges = rules is not None and rules.merges_fields
    is_split = merges and any(table in {None, batch.table} for batch in run.seen.batches)
    return None if is_split else run.engine.max_entries


def _closing(run: _Run, look: Look) -> Closing | None:
    if (rules := PartitionRules.of(run.declaration)) is None:
        return None
    check_event_times(rules, run.head.table.schema().column_names, collection=run.target.shard.name)
    before = Partitions.parse(run.head.table.properties, rules.column, rules.unit)
    read_ms, passed_ms = run.target.clock.now_ms(), before.state.passed_ms
    return Closing(rules=rules, log=run.target.log, look=look, passed_ms=passed_ms, read_ms=read_ms)


def _close(run: _Run) -> CollectionReport:
    """Close partitions that the clock has passed, where nothing waits."""
    published = None
    if run.closing is not None:
        published = publish_closed(run.target, run.batches.published_names, run.closing)
    return _report(run, Outcome.UNCHANGED, [], published=published)


def _find_pause(run: _Run) -> HardLimit | None:
    """Return why no more rows are to come for now; what is staged while the deployment is read-only does not count."""
    if run.closing is None or run.mode is Mode.READ_ONLY:
        return None
    try:
        check_hard_limit(run.head, run.closing.rules, collection=run.target.shard.name)
    except HardLimit as error:
        return error
    return None


def _report_pause(run: _Run, error: HardLimit) -> CollectionReport:
    """Return the report of a run that took nothing, with the lag."""
    waiting = [replace(part, first=part.start, end=part.start) for part in run.planned]
    sequencers = measure(run.reader, waiting, {}, now_ms=run.target.clock.now_ms())
    upper = run.head.state.upper
    return CollectionReport(
        outcome=Outcome.FAILED,
        lower=upper,
        upper=upper,
        details={"buffer": run.reader.name, "sequencers": sequencers},
        error=ErrorReport.of(error),
    )


def _read(
    run: _Run, planned: Sequence[PlannedRange], batches: Sequence[PlannedBatch], *, keeps_late: bool = False
) -> Rows:
    """Read and decode what is planned if few entries wait in all; otherwise Spark's tasks do so when they write.

    With ``keeps_late`` no row is bad because it is late.

    Raises:
        NeedsSpark: If many wait, and there is no Spark.
        ConfigurationInvalid: If many wait, and Spark cannot read the buffer.
    """
    table, engine = run.head.table, run.engine
    times = None if run.closing is None else run.closing.times(keeps_late=keeps_late)
    reading = RowReading(
        run.connection,
        run.connection.topic or run.connection.place,
        RowDecoder(decoded_columns(table), run.source.table, times),
        table.metadata.current_schema_id,
        run.keys,
        numbers_entries=times is not None and ENTRY in table.schema().column_names,
        turn=run.turn,
    )
    parts = cut_parts(run.target.log, planned, engine.part_numbers, batches)
    waiting = sum(part.end - part.first for part in run.planned) + sum(batch.entries for batch in run.batches.batches)
    if waiting <= engine.small_entries:
        in_memory = read_into_memory(reading, parts)
        if in_memory is not None:
            return in_memory
    check_shared(run.connection)
    if engine.start_spark is None:
        raise NeedsSpark
    return RowsForSpark(engine.start_spark(), reading, parts)


def _key_check(run: _Run) -> KeyCheck | None:
    """Return what looks at the keys of rows; None if the buffer keeps none.

    Raises as ``read_keys`` if the declaration wants every key to be looked at.
    """
    try:
        keys = read_keys(run.connection)
    except TidemarkError as error:  # a login may be allowed to read the buffer, and not what stands beside it
        if run.source.check_keys:
            raise
        log.warning("the keys of %s cannot be read, so that none are checked: %s", run.reader.name, error)
        return None
    table, every_row = run.source.table, run.source.check_keys
    return KeyCheck(keys, frozenset(run.reader.sequencer_ids()), table, every_row) if keys else None


def _publish(run: _Run) -> CollectionReport:
    """Read, decode and write the rows, then the bad rows; publish the rows with all numbers, then the bad rows."""
    target = run.target
    rows, attempt = _read(run, run.planned, run.batches.batches), name_attempt(target)
    names = [*(_name_of(run, part) for part in run.planned), *run.batches.published_names]
    try:
        staged = rows.stage(target.shard, attempt)
        check_late(run.closing, staged, collection=target.shard.name)
        fail_point("ingest.after-rows")
        if staged.with_bad:
            quarantine = open_quarantine(target.shards, target.shard)
            rows.stage_bad(quarantine, attempt, staged)
        fail_point("ingest.after-quarantine")
        pending = describe_bad(attempt, _names_with_bad(run, staged)) if staged.with_bad else ""
        published = publish_rows(target, names, staged, run.closing, turn=run.turn, pending=pending)
    except TidemarkError:
        drop_attempts(target, [attempt])
        raise
    fail_point("ingest.after-publish")
    if staged.with_bad:
        finish_quarantine(target, pending)
        fail_point("ingest.after-quarantine-publish")
    numbers = {part.sequencer_id: part.end for part in run.planned}
    run.reader.tell_progress(GROUP_PREFIX + run.declaration.name, numbers)
    report = _report(run, Outcome.APPENDED, staged.tallies, rows=staged.batch.rows, published=published)
    drop_attempts(target, run.other_attempts)
    return report


def _stage(run: _Run) -> CollectionReport:
    """Read, decode and stage every range, and every appended batch, as a batch of its own, for the next flush.

    Raises ``ReadOnly`` if the collection rejects batches meanwhile.
    """
    target = run.target
    Rules.declared(run.declaration).refuse_when_read_only(run.mode, generation=target.deployment.generation)
    puts_aside = run.closing is not None and run.closing.rules.lifecycle.late is Late.QUARANTINE
    tallies: list[Tally] = []
    row_count = 0
    for name, planned, batches, begun in [
        *((_name_of(run, part), [part], [], part.begun) for part in run.planned),
        *((batch.name, [], [batch], None) for batch in run.batches.batches),
    ]:
        # A flush publishes no second batch of the same name in the quarantine: what is late by now comes in instead.
        has_quarantined = any(part.has_quarantined for part in planned) or any(one.has_quarantined for one in batches)
        rows = _read(run, planned, batches, keeps_late=puts_aside and has_quarantined)
        staged = stage_batch(target, name, rows, run.closing, turn=run.turn, begun=begun)
        tallies += staged.tallies
        row_count += staged.batch.rows
    drop_attempts(target, run.other_attempts)
    return _report(run, Outcome.STAGED, tallies, rows=row_count)


def _names_with_bad(run: _Run, staged: StagedRows) -> list[BatchName]:
    """Return the names of the ranges and batches with rows that are new to the quarantine."""
    bad = {(tally.sequencer_id, tally.start if tally.is_of_batch else None) for tally in staged.with_bad}
    ranges = [_name_of(run, part) for part in run.planned if (part.sequencer_id, None) in bad]
    batches = run.batches.batches
    return ranges + [b.name for b in batches if any((place.sequencer_id, place.start) in bad for place in b.places)]


def _name_of(run: _Run, planned: PlannedRange) -> BatchName:
    return BatchName(run.target.log.producer(planned.sequencer_id), planned.range)


def _report(
    run: _Run, outcome: Outcome, tallies: Sequence[Tally], *, rows: int = 0, published: PublishedRows | None = None
) -> CollectionReport:
    """Return the report on ``rows`` good rows; ``published`` is what the commit left that made them visible."""
    upper = run.head.state.upper
    details: dict[str, Any] = {"buffer": run.reader.name}
    bad_rows = sum(tally.bad_rows for tally in tallies)
    batches = run.batches.batches
    if run.planned or batches:
        ledgers: dict[str, Ledger] = {}
        for name in (*(_name_of(run, part) for part in run.planned), *(batch.name for batch in batches)):
            ledgers[name.producer] = ledgers.get(name.producer, Ledger()).add(name.range)
        ranges = {producer: [list(part) for part in ledger.ranges] for producer, ledger in ledgers.items()}
        keeps_open = run.closing is not None and run.closing.rules.keeps_open
        shown = "open_ranges" if keeps_open else "ranges"  # main shows open ones once they are persisted
        details[shown if published else "staged_ranges"] = ranges
        try:
            now_ms = run.target.clock.now_ms()
            details["sequencers"] = measure(run.reader, run.planned, add_up(tallies), now_ms=now_ms)
        except TidemarkError as error:  # the rows are published: a broker that stopped since does not fail the run
            details["unmeasured"] = str(error)
    spread = reduce(Spread.add, (tally.spread for tally in tallies), NOT_CHECKED)
    if spread.checked:
        details["key_spread"] = asdict(spread)
    if spread.rows:
        log.warning(
            "%s: %s rows of a key spread over sequencers: %s", run.declaration.name, spread.rows, spread.example
        )
    told: dict[str, object] = {
        "lost": sum(part.lost for part in run.planned) + sum(batch.lost for batch in batches),
        "batches_wait": run.seen.obstacle,
        "refused_batches": list(run.batches.refused),
        "dropped": run.dropped,
    }
    details |= {name: what for name, what in told.items() if what}
    if run.closing is not None:
        refused = sum(tally.arrivals.refused for tally in tallies)
        details |= describe_changes(published.counted if published else None, refused=refused)
    if bad_rows:
        details |= {"quarantined": bad_rows, "quarantine": quarantine_name(run.declaration.name)}
    return CollectionReport(
        outcome=outcome,
        lower=published.state.lower if published else upper,
        upper=published.state.upper if published else upper,
        inserted=rows if published else 0,
        rows_source=rows + bad_rows if run.planned or batches else None,
        batches=len(run.planned) + len(batches),
        details=details,
    )
