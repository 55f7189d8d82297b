"""Appends one small file as a batch, without a JVM: parsed, quarantined where it does not fit, published or staged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException

from tidemark.collections.append.append import ArrowDelivery, append
from tidemark.collections.append.batch_files import open_batch
from tidemark.collections.append.quarantine import set_aside
from tidemark.collections.append.status_delivery import StatusDelivery
from tidemark.collections.append.ways_in import decide_direct_write, role_of
from tidemark.collections.apply.batch_fit import plan_fit
from tidemark.collections.apply.execute import alter_columns, read_stored
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, OnReadOnly, OnSchemaChange
from tidemark.collections.mode import lead_to_write
from tidemark.collections.sources.batch_file import CsvForm
from tidemark.collections.sources.formats.csv_files import CsvSource
from tidemark.errors import InputsGone
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyiceberg.table import Table

    from tidemark.clock import Clock
    from tidemark.collections.apply.plan import Alteration
    from tidemark.collections.declarations.append_only import Expectations, StatusHistory
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.collections.quality.row_parsing import RejectedRow
    from tidemark.collections.staged.batches import BatchName
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards
    from tidemark.report import CollectionReport

SAMPLE = 10


def evolve_columns(shard: Shard, changes: Sequence[Alteration], deployment: Deployment) -> NoReturn:
    """Change the collection's columns so that a batch fits, and have everything looked at again.

    Raises:
        InputsGone: Always: what was computed for the old columns is computed anew.
        ReadOnly: If the deployment is read-only: a schema is the leader's, and what is staged has to fit it.
    """
    lead_to_write(shard, deployment, what="change of the columns")
    try:
        alter_columns(shard, changes)
    except CommitFailedException as error:
        raise InputsGone(f"the columns of {shard.name!r} were changed by another process") from error
    raise InputsGone(f"the columns of {shard.name!r} evolved: the batch is written for the new ones")


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
    rejected: list[RejectedRow] = []

    def rows(table: Table) -> pa.Table:
        stored = read_stored(table).columns
        names = [column.name for column in stored]
        opened = open_batch(batch.path, format_=batch.format_, form=batch.form, names=names)
        evolve = batch.on_schema_change is OnSchemaChange.EVOLVE
        if changes := plan_fit(opened.columns, stored, collection=shard.name, evolve=evolve):
            evolve_columns(shard, changes, deployment)
        kinds = arrow_schema(table)
        parsed = opened.read(pa.schema([kinds.field(name) for name in names]))
        rejected[:] = parsed.rejected
        if rejected:
            set_aside(shards, shard.name, name, rejected, file=str(batch.path), deployment=deployment, clock=clock)
        return parsed.rows

    if batch.status is None:
        delivery: ArrowDelivery | StatusDelivery = ArrowDelivery(name, rows)
    else:
        generation = deployment.generation
        delivery = StatusDelivery(name, rows, batch.status, collection=shard.name, generation=generation)
    done = append(
        shard,
        name,
        delivery,
        deployment=deployment,
        clock=clock,
        stage_when_read_only=batch.on_read_only is OnReadOnly.STAGE,
        expect=batch.expect,
    )
    report = replace(done.report(), seconds=(clock.now_ms() - began_ms) / 1000)
    if done.outcome is Outcome.SKIPPED:
        return report
    superseded = delivery.superseded if isinstance(delivery, StatusDelivery) else 0
    details: dict[str, object] = {"superseded": superseded} if superseded else {}
    if rejected:
        shown = [{"row": row.number, "reason": row.reason, "content": row.content} for row in rejected[:SAMPLE]]
        details |= {"quarantined": len(rejected), "quarantine": shard.name + QUARANTINE_SUFFIX, "sample": shown}
    return replace(report, rows_source=done.rows + superseded + len(rejected), details=details)
