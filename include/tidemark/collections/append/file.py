"""Appends one small file as a batch, without a JVM: parsed, quarantined where it does not fit, published or staged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.append.append import Append, Appended
from tidemark.collections.append.batch_files import open_batch
from tidemark.collections.append.quarantine import set_aside
from tidemark.collections.append.statuses import StatusFilter
from tidemark.collections.append.ways_in import decide_direct_write, role_of
from tidemark.collections.apply.batch_fit import plan_fit
from tidemark.collections.apply.execute import read_stored
from tidemark.collections.declarations.append_only import Expectations, StatusHistory
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, Declaration, OnReadOnly, OnSchemaChange
from tidemark.collections.deployment import Deployment
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.sources.batch_file import CsvForm
from tidemark.collections.sources.formats.csv_files import CsvSource
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from pyiceberg.table import Table


SAMPLE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """One file, how it is written, and what its collection says about batches."""

    path: Path
    format_: str | None = None
    form: CsvForm = field(default_factory=CsvForm)
    on_read_only: OnReadOnly = OnReadOnly.STAGE
    on_schema_change: OnSchemaChange = OnSchemaChange.FAIL
    expect: Expectations | None = None
    status: StatusHistory | None = None

    @classmethod
    def declared(cls, path: Path, declaration: Declaration, *, format_: str | None = None) -> FileBatch:
        """Return the batch as the declaration has it: a file appended by hand looks like those of the source.

        Raises:
            OnlyThroughBuffer: If the collection's rows come out of a write buffer.
        """
        decide_direct_write(role_of(declaration), collection=declaration.name)
        source = declaration.source
        form = CsvForm()
        if isinstance(source, CsvSource):
            form = CsvForm(
                delimiter=source.delimiter,
                quote=source.quote,
                header=source.has_header,
                null_text=source.option("nullValue", ""),
            )
        return cls(
            path=path,
            format_=format_,
            form=form,
            on_read_only=declaration.on_read_only,
            on_schema_change=declaration.on_schema_change,
            expect=declaration.expect,
            status=declaration.status,
        )


def append_file(
    shards: Shards, shard: Shard, name: BatchName, batch: FileBatch, *, deployment: Deployment, clock: Clock
) -> CollectionReport:
    """Append the rows of one file as the batch ``name``, once; those that do not parse go to the quarantine.

    Raises:
        InputMissing: If there is no such file.
        SchemaMismatch: If the file's columns are not the collection's; nothing was appended.
        ReadOnly: If the deployment is read-only and the collection rejects batches, or would have to change its schema.
        TidemarkError: As ``append``.
    """
    began_ms = clock.now_ms()
    generation = deployment.generation
    file = _FileAppend(
        shards=shards,
        file=batch,
        batch=Append(
            shard=shard,
            name=name,
            deployment=deployment,
            clock=clock,
            stage_when_read_only=batch.on_read_only is OnReadOnly.STAGE,
            expect=batch.expect,
            depends_on_contents=batch.status is not None,
        ),
        news=StatusFilter(batch.status, collection=shard.name, generation=generation) if batch.status else None,
    )
    done = file.batch.attempts()(_append_once, file)
    report = replace(done.report(), seconds=(clock.now_ms() - began_ms) / 1000)
    if done.outcome is Outcome.SKIPPED:
        return report
    details: dict[str, object] = {"superseded": file.superseded} if file.superseded else {}
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
    news: StatusFilter | None
    rejected: tuple[RejectedRow, ...] = ()
    superseded: int = 0


def _append_once(append: _FileAppend) -> Appended:
    file, batch = append.file, append.batch
    if (answer := batch.look()) is not None:
        return answer
    if not batch.is_written:
        stored = read_stored(batch.head.table).columns
        names = [column.name for column in stored]
        opened = open_batch(file.path, format_=file.format_, form=file.form, names=names)
        evolve = file.on_schema_change is OnSchemaChange.EVOLVE
        batch.evolve(plan_fit(opened.columns, stored, collection=batch.shard.name, evolve=evolve))
        parsed = opened.read(user_columns(batch.head.table))
        append.rejected = parsed.rejected
        if parsed.rejected:  # before the rows themselves: after a crash the batch is appended again
            set_aside(
                append.shards,
                batch.shard.name,
                batch.name,
                parsed.rejected,
                file=str(file.path),
                deployment=batch.deployment,
                clock=batch.clock,
            )
        rows = parsed.rows if append.news is None else append.news.choose(batch.head, parsed.rows)
        append.superseded = parsed.rows.num_rows - rows.num_rows
        batch.write(rows)
    return batch.finish()


def user_columns(table: Table) -> pa.Schema:
    """Return the columns that a user declared, as Arrow has them."""
    kinds = arrow_schema(table)
    return pa.schema([kinds.field(column.name) for column in read_stored(table).columns])
