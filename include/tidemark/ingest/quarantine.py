"""The quarantine of a collection that reads a buffer: where each bad row stood, why it is bad, and its raw bytes.

Bad rows are listed, and appended once they are rows after all. The collection itself knows what was retried: in the
commit that makes the rows visible, an entry goes into the ledger ``PRODUCER.retried`` if no bad row of it is left; else
its good rows go into ``PRODUCER.retried.rows``. The quarantine stays as it is, as a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.append.append import with_batch_columns
from tidemark.collections.apply.execute import alter_columns, read_stored
from tidemark.collections.apply.plan import Add
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, Declaration, Kind
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import lead_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.objects.quarantine import find_quarantine, make_quarantine
from tidemark.collections.publish import ATTEMPTS, publish
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import ExpectationFailed, InputsGone, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.column_names import ENTRY, PRODUCER
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import RETRIED, RETRIED_ROWS, ROWS_BITS, BufferLog, check_buffer_source
from tidemark.ingest.messages import COLUMNS as MESSAGE_COLUMNS
from tidemark.ingest.messages import RowDecoder, decoded_columns
from tidemark.ingest.order.entry_numbers import as_entry
from tidemark.ingest.order.log_turns import read_turns
from tidemark.ingest.partitions.arrivals import NO_ARRIVALS, Arrivals
from tidemark.ingest.partitions.closing import describe_changes
from tidemark.ingest.partitions.counting import Counted, count_rows, judging
from tidemark.ingest.partitions.state import Arrived, PartitionRules
from tidemark.report import CollectionReport, Outcome
from tidemark.retry import retrying
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.formats.entry import Message, Sequence, read_message

COLUMNS_TEXT = (
    "topic string, partition int, `offset` bigint, place int, time_ms bigint, "
    "headers array<struct<name: string, value: binary>>, reason string, detail string, raw binary"
)
COLUMNS = parse_columns(COLUMNS_TEXT)
FAIL_POINTS = ("retry.after-files",)


def quarantine_name(collection: str) -> str:
    """Return the name of the collection that the bad rows of ``collection`` go to."""
    return collection + QUARANTINE_SUFFIX


def open_quarantine(shards: Shards, shard: Shard) -> Shard:
    """Return the quarantine of a collection, made or given its columns if need be: one that files left has others.

    Raises as ``make_quarantine``.
    """
    quarantine = make_quarantine(shards, shard, to_iceberg(COLUMNS))
    present = {column.name for column in read_stored(quarantine.load().table).columns}
    if missing := [Add(quarantine.name, column) for column in COLUMNS if column.name not in present]:
        alter_columns(quarantine, missing)
    return quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """A row of a quarantine that is not in its collection; ``place`` is its place in the entry, -1 all of it."""

    producer: str
    topic: str
    partition: int
    offset: int
    place: int
    time_ms: int | None
    headers: tuple[tuple[str, bytes], ...]
    reason: str
    detail: str
    raw: bytes | None

    @property
    def number(self) -> Range:
        """The row's number in the ledger of retried rows: rows of one entry follow each other."""
        number = (self.offset << ROWS_BITS) + self.place + 1
        return Range(number, number + 1)

    @property
    def message(self) -> Message:
        """The row as a message of its own."""
        return Message(self.raw, self.headers, self.time_ms)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which entries are meant; None: any."""

    partition: int | None = None
    offset: int | None = None

    def fits(self, row: QuarantinedRow) -> bool:
        return self.partition in {None, row.partition} and self.offset in {None, row.offset}


def list_quarantined(shards: Shards, collection: str, chosen: Chosen | None = None) -> list[QuarantinedRow]:
    """Return what waits in the quarantine of a collection, in order of partitions and offsets, each row once.

    Raises ``UnknownCollection`` if there is no such collection.
    """
    shard = shards.open(collection)
    return _waiting(shards, shard, shard.load(), chosen or Chosen())


def retry(
    shards: Shards,
    deployment: Deployment,
    declaration: Declaration,
    *,
    clock: Clock,
    chosen: Chosen | None = None,
    table: str | None = None,
) -> CollectionReport:
    """Append the quarantined rows that fit by now, in one commit.

    ``table`` is the table of JSON rows that name none.

    Raises:
        UsageError: If the collection does not read a buffer, keeps the latest row of each key, or takes the rows of
            another table than ``table``.
        ReadOnly: If the deployment is read-only.
        ExpectationFailed: If the rows are not what the collection expects.
        ConflictsUnsettled: If other commits kept winning; nothing was appended.
    """
    source = check_buffer_source(declaration)
    if declaration.kind is Kind.LATEST:
        raise UsageError(
            f"{declaration.name!r} keeps the latest row of each key, and a change that was put aside may be older than "
            "the present row: it is not retried",
            hint="look at it with `tidemark buffer quarantine list`, and let its producer write the row as it is now",
        )
    if None not in {table, source.table} and table != source.table:  # they would count as retried, and be nowhere
        raise UsageError(
            f"{declaration.name!r} takes the rows of the table {source.table!r}, not of {table!r}",
            hint=f"retry with --table {source.table}; rows of other tables stay where they are",
        )
    shard = open_applied(shards, deployment, declaration)
    attempts = retrying(InputsGone, attempts=ATTEMPTS, what=f"the retry of bad rows of {shard.name!r}")
    with holding(deployment.settings, "retry", [shard.name]):
        return attempts(
            _retry_once, shards, shard, declaration, chosen or Chosen(), table, deployment=deployment, clock=clock
        )


def _retry_once(
    shards: Shards,
    shard: Shard,
    declaration: Declaration,
    chosen: Chosen,
    table: str | None,
    *,
    deployment: Deployment,
    clock: Clock,
) -> CollectionReport:
    writer = lead_to_write(shard, deployment, what="retry of bad rows")
    head = shard.load()
    lower = head.state.open_upper(f"collection {shard.name!r}")
    waiting = _waiting(shards, shard, head, chosen)
    rules = PartitionRules.of(declaration)
    now_ms = clock.now_ms()
    times = None if rules is None else judging(rules, None, since_ms=now_ms, now_ms=now_ms)  # so late rows come in
    decoder = RowDecoder(decoded_columns(head.table), check_buffer_source(declaration).table, times)
    entries = [
        _Entry(producer, offset, list(rows))
        for (producer, offset), rows in groupby(waiting, key=lambda row: (row.producer, row.offset))
    ]
    found = [entry for entry in entries if entry.decode(decoder, table)]
    still_bad = len(waiting) - sum(len(entry.taken) for entry in found)
    if not found:
        return CollectionReport(outcome=Outcome.UNCHANGED, lower=lower, upper=lower, details={"still_bad": still_bad})
    turns = read_turns(head.table.properties)
    rows = pa.concat_tables(
        [
            with_constants(with_batch_columns(entry.good, entry.name), ((ENTRY, entry.numbered(turns)),))
            for entry in found
        ]
    )
    files = write_rows(head.table, rows)
    fail_point("retry.after-files")
    try:
        if declaration.expect is not None:
            hint = "repair the rows, or alter `expect` and apply it"
            check_expectations(head.table, BatchFiles(shard.name, "the retry", files, hint), declaration.expect)
    except ExpectationFailed:
        delete_files(head.table, [file.file_path for file in files])
        raise
    batches = [
        Batch(
            added=files, schema_id=head.table.metadata.current_schema_id, is_open=rules is not None and rules.keeps_open
        ),
        *(Batch(producer=name.producer, range=name.range) for entry in found for name in entry.numbers()),
    ]
    counted = None if rules is None else _count(head, rules, found, now_ms=now_ms)
    properties = None if counted is None else counted.properties
    published = publish(writer, head, batches, clock=clock, written=files, properties=properties)
    ranges = _ranges(entry for entry in found if entry.is_done)
    return CollectionReport(
        outcome=Outcome.APPENDED,
        lower=lower,
        upper=published.state.upper,
        inserted=rows.num_rows,
        rows_source=len(waiting),
        batches=len(found),
        details={"still_bad": still_bad, "ranges": ranges, **describe_changes(counted, refused=0)},
    )


def _count(head: ShardHead, rules: PartitionRules, found: list[_Entry], *, now_ms: int) -> Counted:
    """Return the state of partitions with the rows, which say nothing of how far sequencers are: nothing closes."""
    names = [name for entry in found for name in entry.numbers()]
    arrived = [Arrived(None, entry.arrivals.partitions) for entry in found]
    log = BufferLog.of_producer(found[0].producer)
    return count_rows(head, rules, log, names, {now_ms: arrived}, now_ms=now_ms)


@dataclass(slots=True)
class _Entry:
    """The bad rows of one entry."""

    producer: str  # of the log
    offset: int
    rows: list[QuarantinedRow]
    taken: list[QuarantinedRow] = field(default_factory=list)  # those that fit by now
    good: pa.Table | None = None
    arrivals: Arrivals = NO_ARRIVALS  # of the good rows

    @property
    def name(self) -> BatchName:
        """The name of the retried entry as a batch of its own."""
        return BatchName(self.producer + RETRIED, Range(self.offset, self.offset + 1))

    def numbered(self, turns: Mapping[str, int]) -> int:
        """Return the `_entry` of the rows."""
        return as_entry(self.offset, turns.get(BufferLog.of_producer(self.producer).id, 0))

    @property
    def is_done(self) -> bool:
        """Whether all bad rows of the entry are good by now."""
        return len(self.taken) == len(self.rows)

    def numbers(self) -> list[BatchName]:
        """Return what goes into the ledgers: the entry if it is done, else its good rows."""
        if self.is_done:
            return [self.name]
        return [BatchName(self.producer + RETRIED_ROWS, row.number) for row in self.taken]

    def decode(self, decoder: RowDecoder, table: str | None) -> bool:
        """Keep the good rows; return whether there are any."""
        good = []
        for row in self.rows:
            message = row.message
            if table is not None:
                message = Message(
                    message.payload, (("tidemark-table", table.encode()), *message.headers), message.time_ms
                )
            delivered = read_message(Sequence(row.partition, row.offset), message)
            decoded = decoder.decode(MessageColumns(row.partition, MESSAGE_COLUMNS).batch_of([delivered]))
            if not decoded.bad:
                self.taken.append(row)
                good.append(decoded.good)
                self.arrivals = self.arrivals.add(decoded.arrivals)
        self.good = pa.concat_tables(good) if good else None
        return bool(good)


def _waiting(shards: Shards, shard: Shard, head: ShardHead, chosen: Chosen) -> list[QuarantinedRow]:
    quarantine = find_quarantine(shards, shard)
    if quarantine is None:
        return []
    found: dict[tuple[str, int, int], QuarantinedRow] = {}
    names = {column.name for column in COLUMNS}
    table = quarantine.load().table
    if not names <= set(table.schema().column_names):
        return []  # made by appends of files: those rows have no entry to be read from
    for values in table.scan(selected_fields=(*names, PRODUCER)).to_arrow().to_pylist():
        if values["offset"] is None:
            continue
        row = _row(values)
        entries, rows = (
            head.state.ledgers.get(row.producer + retried, Ledger()) for retried in (RETRIED, RETRIED_ROWS)
        )
        if chosen.fits(row) and not entries.covers(Range(row.offset, row.offset + 1)) and not rows.covers(row.number):
            found[row.producer, row.offset, row.place] = row  # older versions put some rows there twice
    return [found[key] for key in sorted(found)]


def _row(values: dict[str, Any]) -> QuarantinedRow:
    headers = tuple((pair["name"], pair["value"] or b"") for pair in values["headers"] or ())
    return QuarantinedRow(
        producer=values[PRODUCER], headers=headers,
        **{column.name: values[column.name] for column in COLUMNS if column.name != "headers"},
    )  # fmt: skip


def _ranges(found: Iterable[_Entry]) -> dict[str, list[list[int]]]:
    ledgers: dict[str, Ledger] = {}
    for entry in found:
        ledgers[entry.name.producer] = ledgers.get(entry.name.producer, Ledger()).add(entry.name.range)
    return {producer: [list(numbers) for numbers in ledger.ranges] for producer, ledger in ledgers.items()}
