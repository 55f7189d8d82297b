"""Appends one small file as a batch, without a JVM: parsed, quarantined where it does not fit, published or staged.

Rows that do not parse are kept beside their collection with the reason: nothing is lost, nothing wrong is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
from pyiceberg.expressions.parser import parse

from tidemark.clock import Clock
from tidemark.collections.append.append import Append, append_rows
from tidemark.collections.append.batch_fit import fit_columns
from tidemark.collections.append.forward import Appended, user_columns
from tidemark.collections.append.ways_in import Rules
from tidemark.collections.declarations.append_only import Expectations, StatusHistory
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, Declaration, OnReadOnly, OnSchemaChange
from tidemark.collections.deployment import Deployment
from tidemark.collections.objects.quarantine import make_quarantine
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.types import Column, Primitive
from tidemark.collections.sources.batch_file import BatchFile, CsvForm, refusing
from tidemark.collections.sources.formats.csv_files import CsvSource
from tidemark.collections.sources.formats.registry import BATCH_FORMATS
from tidemark.collections.staged.batches import BatchName, queued_batches
from tidemark.errors import CorruptState, InputMissing, RangeOverlap, UsageError
from tidemark.iceberg.reading.arrow import scan_snapshot
from tidemark.iceberg.shard.column_names import BATCH, PRODUCER
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome

SAMPLE = 10
COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}
QUARANTINE_COLUMNS = (
    Column("file", Primitive("string")),
    Column("row", Primitive("bigint")),  # from 1, without the header
    Column("reason", Primitive("string")),
    Column("content", Primitive("string")),
)
_DIGITS, _LONGEST_PRODUCER = 12, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """One file, how it is written, and what is asked of it beyond the declaration of its collection."""

    path: Path
    format_: str | None = None
    form: CsvForm = field(default_factory=CsvForm)
    on_read_only: OnReadOnly = OnReadOnly.STAGE
    on_schema_change: OnSchemaChange = OnSchemaChange.FAIL
    expect: Expectations | None = None
    status: StatusHistory | None = None

    @classmethod
    def declared(cls, path: Path, declaration: Declaration, *, format_: str | None = None) -> FileBatch:
        """Return the batch as the declaration has it: a file appended by hand looks like those of the source."""
        source = declaration.source
        form = CsvForm()
        if isinstance(source, CsvSource):
            form = CsvForm(
                delimiter=source.delimiter,
                quote=source.quote,
                header=source.has_header,
                null_text=source.option("nullValue", ""),
            )
        return cls(path=path, format_=format_, form=form, on_schema_change=declaration.on_schema_change)


def append_file(
    shards: Shards, shard: Shard, name: BatchName, batch: FileBatch, *, deployment: Deployment, clock: Clock
) -> CollectionReport:
    """Append the rows of one file as the batch ``name``, once; those that do not parse go to the quarantine.

    Raises:
        InputMissing: If there is no such file.
        SchemaMismatch: If the file's columns are not the collection's; nothing was appended.
        ReadOnly: If the deployment is read-only and the collection rejects batches, or would have to change its schema.
        TidemarkError: As ``append_rows``, whose words about the declaration hold here, too.
    """
    began_ms = clock.now_ms()
    stages = batch.on_read_only is OnReadOnly.STAGE
    own = Rules.asked(stage_when_read_only=stages, expect=batch.expect, status=batch.status)
    whole = Append(shard=shard, name=name, deployment=deployment, clock=clock, own=own)
    file = _FileAppend(shards=shards, file=batch, batch=whole)
    done = file.batch.run(_append_once, file)
    report = replace(done.report(), seconds=(clock.now_ms() - began_ms) / 1000)
    if done.outcome is Outcome.SKIPPED:
        return report
    details = report.details | ({"superseded": file.superseded} if file.superseded else {})
    if rejected := file.rejected:
        shown = [{"row": row.number, "reason": row.reason, "content": row.content} for row in rejected[:SAMPLE]]
        details |= {"quarantined": len(rejected), "quarantine": shard.name + QUARANTINE_SUFFIX, "sample": shown}
    return replace(report, rows_source=done.rows + file.superseded + len(rejected), details=details)


@dataclass(slots=True, kw_only=True)
class _FileAppend:
    """The append of one file, and which of its rows did not become rows of the collection."""

    shards: Shards
    file: FileBatch
    batch: Append
    rejected: tuple[RejectedRow, ...] = ()
    superseded: int = 0


def _append_once(append: _FileAppend) -> Appended:
    file, batch = append.file, append.batch
    if (answer := batch.look()) is not None:
        return answer
    if not batch.is_written:
        names = user_columns(batch.head.table).names
        opened = open_batch(file.path, format_=file.format_, form=file.form, names=names)
        fit_columns(batch, opened.columns, evolve=file.on_schema_change is OnSchemaChange.EVOLVE)
        parsed = opened.read(user_columns(batch.head.table))
        append.rejected = parsed.rejected
        if parsed.rejected:  # before the rows themselves: after a crash the batch is appended again
            set_aside(
                append.shards,
                batch.shard,
                batch.name,
                parsed.rejected,
                file=str(file.path),
                deployment=batch.deployment,
                clock=batch.clock,
            )
        append.superseded = parsed.rows.num_rows - batch.write(parsed.rows)
    return batch.finish()


def open_batch(
    path: Path, *, format_: str | None = None, form: CsvForm | None = None, names: Iterable[str] = ()
) -> BatchFile:
    """Look at one file; CSV and JSON may be compressed, as the last suffix says.

    Without ``format_``, one of ``BATCH_FORMATS``, the suffix tells the format. ``names`` are the columns of a CSV file
    without a header; a first line that has these names is taken for a header.

    Raises:
        InputMissing: If there is no such file.
        UsageError: If the format is unknown.
        Refused: If the file as a whole cannot be read.
    """
    if not path.is_file():
        raise InputMissing(f"{path} is no file", hint="give the path of the batch's file")
    suffix = (path.suffixes[-2:-1] or [""])[0] if path.suffix in COMPRESSIONS else path.suffix
    for name, form_of_file in BATCH_FORMATS.items():
        if name == format_ or (format_ is None and suffix in form_of_file.suffixes):
            with refusing(path):
                return form_of_file.open_batch(path, form or CsvForm(), tuple(names))
    *first, last = BATCH_FORMATS
    known = f"{', '.join(first)} and {last}"
    raise UsageError(f"the format of {path} is not known", hint=f"formats are {known}: give --format")


def set_aside(
    shards: Shards,
    collection: Shard,
    name: BatchName,
    rejected: Sequence[RejectedRow],
    *,
    file: str,
    deployment: Deployment,
    clock: Clock,
) -> BatchName:
    """Append the rejected rows of one batch to the collection's quarantine, once; return the name they have there.

    Done before the batch itself: after a crash in between the batch is appended again, and its quarantine is there.
    The name is the batch's own, unless other rows have it: a batch that was refused, or discarded while it was staged,
    leaves its rejected rows, and may come again with others. Those go under a producer named after them.
    The quarantine is a collection of its own, made when it is first needed and staged like any other.
    """
    shard = make_quarantine(shards, collection, to_iceberg(QUARANTINE_COLUMNS))
    rows = pa.table(
        {
            "file": pa.array([file] * len(rejected), pa.string()),
            "row": pa.array([row.number for row in rejected], pa.int64()),
            "reason": pa.array([row.reason for row in rejected], pa.string()),
            "content": pa.array([row.content for row in rejected], pa.string()),
        }
    )
    with suppress(RangeOverlap):  # a part of the range has rejected rows, of a batch that was cut otherwise
        append_rows(shard, name, rows, deployment=deployment, clock=clock)
        # The answer does not say whose rows have the name: a branch that stood there may be published by now.
        if set(rejected) <= _quarantined_as(shard, name, deployment):
            return name
    own = _named_after(rejected, name)
    append_rows(shard, own, rows, deployment=deployment, clock=clock)
    return own


def _quarantined_as(shard: Shard, name: BatchName, deployment: Deployment) -> set[RejectedRow]:
    """Return the rows that are published, or wait for a flush, under ``name``; not those that are damaged."""
    head = shard.load()
    start, end = name.range
    of_name = parse(f"{PRODUCER} = '{name.producer}' and {BATCH} >= {start} and {BATCH} < {end}")  # no name has a quote
    snapshots = [head.contents]
    for queued in queued_batches(head, collection=shard.name, deployment=deployment):
        if queued.name.producer == name.producer and Ledger((queued.name.range,)).overlaps(name.range):
            snapshot = head.table.metadata.snapshot_by_id(queued.snapshot_id)
            snapshots += [snapshot] if snapshot is not None else []
    kept: set[RejectedRow] = set()
    for snapshot in snapshots:
        with suppress(CorruptState, OSError, pa.ArrowException):  # kept once more rather than not at all
            found = scan_snapshot(head, snapshot, columns=["row", "reason", "content"], row_filter=of_name)
            kept |= set(map(RejectedRow._make, zip(*found.to_pydict().values(), strict=True)))
    return kept


def _named_after(rejected: Iterable[RejectedRow], name: BatchName) -> BatchName:
    """Return a name that these rows of this batch alone have, whenever they come."""
    text = json.dumps([name.producer, *name.range, *sorted(rejected)])
    digest = sha256(text.encode()).hexdigest()[:_DIGITS]
    return BatchName(f"{name.producer[: _LONGEST_PRODUCER - _DIGITS - 1]}.{digest}", name.range)
