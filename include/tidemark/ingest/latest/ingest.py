"""Ingests the changes of one collection, which keeps the latest row of each key; in this process, portion by portion.

Each portion is one commit: `main`, `updates` and the ledgers agree at every instant. Bad rows are staged in the
quarantine before, are named by a property of the same commit, and are published after (see ``ingest/publish.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration, Kind, OnKeySpread
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import join_to_write, read_only
from tidemark.collections.quality.guards import check_foreign_commits
from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import (
    CommitStateUnknown,
    ConflictsUnsettled,
    FencedByEpoch,
    InputsGone,
    KeySpread,
    RangeOverlap,
    TidemarkError,
    Unreachable,
    UpperMismatch,
    UsageError,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import to_rows, with_constants
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.row_positions import as_delete_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.column_names import DIFF, PRODUCER, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state import CommitKind, ShardState
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.files import stage_files
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.latest.changes import Changes
from tidemark.ingest.latest.corrections import Corrections, TouchedRows, correct, find_touched
from tidemark.ingest.latest.decoding import ChangeDecoder, ForeignKeys, key_text
from tidemark.ingest.latest.key_index import ABSENT, KeyIndex
from tidemark.ingest.latest.portion import (
    PORTION_BYTES,
    PORTION_ENTRIES,
    ChangeReading,
    Portion,
    read_portion,
    write_bad,
)
from tidemark.ingest.messages import decoded_columns
from tidemark.ingest.plan import PlannedRange, plan_ingest
from tidemark.ingest.progress import measure
from tidemark.ingest.publish import (
    PENDING,
    Target,
    describe_bad,
    drop_attempts,
    find_attempts,
    finish_pending,
    finish_quarantine,
    name_attempt,
)
from tidemark.ingest.quarantine import open_quarantine, quarantine_name
from tidemark.ingest.range_rows import Tally
from tidemark.report import CollectionReport, Outcome
from tidemark.retry import retrying
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

log = logging.getLogger(__name__)

FAIL_POINTS = (
    "latest.after-plan",
    "latest.after-files",
    "latest.after-quarantine",
    "latest.after-publish",
    "latest.after-quarantine-publish",
)
ATTEMPTS = 8
GROUP_PREFIX = "tidemark."  # of the consumer groups whose offsets show the progress of a collection to people
_FIRST_PAUSE_S = 0.05
_SAMPLE = 5


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

    def add(self, attempt: _Attempt, state: ShardState) -> None:
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


@dataclass(slots=True)
class _Attempt:
    """One portion on its way into the collection; the comment beside a field names the step that sets the field."""

    run: _Run
    writer: Writer
    head: ShardHead  # that everything is computed for
    reading: ChangeReading
    portion: Portion
    name: str  # of the branch of the bad rows
    stored: StoredRows = field(init=False)  # compare
    changes: Changes = field(init=False)  # compare
    touched: TouchedRows = field(init=False)  # compare
    corrections: Corrections = field(init=False)  # compare
    foreign: dict[int, ForeignKeys] = field(default_factory=dict)  # compare
    written: list[DataFile] = field(default_factory=list)  # write
    batches: list[Batch] = field(default_factory=list)  # write
    spread: int = 0  # put_aside
    pending: str = ""  # put_aside

    @property
    def names(self) -> list[BatchName]:
        producer = self.run.target.log.producer
        return [BatchName(producer(part.sequencer_id), part.range) for part in self.portion.ranges]


def _ingest_portion(run: _Run) -> bool:
    """Take the steps for one commit; return whether more may wait. After a conflict, the loop takes all steps again."""
    target = run.target
    writer, run.mode = join_to_write(target.shard, target.deployment)
    other_attempts = find_attempts(target, run.mode)
    head = run.head = target.shard.load()
    check_foreign_commits(head.foreign or head.foreign_updates, run.declaration)
    _plan(run)
    if run.mode is Mode.READ_ONLY:
        return False
    finish_pending(target, head)  # the publish below requires the upper of this head: nothing else can be pending
    if not run.planned and not head.foreign:
        return False
    fail_point("latest.after-plan")
    decoder = ChangeDecoder.of(run.declaration, run.source, decoded_columns(head.table))
    reading = ChangeReading(run.connection, run.reader, target.log, decoder)
    portion = read_portion(reading, run.planned, most_bytes=run.portion_bytes)
    attempt = _Attempt(run, writer, head, reading, portion, name_attempt(target))
    try:
        _compare(attempt)
        _write(attempt)
        fail_point("latest.after-files")
        _put_aside(attempt)
        fail_point("latest.after-quarantine")
        state = _publish(attempt)
    except (CommitStateUnknown, ConflictsUnsettled, Unreachable):
        raise  # the commit may have landed; if not, maintenance removes the files
    except TidemarkError:
        delete_files(head.table, [file.file_path for file in attempt.written])
        drop_attempts(target, [attempt.name])
        raise
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


def _compare(attempt: _Attempt) -> None:
    """Find the stored rows of the changed keys, the keys that are spread, and the corrections."""
    run, head = attempt.run, attempt.head
    key, schema = run.declaration.key, decoded_columns(head.table)
    changes = Changes.of(attempt.portion.changes, schema.append(pa.field(DIFF, pa.int64())), key)
    stored = StoredRows.in_contents(head) if changes.index.count else StoredRows(head.table, ())
    touched = find_touched(stored, changes.index, key, [*schema.names, PRODUCER])
    owners = changes.find_owners(_stored_owners(run.target.log, touched, changes.index.count))
    is_foreign = changes.sequencers != owners[changes.keys]
    if is_foreign.any():
        attempt.foreign = _foreign_keys(changes, is_foreign, owners, key)
        if run.declaration.on_key_spread is OnKeySpread.REFUSE:
            raise _key_spread(run.declaration, changes, is_foreign, owners)
    attempt.changes = changes.take(~is_foreign)
    attempt.stored, attempt.touched = stored, touched
    attempt.corrections = correct(attempt.changes, touched, key)


def _stored_owners(log: BufferLog, touched: TouchedRows, count: int) -> NDArray[np.int64]:
    """Return the sequencer that each stored row came from, by number of the key; of another log: ``ABSENT``."""
    owners = np.full(count, ABSENT, dtype=np.int64)
    column = touched.rows.column(PRODUCER).combine_chunks().dictionary_encode()
    sequencers = [None if name is None else log.sequencer_of(name) for name in column.dictionary.to_pylist()]
    known = np.array([*(ABSENT if each is None else each for each in sequencers), ABSENT], dtype=np.int64)
    places = np.asarray(column.indices.fill_null(len(sequencers)).to_numpy(zero_copy_only=False), dtype=np.int64)
    owners[touched.keys] = known[places]
    return owners


def _foreign_keys(
    changes: Changes, is_foreign: NDArray[np.bool_], owners: NDArray[np.int64], key: Sequence[str]
) -> dict[int, ForeignKeys]:
    """Return, by sequencer, the keys that are of another one."""
    found = {}
    for sequencer_id in np.unique(changes.sequencers[is_foreign]):
        places = np.flatnonzero(is_foreign & (changes.sequencers == sequencer_id))
        index, _ = KeyIndex.of(changes.rows.take(pa.array(places)), key)
        numbers = np.empty(index.count, dtype=np.int64)
        _, of_rows = index.find(changes.rows.take(pa.array(places)))
        numbers[of_rows] = owners[changes.keys[places]]
        found[int(sequencer_id)] = ForeignKeys(index, numbers.tolist())
    return found


def _key_spread(
    declaration: Declaration, changes: Changes, is_foreign: NDArray[np.bool_], owners: NDArray[np.int64]
) -> KeySpread:
    places = np.flatnonzero(is_foreign)
    keys = to_rows(changes.rows.select(list(declaration.key)).take(pa.array(places[:_SAMPLE])))
    sample: list[dict[str, object]] = [
        {**values, "sequencer": int(changes.sequencers[place]), "first_sequencer": int(owners[changes.keys[place]])}
        for values, place in zip(keys, places, strict=False)
    ]
    first = sample[0]
    return KeySpread(
        f"keys of {declaration.name!r} have changes in several sequencers, whose order is not defined: {len(places)}, "
        f"for example {key_text(keys[0])}, of sequencer {first['first_sequencer']}, in {first['sequencer']}",
        hint="let the producers choose the sequencer by the key; or declare `on_key_spread: quarantine`, which puts "
        "the changes that came second aside",
        sample=sample,
    )


def _write(attempt: _Attempt) -> None:
    """Write the files of the corrections; nothing becomes visible."""
    run, head, corrections = attempt.run, attempt.head, attempt.corrections
    if not corrections.is_empty:
        changes, touched, table = attempt.changes, attempt.touched, head.table
        time = max(run.target.clock.now_ms(), head.state.open_upper(f"collection {run.target.shard.name!r}"))
        producers = pa.array([run.target.log.producer(number) for number in changes.sequencers[corrections.added]])
        added = changes.rows.drop_columns([DIFF]).take(pa.array(corrections.added))
        added = added.append_column(PRODUCER, producers.cast(pa.string()))
        retracted = touched.rows.take(pa.array(corrections.retracted))
        positions = touched.positions_of(corrections.retracted)
        # Each list is kept at once: whoever fails later deletes the files.
        files_added = write_rows(table, with_constants(added, ((TIME, time), (DIFF, 1))))
        attempt.written += files_added
        files_retracted = write_rows(table, with_constants(retracted, ((TIME, time), (DIFF, -1))))
        attempt.written += files_retracted
        deletes: tuple[DataFile, ...] = ()
        if positions:
            deletes = write_position_deletes(table, as_delete_rows(positions), attempt.stored.by_path)
            attempt.written += deletes
        attempt.batches.append(
            Batch(
                added=files_added,
                retracted=files_retracted,
                deletes=deletes,
                pinned_snapshot_id=head.contents.snapshot_id,
                deleted_from=frozenset(positions),
                schema_id=table.metadata.current_schema_id,
            )
        )
    attempt.batches += [Batch(producer=name.producer, range=name.range) for name in attempt.names]


def _put_aside(attempt: _Attempt) -> None:
    """Stage bad rows, and rows of keys that are of another sequencer, in the quarantine."""
    run, portion = attempt.run, attempt.portion
    with_bad = [
        part
        for part in portion.ranges
        if portion.tallies[part.sequencer_id].bad_rows or part.sequencer_id in attempt.foreign
    ]
    if not with_bad:
        return
    target = run.target
    quarantine = open_quarantine(target.shards, target.shard.name)
    table = quarantine.load().table
    topic = run.connection.topic or run.connection.place
    files, counts = write_bad(attempt.reading, with_bad, attempt.foreign, table, topic=topic)
    stage_files(
        quarantine, files, branch=attempt.name, fingerprint=attempt.name, schema_id=table.metadata.current_schema_id
    )
    for sequencer_id, count in counts.items():
        tally = portion.tallies[sequencer_id]
        attempt.spread += count - tally.bad_rows
        portion.tallies[sequencer_id] = replace(tally, bad_rows=count, rows=tally.rows - (count - tally.bad_rows))
    producers = {target.log.producer(part.sequencer_id) for part in with_bad}
    attempt.pending = describe_bad(attempt.name, [name for name in attempt.names if name.producer in producers])


def _publish(attempt: _Attempt) -> ShardState:
    """Publish corrections and numbers in one commit, which names the pending bad rows."""
    run, head = attempt.run, attempt.head
    published = attempt.writer.publish(
        *attempt.batches,
        lower=head.state.open_upper(f"collection {run.target.shard.name!r}"),
        new_upper=head.state.next_upper(run.target.clock.now_ms()),
        kind=CommitKind.ADVANCE if attempt.corrections.is_empty else CommitKind.CORRECT,
        properties={PENDING: attempt.pending},
    )
    if head.foreign:
        run.done.foreign = str(head.foreign)
    return published.state


def _report(run: _Run) -> CollectionReport:
    done, upper = run.done, run.head.state.upper
    details: dict[str, Any] = {"buffer": run.reader.name}
    bad_rows = sum(tally.bad_rows for tally in done.tallies.values())
    waiting = [replace(part, first=part.start, end=part.start) for part in run.planned]
    skipped = run.mode is Mode.READ_ONLY and bool(waiting)
    if skipped:
        generation = run.target.deployment.generation
        details["skipped_because"] = str(read_only(generation, f"ingest of {run.declaration.name!r}"))
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
