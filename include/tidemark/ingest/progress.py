"""The progress and the lag of collections that read a buffer: from their ledgers, without a JVM."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.staged.batches import parse_range
from tidemark.errors import ConfigurationInvalid, TidemarkError, UsageError
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state_reader import ShardSummary, read_state
from tidemark.ingest.batches import look_at_batches
from tidemark.ingest.buffer_log import BufferLog, look_at
from tidemark.ingest.plan import PlannedRange, find_start, remembered_starts
from tidemark.ingest.range_rows import Tally
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import BadMessage, Delivered
from tidemark.write_buffer.formats.line_protocol import TIME_COLUMN
from tidemark.write_buffer.ranges import read_range
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

logger = logging.getLogger(__name__)  # `log` is the log of a buffer here

STALLED_S = 5.0
GROUP_PREFIX = "tidemark."  # of the consumer groups whose offsets show the progress of a collection to people


def read_one(reader: Reader, sequencer_id: int, start: int, end: int) -> Delivered | None:
    """Return the first entry of ``[start, end)``; None if there is none."""
    found = read_range(reader, sequencer_id, start, end=end, limit=1, stalled_s=STALLED_S)
    return found[0] if found else None


def lag_ms(waiting: Delivered | None, *, now_ms: int) -> int:
    """Return how long the oldest waiting entry has been waiting; 0 if none waits, or its clock runs ahead."""
    return 0 if waiting is None or waiting.time_ms is None else max(0, now_ms - waiting.time_ms)


def row_times(delivered: Delivered | None) -> tuple[int | None, int | None]:
    """Return the smallest and the largest time, in ns, of the rows of an entry, over all its tables."""
    if delivered is None or isinstance(delivered, BadMessage):
        return None, None
    times = [row.values.get(TIME_COLUMN) for row in decode_entry(delivered, default_table="*").good]
    whole = [time for time in times if isinstance(time, int) and not isinstance(time, bool)]
    return (min(whole), max(whole)) if whole else (None, None)


def measure(
    reader: Reader, planned: Sequence[PlannedRange], tallies: Mapping[int, Tally], *, now_ms: int
) -> dict[str, dict[str, Any]]:
    """Return the measures of each planned sequencer, by its number.

    Raises ``BufferUnreachable`` if the log cannot be read any more.
    """
    found = {}
    for part in planned:
        last = read_one(reader, part.sequencer_id, max(part.first, part.end - 1), part.end)
        waiting = read_one(reader, part.sequencer_id, part.end, part.watermark)
        earliest_ns, latest_ns = row_times(last)
        none = Tally(sequencer_id=part.sequencer_id, start=part.start, end=part.end)
        tally = tallies.get(part.sequencer_id, none)
        found[str(part.sequencer_id)] = {
            "start": part.start,
            "end": part.end,
            "watermark": part.watermark,
            "lost": part.lost,
            "last_sequence_number": part.end - 1,
            "sequence_number_lag": part.lag,
            "lag_ms": lag_ms(waiting, now_ms=now_ms),
            "last_ingest_time_ms": last.time_ms if last else None,
            "last_min_time_ns": earliest_ns,
            "last_max_time_ns": latest_ns,
            "requests_ok": tally.entries - tally.bad_entries,
            "requests_client_error": tally.bad_entries,
            "rows": tally.rows,
            "bad_rows": tally.bad_rows,
            "rows_of_other_tables": tally.other_tables,
            "read_bytes": tally.read_bytes,
        }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one collection on one sequencer."""

    collection: str
    sequencer: int
    committed: int  # the first number that is neither published nor staged
    published: int  # the first number that is not published
    lag: int  # how many numbers are neither published nor staged
    lag_ms: int  # how long the first of them has been waiting

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_progress(
    settings: Settings, declarations: Iterable[Declaration], reader: Reader, connection: Connection, *, now_ms: int
) -> list[Progress]:
    """Return the progress of each collection that reads the buffer, in order of names and sequencers.

    Raises ``Unreachable`` if the catalog or the buffer does not answer.
    """
    log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
    present = look_at(reader)
    waiting: dict[tuple[int, int], Delivered | None] = {}  # read once for all collections that stand at one number
    progress = []
    for declaration in sorted(declarations, key=lambda declaration: declaration.name):
        if _source_at(declaration, connection, settings.connections) is None:
            continue
        summary = read_state(settings, declaration.name)
        for sequencer_id, bounds in sorted(present.items()):
            producer = log.producer(sequencer_id)
            ledger = summary.state.ledgers.get(producer, Ledger())
            accepted = _accepted(summary, producer, settings.generation)
            start = find_start(accepted, bounds, remembered_starts(summary.properties).get(producer))
            wanted = Range(start, bounds.watermark)
            committed = _next_number(accepted, wanted)
            place = sequencer_id, committed
            if place not in waiting:
                waiting[place] = read_one(reader, sequencer_id, max(committed, bounds.earliest), bounds.watermark)
            progress.append(
                Progress(
                    collection=declaration.name,
                    sequencer=sequencer_id,
                    committed=committed,
                    published=_next_number(ledger, wanted),
                    lag=sum(missing.end - missing.start for missing in accepted.holes(wanted)),
                    lag_ms=lag_ms(waiting[place], now_ms=now_ms),
                )
            )
    return progress


