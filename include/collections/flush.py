"""Publishes what was staged while the deployment was read-only: one commit per collection, all of it or nothing.

The commit makes the rows visible, puts their ranges into the ledgers, removes the staging branches and raises the
token. So a second flush, or a rerun after a crash at any instruction, finds either everything to do or nothing, and
whoever joined before has to look again before writing.
"""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from include.collections.merging import merge_small_files
from include.collections.mode import Mode, join_to_write, read_only, refuse_when_read_only
from include.collections.staged_batches import QueuedBatch, queued_batches
from include.collections.staged_corrections import flush_corrections
from include.errors import (
    ConflictsUnsettled,
    DamagedBatch,
    FencedByEpoch,
    InputsGone,
    RangeOverlap,
    Sealed,
    TidemarkError,
    UpperMismatch,
)
from include.fail_points import fail_point
from include.persist.batch import Batch
from include.persist.ledger import Ledger
from include.persist.shard_state import ShardKind
from include.persist.side_commit import delete_files
from include.persist.staging import read_intact
from include.persist.state_reader import read_states
from include.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from include.clock import Clock
    from include.persist.shard import Shard, Writer
    from include.persist.shard_commit import Published
    from include.persist.shard_head import ShardHead
    from include.persist.shards import Shards
    from include.settings import Settings

log = logging.getLogger(__name__)

FAIL_POINTS = ("flush.after-audit", "flush.after-merge", "flush.after-publish")
# Nothing was published: another flush or a writer was faster, and what is staged has to be looked at again.
LOOK_AGAIN = (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap)
ATTEMPTS = 12
_BACKOFF_S = 0.02
_READERS = 8


@dataclass(frozen=True, slots=True)
class Trouble:
    """A staged batch that is left where it is, and why."""

    queued: QueuedBatch
    error: TidemarkError


@dataclass(slots=True)
class Audited:
    """What an audit of the staged batches of one collection found."""

    batches: list[Batch] = field(default_factory=list)  # in (producer, range) order
    already_published: list[QueuedBatch] = field(default_factory=list)  # only their branches are to go
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(batch.inserted_rows for batch in self.batches)


def flush_all(shards: Shards, settings: Settings, names: Sequence[str], *, clock: Clock) -> Report:
    """Publish what is staged for ``names``, or for every collection; trouble in one leaves the others flushed.

    Raises:
        UnknownCollection: If there is no collection of a name.
        ReadOnly: If the deployment is read-only; nothing was changed.
        FencedByGeneration: If a newer deployment leads; nothing was changed.
        Unreachable: If the catalog does not answer.
    """
    started_at = clock.now_ms()
    refuse_when_read_only(settings, "flush")
    opened = _choose(shards, settings, names)
    reports: dict[str, CollectionReport] = {}
    for shard in opened:
        began_ms = clock.now_ms()
        try:
            report = flush(shard, settings, clock=clock)
        except TidemarkError as error:
            log.warning("the flush of %s failed: %s", shard.name, error)
            report = CollectionReport(
                outcome=Outcome.FAILED, seconds=(clock.now_ms() - began_ms) / 1000, error=ErrorReport.of(error)
            )
        reports[shard.name] = report
    return Report(
        operation="flush",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=settings.generation,
        collections=reports,
    )


def flush(shard: Shard, settings: Settings, *, clock: Clock) -> CollectionReport:
    """Publish what this deployment has staged for one collection.

    Batches in trouble stay staged and are reported; of a differential collection, corrections that are stale by now
    are dropped and reported.

    Raises:
        ReadOnly: If the deployment became read-only.
        FencedByGeneration: If a newer deployment owns the collection.
        ConflictsUnsettled: If other commits kept winning; nothing was published.
    """
    if shard.load().state.layout is ShardKind.DIFFERENTIAL:
        return flush_corrections(shard, settings, clock=clock)
    began_ms = clock.now_ms()
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
        writer, mode = join_to_write(shard, settings)
        if mode is Mode.READ_ONLY:
            raise read_only(settings, f"flush of {shard.name!r}")
        head = shard.load()
        audited = audit(head, queued_batches(head, collection=shard.name, generation=settings.generation))
        fail_point("flush.after-audit")
        try:
            published = _publish(writer, head, audited, settings=settings, clock=clock)
        except LOOK_AGAIN as error:
            failure = error  # another flush, or a writer: see what it left
            continue
        fail_point("flush.after-publish")
        return _report(head, audited, published, seconds=(clock.now_ms() - began_ms) / 1000)
    raise ConflictsUnsettled(
        f"the flush of {shard.name!r} kept losing to other commits", hint="run it again"
    ) from failure


