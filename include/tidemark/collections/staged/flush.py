"""Publishes what was staged while the deployment was read-only: one commit per collection, all of it or nothing.

The commit makes the rows visible, puts their ranges into the ledgers, removes the staging branches and raises the
token. So a second flush, or a rerun after a crash at any instruction, finds either everything to do or nothing, and
whoever joined before has to look again before writing.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING

from tidemark.collections.deployment import Mode
from tidemark.collections.isolation import isolate
from tidemark.collections.mode import join_to_write, read_only, refuse_when_read_only
from tidemark.collections.staged.audit import audit
from tidemark.collections.staged.batches import queued_batches
from tidemark.collections.staged.flush_corrections import flush_corrections
from tidemark.collections.staged.merge_files import merge_small_files
from tidemark.errors import (
    ConflictsUnsettled,
    CorruptState,
    ExpectationFailed,
    FencedByEpoch,
    InputsGone,
    RangeOverlap,
    Sealed,
    UpperMismatch,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import read_states
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidemark.clock import Clock
    from tidemark.collections.declarations.append_only import Expectations
    from tidemark.collections.deployment import Deployment
    from tidemark.collections.staged.audit import Audited, Trouble
    from tidemark.errors import TidemarkError
    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards

FAIL_POINTS = ("flush.after-audit", "flush.after-merge", "flush.after-publish")
# Nothing was published: another flush or a writer was faster, and what is staged has to be looked at again.
LOOK_AGAIN = (UpperMismatch, FencedByEpoch, InputsGone, RangeOverlap)
ATTEMPTS = 12
_BACKOFF_S = 0.02
_READERS = 8


def flush_all(shards: Shards, deployment: Deployment, names: Sequence[str], *, clock: Clock) -> Report:
    """Publish what is staged for ``names``, or for every collection; trouble in one leaves the others flushed.

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
    reports = {}
    for shard in opened:
        declaration = declared.get(shard.name)
        expect = declaration.expect if declaration else None
        reports[shard.name] = isolate(
            shard.name, partial(flush, shard, deployment, clock=clock, expect=expect), clock=clock
        )
    return Report(
        operation="flush",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=reports,
    )


def flush(
    shard: Shard, deployment: Deployment, *, clock: Clock, expect: Expectations | None = None
) -> CollectionReport:
    """Publish what this deployment has staged for one collection.

    Batches in trouble stay staged and are reported; if one is not what the collection expects, none is published. Of a
    differential collection, corrections that are stale by now are dropped and reported.

    Args:
        shard: The collection.
        deployment: Whose this is.
        clock: Tells the time.
        expect: What must hold for the rows of every batch.

    Raises:
        ReadOnly: If the deployment became read-only.
        FencedByGeneration: If a newer deployment owns the collection.
        ConflictsUnsettled: If other commits kept winning; nothing was published.
    """
    if shard.load().state.layout is ShardKind.DIFFERENTIAL:
        return flush_corrections(shard, deployment, clock=clock)
    began_ms = clock.now_ms()
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
        writer, mode = join_to_write(shard, deployment)
        if mode is Mode.READ_ONLY:
            raise read_only(deployment.generation, f"flush of {shard.name!r}")
        head = shard.load()
        queued = queued_batches(head, collection=shard.name, generation=deployment.generation)
        audited = audit(head, queued, expect=expect)
        fail_point("flush.after-audit")
        if audited.is_refused:
            return _report(head, audited.without_batches(), None, seconds=(clock.now_ms() - began_ms) / 1000)
        try:
            published = _publish(writer, head, audited, deployment=deployment, clock=clock)
        except LOOK_AGAIN as error:
            failure = error  # another flush, or a writer: see what it left
            continue
        fail_point("flush.after-publish")
        return _report(head, audited, published, seconds=(clock.now_ms() - began_ms) / 1000)
    raise ConflictsUnsettled(
        f"the flush of {shard.name!r} kept losing to other commits", hint="run it again"
    ) from failure


def _publish(
    writer: Writer, head: ShardHead, audited: Audited, *, deployment: Deployment, clock: Clock
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
            raise_to=deployment.generation,
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
    # What keeps all batches back comes first.
    first, *more = sorted((each.error for each in troubles), key=lambda error: not isinstance(error, ExpectationFailed))
    return type(first)(f"{first}; and {len(more)} more", hint=first.hint, sample=first.sample) if more else first


def _choose(shards: Shards, deployment: Deployment, names: Iterable[str]) -> list[Shard]:
    """Return the named collections, or those that have anything staged, or of which nobody can tell."""
    chosen = list(dict.fromkeys(names)) or [
        name
        for name, seen in read_states(deployment.settings).items()
        if isinstance(seen, CorruptState) or seen.staged  # its own flush says what is wrong, and takes no other's away
    ]
    return [shards.open(name) for name in chosen]