def count_waiting_batches(
    settings: Settings, declarations: Iterable[Declaration], reader: Reader, connection: Connection
) -> dict[str, int]:
    """Return how many appended batches wait in the buffer, for each collection that reads it and lacks some.

    A log of names that cannot be read is only told: the ingest of the collection says the same, and fails.

    Raises ``Unreachable`` if the catalog does not answer.
    """
    waiting = {}
    for declaration in declarations:
        if (source := _batches_at(declaration, connection, settings.connections)) is None:
            continue
        summary = read_state(settings, declaration.name)
        try:
            count = _count_waiting(settings, declaration.name, summary, source, reader=reader, connection=connection)
        except TidemarkError as error:
            logger.warning("what waits for %s cannot be counted: %s", declaration.name, error)
            continue
        if count:
            waiting[declaration.name] = count
    return waiting


def count_waiting_in(settings: Settings, buffer: str, declarations: Iterable[Declaration]) -> dict[str, int]:
    """Return as ``count_waiting_batches`` for an address or a name.

    Raises as ``open_reader``, unless the buffer is gone, and as ``look_at_batches``; ``ConfigurationInvalid`` if the
    names of the batches cannot be read.
    """
    connection = find_connection(buffer, settings.connections)
    try:
        reader = open_reader(connection)
    except BufferMissing:  # what waited went with it
        return {}
    with reader:
        counts = {
            each.name: _count_waiting(
                settings, each.name, read_state(settings, each.name), source, reader=reader, connection=connection
            )
            for each in declarations
            if (source := _batches_at(each, connection, settings.connections)) is not None
        }
    return {name: count for name, count in counts.items() if count}


def _count_waiting(
    settings: Settings,
    name: str,
    summary: ShardSummary,
    source: BufferSource,
    *,
    reader: Reader,
    connection: Connection,
) -> int:
    log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
    seen = look_at_batches(connection, log, reader.identity, summary.state.ledgers, source=source)
    if seen.obstacle:
        raise ConfigurationInvalid(seen.obstacle, hint="let this login read them")
    names = (seen.name_for(b, name) for b in seen.batches if source.table in {None, b.table})
    return sum(not _accepted(summary, name.producer, settings.generation).covers(name.range) for name in names)


def find_writers(declarations: Iterable[Declaration], connection: Connection, environ: Mapping[str, str]) -> list[str]:
    """Return the collections whose appended rows go into the buffer."""
    return sorted(each.name for each in declarations if _is_at(each.writes_to, connection, environ))


def _source_at(declaration: Declaration, connection: Connection, environ: Mapping[str, str]) -> BufferSource | None:
    """Return the source of a collection that reads the buffer; None for any other collection."""
    source = declaration.source
    return source if isinstance(source, BufferSource) and _is_at(source.buffer, connection, environ) else None


def _batches_at(declaration: Declaration, connection: Connection, environ: Mapping[str, str]) -> BufferSource | None:
    """Return as ``_source_at`` for a collection that takes appended batches, which changes by key are not among."""
    return None if declaration.kind is Kind.LATEST else _source_at(declaration, connection, environ)


def _is_at(buffer: str | None, connection: Connection, environ: Mapping[str, str]) -> bool:
    if buffer is None:
        return False
    try:
        own = find_connection(buffer, environ)
    except TidemarkError:  # the buffer is not set here: it may be another one
        return False
    return (own.type, own.place, own.topic) == (connection.type, connection.place, connection.topic)


def _next_number(ledger: Ledger, wanted: Range) -> int:
    """Return the first number that is missing, or the number after the last that is there."""
    for missing in ledger.holes(wanted):
        return missing.start
    return ledger.ranges[-1].end if ledger.ranges else wanted.end


def _accepted(summary: ShardSummary, producer: str, generation: int) -> Ledger:
    """Return the numbers that are published, or staged by the deployment."""
    return summary.state.ledgers.get(producer, Ledger()).add_free(_staged(summary, producer, generation))


def _staged(summary: ShardSummary, producer: str, generation: int) -> list[Range]:
    prefix = f"{STAGED}{generation}/{producer}/"
    found = []
    for branch in summary.staged:
        if branch.startswith(prefix):
            try:
                found.append(parse_range(branch.removeprefix(prefix)))
            except UsageError:  # this branch is not the batch of an append
                continue
    return found