def audit(head: ShardHead, queued: Sequence[QueuedBatch]) -> Audited:
    """Look at every staged batch before it is published: one snapshot, files that are there and hold what they say.

    A batch whose range is in the ledger by now has nothing to add; one whose range is there in part is in trouble.
    """
    audited = Audited()
    ledgers: dict[str, Ledger] = dict(head.state.ledgers)
    with ThreadPoolExecutor(_READERS) as pool:
        looked = list(pool.map(lambda each: _look_at(head.table, each), queued))
    for each, found in zip(queued, looked, strict=True):
        producer, wanted = each.name.producer, each.name.range
        ledger = ledgers.get(producer, Ledger())
        if ledger.covers(wanted):
            audited.already_published.append(each)
        elif overlap := ledger.overlaps(wanted):
            message = f"staged range {wanted} of producer {producer!r} overlaps {', '.join(map(str, overlap))}"
            hint = (
                f"discard it, and append the missing numbers: tidemark discard {each.collection} --producer {producer}"
            )
            audited.troubles.append(Trouble(each, RangeOverlap(message, hint=hint)))
        elif isinstance(found, TidemarkError):
            audited.troubles.append(Trouble(each, found))
        else:
            ledgers[producer] = ledger.add(wanted)
            audited.batches.append(
                Batch(added=found, branches=((each.branch, each.snapshot_id),), producer=producer, range=wanted)
            )
    return audited


def _look_at(table: Table, queued: QueuedBatch) -> tuple[DataFile, ...] | DamagedBatch:
    """Return the files of an intact batch, else what is wrong with it."""
    staged = read_intact(table, queued.branch, None, of_present_schema=False)
    if staged is None:
        return _damaged(queued, "its branch does not hold exactly one staged snapshot")
    for file in staged.files:
        try:
            with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
                stored = parquet.metadata.num_rows
        except (OSError, pa.ArrowInvalid) as error:
            return _damaged(queued, f"{file.file_path} cannot be read: {type(error).__name__}")
        if stored != file.record_count:
            return _damaged(
                queued, f"{file.file_path} holds {stored} rows, not the {file.record_count} it was staged with"
            )
    return staged.files


def _damaged(queued: QueuedBatch, what: str) -> DamagedBatch:
    return DamagedBatch(
        f"the staged batch {queued.name} of {queued.collection!r} is damaged and was not published: {what}",
        hint=f"append it again, or discard it: tidemark discard {queued.collection} --producer {queued.name.producer}",
    )


def _publish(
    writer: Writer, head: ShardHead, audited: Audited, *, settings: Settings, clock: Clock
) -> Published | None:
    """Publish the good batches in one commit; None if there is nothing to do."""
    leftovers = [Batch(branches=((each.branch, each.snapshot_id),)) for each in audited.already_published]
    if not audited.batches and not leftovers:
        return None
    lower = head.state.upper
    if not isinstance(lower, int):
        raise Sealed(f"collection {writer.shard.name!r} is sealed", hint="discard what is staged for it")
    batches, merged = merge_small_files(head.table, audited.batches)
    fail_point("flush.after-merge")
    try:
        return writer.publish(
            [*batches, *leftovers],
            lower=lower,
            new_upper=max(clock.now_ms(), lower) + 1,
            raise_to=settings.generation,
        )
    except LOOK_AGAIN:
        delete_files(head.table, [file.file_path for file in merged])
        raise


def _report(head: ShardHead, audited: Audited, published: Published | None, *, seconds: float) -> CollectionReport:
    ranges: dict[str, Ledger] = {}
    for batch in audited.batches:
        if batch.producer is not None and batch.range is not None:
            ranges[batch.producer] = ranges.get(batch.producer, Ledger()).add(batch.range)
    outcome = Outcome.FLUSHED if audited.batches else Outcome.UNCHANGED
    if audited.troubles and not audited.batches:
        outcome = Outcome.REFUSED
    return CollectionReport(
        outcome=outcome,
        lower=head.state.upper,
        upper=published.state.upper if published else head.state.upper,
        inserted=audited.rows,
        batches=len(audited.batches),
        seconds=seconds,
        details=_details(ranges, audited),
        error=ErrorReport.of(_summed_up(audited.troubles)) if audited.troubles else None,
    )


def _details(ranges: Mapping[str, Ledger], audited: Audited) -> dict[str, object]:
    """Return the published ranges by producer, and which batches were left staged or needed nothing."""
    details: dict[str, object] = {}
    if ranges:
        details["ranges"] = {producer: [list(each) for each in ledger.ranges] for producer, ledger in ranges.items()}
    if audited.troubles:
        details["left_staged"] = [
            {"batch": str(each.queued.name), "kind": each.error.kind, "message": str(each.error)}
            for each in audited.troubles
        ]
    if audited.already_published:
        details["already_published"] = [str(each.name) for each in audited.already_published]
    return details


def _summed_up(troubles: Sequence[Trouble]) -> TidemarkError:
    first = troubles[0].error
    if len(troubles) == 1:
        return first
    return type(first)(f"{first}; and {len(troubles) - 1} more", hint=first.hint)


def _choose(shards: Shards, settings: Settings, names: Iterable[str]) -> list[Shard]:
    """Return the named collections, or those that have anything staged."""
    chosen = list(dict.fromkeys(names)) or [name for name, seen in read_states(settings).items() if seen.staged]
    return [shards.open(name) for name in chosen]
