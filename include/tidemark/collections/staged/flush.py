"""Publishes what was staged while the deployment was read-only: one commit per collection, all of it or nothing.

The commit makes the rows visible, puts their ranges into the ledgers, removes the staging branches and raises the
token. So a second flush, or a rerun after a crash at any instruction, finds either everything to do or nothing, and
whoever joined before has to look again before writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from tidemark.clock import Clock
from tidemark.collections.append.forward import forward_staged
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import Visible
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import lead_to_write, refuse_when_read_only
from tidemark.collections.objects.quarantine import find_quarantine
from tidemark.collections.publish import ATTEMPTS, publish
from tidemark.collections.staged.audit import Audited, Trouble, audit
from tidemark.collections.staged.batches import (
    QueuedBatch,
    choose_own,
    describe_waiting,
    own_corrections,
    queued_in,
    taken_over,
)
from tidemark.collections.staged.corrections import flush_corrections
from tidemark.errors import CorruptState, DamagedBatch, ExpectationFailed, InputsGone, TidemarkError
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import FORWARDED, Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.shard.state_reader import read_states
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report
from tidemark.retry import retrying

FAIL_POINTS = ("flush.after-audit", "flush.after-merge", "flush.after-publish")
SMALL_BYTES = 4 * 1024 * 1024  # larger files are as good as they are
TOTAL_BYTES = 64 * 1024 * 1024  # read into this process at once
MIN_FILES = 8


def flush_all(shards: Shards, deployment: Deployment, names: Sequence[str], *, clock: Clock) -> Report:
    """Publish what is staged for ``names``, or for every collection; trouble in one leaves the others flushed.

    A deployment that leads takes over what older deployments staged that led (``Deployment.heir_of``). What others
    staged stays where it is, and the report says what it waits for.

    Raises:
        UnknownCollection: If there is no collection of a name.
        ReadOnly: If the deployment is read-only; nothing was changed.
        FencedByGeneration: If a newer deployment leads; nothing was changed.
        Unreachable: If the catalog does not answer.
    """
    started_at = clock.now_ms()
    refuse_when_read_only(deployment, "flush")
    opened = _choose(shards, deployment, names)
    declared = deployment.registry.read().declarations if opened else {}

    def flush_one(shard: Shard) -> CollectionReport:
        return flush(shards, shard, deployment, clock=clock, declaration=declared.get(shard.name))

    report, _ = run_one_by_one("flush", opened, flush_one, deployment=deployment, clock=clock, started_at=started_at)
    return report


def flush(
    shards: Shards, shard: Shard, deployment: Deployment, *, clock: Clock, declaration: Declaration | None = None
) -> CollectionReport:
    """Publish what is this deployment's to publish for one collection, if every batch's rows are as it expects.

    Staged corrections that do not fit the contents any more stay staged, and are the error in the report.

    Raises:
        ReadOnly: If the deployment became read-only.
        FencedByGeneration: If a newer deployment owns the collection.
        ConflictsUnsettled: If other commits kept winning; nothing was published.
    """
    began_ms = clock.now_ms()
    attempts = retrying(InputsGone, attempts=ATTEMPTS, what=f"the flush of {shard.name!r}")
    report = attempts(_flush_once, shards, shard, deployment, clock=clock, declaration=declaration)
    return replace(report, seconds=(clock.now_ms() - began_ms) / 1000)


def _flush_once(
    shards: Shards, shard: Shard, deployment: Deployment, *, clock: Clock, declaration: Declaration | None
) -> CollectionReport:
    writer = lead_to_write(shard, deployment, what="flush")
    head = shard.load()
    found = queued_in(head, collection=shard.name)
    own = choose_own(found, deployment)
    if head.state.layout is ShardKind.DIFFERENTIAL:
        branches = own_corrections(head, deployment)
        report = flush_corrections(writer, head, branches, clock=clock, declaration=declaration)
    else:
        audited = audit(head, own, declaration)
        if declaration is not None and not audited.is_refused:
            keep_open(audited, own, declaration)
            forward_staged(head, audited, own, declaration, deployment=deployment, clock=clock)
        report = _flush_batches(shards, writer, head, audited, clock=clock)
    if others := [batch for batch in found if batch not in own]:
        report.details["waiting"] = describe_waiting(others, deployment.modes.read())
    return report


def _flush_batches(
    shards: Shards, writer: Writer, head: ShardHead, audited: Audited, *, clock: Clock
) -> CollectionReport:
    """Publish the batches of an append-only collection, in one commit.

    Batches in trouble stay staged and are reported; if one is not what the collection expects, none is published.
    """
    fail_point("flush.after-audit")
    if audited.is_refused:
        return _report(head, Audited(troubles=audited.troubles), head.state.upper)
    useless = (*audited.already_published, *audited.to_ingest_again)
    leftovers = [Batch(branches=((batch.branch, batch.snapshot_id),)) for batch in useless]
    if not audited.batches and not leftovers:
        return _report(head, audited, head.state.upper)
    batches, merged = list[Batch](), tuple[DataFile, ...]()
    for is_open in (False, True):
        same, files = merge_small_files(head.table, [each for each in audited.batches if each.is_open is is_open])
        batches, merged = batches + same, merged + files
    fail_point("flush.after-merge")
    published = publish(
        writer,
        head,
        [*batches, *leftovers],
        clock=clock,
        kind=CommitKind.FLUSH,
        raise_to=writer.generation,
        written=merged,
    )
    fail_point("flush.after-publish")
    # Their bad rows were published with the good ones, or come again with them.
    ingested = [batch.branch for batch in useless if batch.is_ingested]
    if ingested and (quarantine := find_quarantine(shards, writer.shard)) is not None:
        drop_staged(quarantine, ingested)
    return _report(head, audited, published.state.upper)


def keep_open(audited: Audited, queued: Sequence[QueuedBatch], declaration: Declaration) -> None:
    """Put ingested rows onto the tag ``tidemark-open`` where rows are visible once they are persisted."""
    rules = declaration.lifecycle
    if rules is not None and rules.visible is Visible.WHEN_PERSISTED:
        ingested = {batch.branch for batch in queued if batch.is_ingested}
        audited.batches = [
            replace(batch, is_open=any(branch in ingested for branch, _ in batch.branches)) for batch in audited.batches
        ]


def _report(head: ShardHead, audited: Audited, upper: Frontier) -> CollectionReport:
    outcome = Outcome.FLUSHED if audited.batches else Outcome.UNCHANGED
    if audited.troubles and not audited.batches:
        outcome = Outcome.REFUSED
    return CollectionReport(
        outcome=outcome,
        lower=head.state.upper,
        upper=upper,
        inserted=audited.rows,
        batches=len(audited.batches),
        details=_details(audited) | taken_over(head, audited.batches),
        error=ErrorReport.of(_sum_up(audited.troubles)) if audited.troubles else None,
    )


def _details(audited: Audited) -> dict[str, object]:
    """Return the published ranges by producer, and which batches were left staged, needed nothing, or come again."""
    details: dict[str, object] = {}
    ranges: dict[str, Ledger] = {}
    for batch in audited.batches:
        if batch.producer is not None and batch.range is not None:
            producer = batch.producer.removesuffix(FORWARDED)
            ranges[producer] = ranges.get(producer, Ledger()).add(batch.range)
    if ranges:
        details["ranges"] = {
            producer: [list(range_) for range_ in ledger.ranges] for producer, ledger in ranges.items()
        }
    if audited.troubles:
        details["left_staged"] = [
            {"batch": str(trouble.queued.name), "kind": trouble.error.kind, "message": str(trouble.error)}
            for trouble in audited.troubles
        ]
    if audited.to_ingest_again:
        details["to_ingest_again"] = [str(batch.name) for batch in audited.to_ingest_again]
    if audited.already_published:
        details["already_published"] = [str(batch.name) for batch in audited.already_published]
    return details


def _sum_up(troubles: Sequence[Trouble]) -> TidemarkError:
    """Return the first error with the number of the others; an error that keeps all batches back comes first."""
    errors = (trouble.error for trouble in troubles)
    first, *more = sorted(errors, key=lambda error: not isinstance(error, ExpectationFailed))
    return type(first)(f"{first}; and {len(more)} more", hint=first.hint, sample=first.sample) if more else first


def _choose(shards: Shards, deployment: Deployment, names: Iterable[str]) -> list[Shard]:
    """Return the named collections, or all that have anything staged or cannot be read.

    The flush of a collection that cannot be read says what is wrong, and keeps no other collection from its own.
    """
    chosen = list(dict.fromkeys(names)) or [
        name
        for name, state in read_states(deployment.settings).items()
        if isinstance(state, CorruptState) or state.staged
    ]
    return [shards.open(name) for name in chosen]


def merge_small_files(table: Table, batches: Sequence[Batch]) -> tuple[list[Batch], tuple[DataFile, ...]]:
    """Merge many small staged files into a few, so that a flush does not leave its readers a file per batch.

    The batches are all open, or none is. Returns the batches, with one more for the rows of their small files, and the
    new files. Each row still says whose batch it is; ranges and branches stay with their batches. The replaced files go
    when the snapshots of the branches expire.

    Raises ``DamagedBatch`` if the new files do not hold as many rows as the old ones.
    """
    small = _choose_small(batches)
    if len(small) < MIN_FILES:
        return list(batches), ()
    # By field ids, whatever schema each file was written with.
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table([FileScanTask(file) for file in small])
    merged = write_rows(table, rows)
    written, staged = sum(file.record_count for file in merged), sum(file.record_count for file in small)
    if written != staged:
        raise DamagedBatch(f"{len(small)} staged files hold {written} rows, not the {staged} they were staged with")
    replaced = {file.file_path for file in small}
    rest = [
        replace(batch, added=tuple(file for file in batch.added if file.file_path not in replaced)) for batch in batches
    ]
    is_open = batches[0].is_open
    return [*rest, Batch(added=merged, schema_id=table.metadata.current_schema_id, is_open=is_open)], merged


def _choose_small(batches: Sequence[Batch]) -> list[DataFile]:
    """Return the small files in the order of their batches, as many as fit into memory."""
    chosen: list[DataFile] = []
    total = 0
    for batch in batches:
        for file in batch.added:
            if file.file_size_in_bytes <= SMALL_BYTES and total + file.file_size_in_bytes <= TOTAL_BYTES:
                chosen.append(file)
                total += file.file_size_in_bytes
    return chosen
