"""Commits one portion of changes: compares, writes, puts bad rows aside, publishes everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile

from tidemark.collections.declarations.collection import Declaration, OnKeySpread
from tidemark.collections.schema.renaming import refuse_if_pending
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, KeySpread, TidemarkError, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import to_rows, with_constants
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.key_index import ABSENT, KeyIndex
from tidemark.iceberg.files.row_positions import as_delete_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shard.column_names import DIFF, PRODUCER, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind, ShardState
from tidemark.iceberg.staging.files import stage_files
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.latest.changes import Changes
from tidemark.ingest.latest.corrections import Corrections, TouchedRows, correct, find_touched
from tidemark.ingest.latest.decoding import ForeignKeys, key_text
from tidemark.ingest.latest.portion import ChangeReading, Portion, write_bad
from tidemark.ingest.messages import decoded_columns
from tidemark.ingest.publish import PENDING, Target, describe_bad, drop_attempts, name_attempt
from tidemark.ingest.quarantine import open_quarantine

FAIL_POINTS = ("latest.after-files", "latest.after-quarantine")
_SAMPLE = 5


@dataclass(slots=True)
class Attempt:
    """One portion on its way into the collection; the comment beside a field names the step that sets the field."""

    target: Target
    declaration: Declaration
    writer: Writer
    head: ShardHead  # that everything is computed for
    reading: ChangeReading
    portion: Portion
    branch: str = field(init=False)  # of the bad rows
    stored: StoredRows = field(init=False)  # compare
    changes: Changes = field(init=False)  # compare
    touched: TouchedRows = field(init=False)  # compare
    corrections: Corrections = field(init=False)  # compare
    foreign: dict[int, ForeignKeys] = field(default_factory=dict)  # compare
    written: list[DataFile] = field(default_factory=list)  # write
    batches: list[Batch] = field(default_factory=list)  # write
    time: int = field(init=False)  # write: of the corrections, in ms since the Unix epoch
    spread: int = 0  # put aside: rows whose key is of another sequencer
    pending: str = ""  # put aside

    def __post_init__(self) -> None:
        self.branch = name_attempt(self.target)

    @property
    def names(self) -> list[BatchName]:
        producer = self.target.log.producer
        return [BatchName(producer(part.sequencer_id), part.range) for part in self.portion.ranges]


def commit_portion(attempt: Attempt) -> ShardState:
    """Make corrections and numbers visible in one commit, which names the pending bad rows; return what it left.

    Raises:
        UpperMismatch: If another commit was faster, also as ``RangeOverlap``, ``InputsGone`` or ``FencedByEpoch``:
            read again.
        KeySpread: If a key has changes in several sequencers, and the declaration refuses that.
        Others as ``Writer.publish``.
    """
    try:
        _compare(attempt)
        _write(attempt)
        fail_point("latest.after-files")
        _put_aside(attempt)
        fail_point("latest.after-quarantine")
        return _publish(attempt)
    except (CommitStateUnknown, ConflictsUnsettled, Unreachable):
        raise  # the commit may have landed; if not, maintenance removes the files
    except TidemarkError:
        delete_files(attempt.head.table, [file.file_path for file in attempt.written])
        drop_attempts(attempt.target, [attempt.branch])
        raise


def _compare(attempt: Attempt) -> None:
    """Find the stored rows of the changed keys, the keys that are spread, and the corrections."""
    head, declaration = attempt.head, attempt.declaration
    key, schema = declaration.key, decoded_columns(head.table)
    refuse_if_pending(key, head.table.properties, renames=declaration.renames, collection=declaration.name)
    changes = Changes.of(attempt.portion.changes, schema.append(pa.field(DIFF, pa.int64())), key)
    stored = StoredRows.in_contents(head) if changes.index.count else StoredRows(head.table, ())
    touched = find_touched(stored, changes.index, key, [*schema.names, PRODUCER])
    owners = changes.find_owners(_stored_owners(attempt.target.log, touched, changes.index.count))
    is_foreign = changes.sequencers != owners[changes.keys]
    if is_foreign.any():
        attempt.foreign = _foreign_keys(changes, is_foreign, owners, key)
        if declaration.on_key_spread is OnKeySpread.REFUSE:
            raise _key_spread(declaration, changes, is_foreign, owners)
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


def _write(attempt: Attempt) -> None:
    """Write the files of the corrections; nothing becomes visible."""
    target, head, corrections = attempt.target, attempt.head, attempt.corrections
    changes, touched, table = attempt.changes, attempt.touched, head.table
    time = attempt.time = max(target.clock.now_ms(), head.state.open_upper(f"collection {target.shard.name!r}"))
    producers = [target.log.producer(number) for number in changes.sequencers[corrections.added]]
    added = changes.rows.drop_columns([DIFF]).take(pa.array(corrections.added))
    added = added.append_column(PRODUCER, pa.array(producers, pa.string()))
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
    rows = Batch(
        added=files_added,
        retracted=files_retracted,
        deletes=deletes,
        pinned_snapshot_id=head.contents.snapshot_id,
        deleted_from=frozenset(positions),
        schema_id=table.metadata.current_schema_id,  # also without rows: the values of a new column would be lost
    )
    attempt.batches += [rows, *(Batch(producer=name.producer, range=name.range) for name in attempt.names)]


def _put_aside(attempt: Attempt) -> None:
    """Stage bad rows, and rows of keys that are of another sequencer, in the quarantine."""
    target, portion = attempt.target, attempt.portion
    with_bad = [
        part
        for part in portion.ranges
        if portion.tallies[part.sequencer_id].bad_rows or part.sequencer_id in attempt.foreign
    ]
    if not with_bad:
        return
    quarantine = open_quarantine(target.shards, target.shard)
    table = quarantine.load().table
    connection = attempt.reading.connection
    topic = connection.topic or connection.place
    files, counts = write_bad(attempt.reading, with_bad, attempt.foreign, table, topic=topic)
    stage_files(
        quarantine, files, branch=attempt.branch, fingerprint=attempt.branch, schema_id=table.metadata.current_schema_id
    )
    for sequencer_id, count in counts.items():
        tally = portion.tallies[sequencer_id]
        attempt.spread += count - tally.bad_rows
        portion.tallies[sequencer_id] = replace(tally, bad_rows=count, rows=tally.rows - (count - tally.bad_rows))
    producers = {target.log.producer(part.sequencer_id) for part in with_bad}
    attempt.pending = describe_bad(attempt.branch, [name for name in attempt.names if name.producer in producers])


def _publish(attempt: Attempt) -> ShardState:
    """Publish corrections and numbers in one commit, which names the pending bad rows."""
    target, head = attempt.target, attempt.head
    published = attempt.writer.publish(
        *attempt.batches,
        lower=head.state.open_upper(f"collection {target.shard.name!r}"),
        new_upper=head.state.next_upper(max(target.clock.now_ms(), attempt.time)),  # the clock may step back
        kind=CommitKind.ADVANCE if attempt.corrections.is_empty else CommitKind.CORRECT,
        properties={PENDING: attempt.pending},
    )
    return published.state
