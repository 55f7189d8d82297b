"""One attempt to ingest planned ranges: rows and bad rows are staged, then the rows become visible, then the bad ones.

The rows and the new numbers of all sequencers become visible in one commit. The commit also names the branch with the
attempt's bad rows, durable since before it, in a table property; whoever ingests next finishes what is named there
before it publishes anything. So the quarantine always holds exactly the bad rows of what was published, whatever died
when, and an attempt that lost leaves nothing but branches that the next one drops.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from tidemark.collections.deployment import Mode
from tidemark.collections.mode import join_to_write
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.errors import (
    ConflictsUnsettled,
    DamagedBatch,
    FencedByEpoch,
    InputsGone,
    Sealed,
    TidemarkError,
    UpperMismatch,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.staging.branches import branch_name, drop_staged, list_staged, read_intact
from tidemark.ingest.quarantine import open_quarantine, quarantine_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.clock import Clock
    from tidemark.collections.declarations.append_only import Expectations
    from tidemark.collections.deployment import Deployment
    from tidemark.frontier import Frontier
    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards
    from tidemark.ingest.buffer_log import BufferLog
    from tidemark.ingest.decoding.tally import Tally
    from tidemark.ingest.delivery import Delivery, StagedRows
    from tidemark.ingest.plan import PlannedRange

log = logging.getLogger(__name__)

FAIL_POINTS = (
    "ingest.after-rows",
    "ingest.after-quarantine",
    "ingest.after-publish",
    "ingest.after-quarantine-publish",
)
WRITER = "ingest"  # no producer's: nobody but an ingest publishes these branches
PENDING = "tidemark.ingest.quarantine"  # the branch of the quarantine that belongs to the last publish
ATTEMPTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where rows go."""

    shards: Shards
    shard: Shard
    deployment: Deployment
    clock: Clock
    expect: Expectations | None = None

    @property
    def quarantine(self) -> Shard | None:
        """The quarantine, if there is one by now."""
        name = quarantine_name(self.shard.name)
        return self.shards.open(name) if self.shards.exists(name) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became visible."""

    lower: Frontier
    upper: Frontier
    rows: int
    bad_rows: int
    tallies: list[Tally]


def publish_ranges(target: Target, log_: BufferLog, planned: Sequence[PlannedRange], delivery: Delivery) -> Ingested:
    """Make the rows of ``planned`` visible, with their numbers, in one commit; bad rows go to the quarantine.

    Raises:
        RangeOverlap: If another run was faster with some of the numbers; nothing became visible.
        InputsGone: If the columns changed, or another run that finished dropped this one's branches: plan again.
        FencedByEpoch: If the deployment became read-only.
        ExpectationFailed: If the rows are not what the collection expects.
        TidemarkError: As reading the buffer raises.
    """
    shard, branch = target.shard, branch_name(generation=target.deployment.generation, writer=WRITER, batch=uuid4().hex)
    try:
        staged = delivery.stage(shard, branch, planned, fingerprint=branch)
        fail_point("ingest.after-rows")
        bad = _stage_bad(target, branch, planned, delivery, staged.tallies)
        fail_point("ingest.after-quarantine")
        published = _publish(target, log_, planned, staged, pending=branch if bad else "")
    except TidemarkError:
        drop_attempts(target, [branch])
        raise
    fail_point("ingest.after-publish")
    if bad:
        finish_quarantine(target, branch)
        fail_point("ingest.after-quarantine-publish")
    return Ingested(
        lower=published.state.lower,
        upper=published.state.upper,
        rows=staged.batch.rows,
        bad_rows=bad,
        tallies=staged.tallies,
    )


def find_attempts(target: Target) -> list[str]:
    """Return the branches that attempts have left or are still writing, of this deployment or of those before it."""
    found: set[str] = set()
    for shard in (target.shard, target.quarantine):
        if shard is not None:
            mine = [each for each in list_staged(shard.load()) if each.generation <= target.deployment.generation]
            found |= {each.branch for each in mine if each.writer == WRITER}
    return sorted(found)


def drop_attempts(target: Target, branches: Sequence[str]) -> None:
    """Drop attempts that have not published: one that is still at work then plans again.

    The rows go first: without them nothing of the attempt can be published any more, and only then is it known that
    its bad rows belong to nothing.
    """
    if not branches:
        return
    drop_staged(target.shard, branches)
    quarantine = target.quarantine
    if quarantine is not None:
        pending = target.shard.load().table.properties.get(PENDING)
        drop_staged(quarantine, [each for each in branches if each != pending])


def finish_quarantine(target: Target, branch: str) -> None:
    """Make the bad rows on ``branch`` visible; nothing happens if another run has done so, or only staging is allowed.

    Raises:
        DamagedBatch: If the branch does not hold what was staged on it.
        ConflictsUnsettled: If other commits kept winning; the bad rows are durable, and the next run tries again.
    """
    quarantine = target.quarantine
    for _ in range(ATTEMPTS):
        if quarantine is None:
            return
        writer, mode = join_to_write(quarantine, target.deployment)
        head = quarantine.load()
        if branch not in head.staged_branches or mode is Mode.READ_ONLY:
            return
        staged = read_intact(head.table, branch, None, of_present_schema=False)
        if staged is None:
            raise DamagedBatch(
                f"the bad rows on {branch!r} of {quarantine.name!r} are not what was staged there",
                hint="look at the branch, then drop it with the table's own tools: ALTER TABLE … DROP BRANCH",
            )
        lower = _open_upper(head, quarantine.name)
        batch = Batch(added=staged.files, branches=((branch, staged.snapshot_id),))
        try:
            writer.publish(
                [batch], lower=lower, new_upper=max(target.clock.now_ms(), lower) + 1, kind=CommitKind.APPEND
            )
        except (UpperMismatch, FencedByEpoch, InputsGone) as error:
            log.debug("publishing bad rows to %s lost: %s", quarantine.name, error)
            continue
        return
    raise ConflictsUnsettled(f"other commits to {quarantine_name(target.shard.name)!r} kept winning", hint="run again")


def finish_pending(target: Target, head: ShardHead) -> None:
    """Finish what the last publish of the collection left: its bad rows, if whoever published it died then."""
    if branch := head.table.properties.get(PENDING):
        finish_quarantine(target, branch)


def _stage_bad(
    target: Target, branch: str, planned: Sequence[PlannedRange], delivery: Delivery, tallies: Sequence[Tally]
) -> int:
    if not any(each.bad_rows for each in tallies):
        return 0
    quarantine = open_quarantine(target.shards, target.shard.name)
    return delivery.stage_bad(quarantine, branch, planned, tallies, fingerprint=branch).batch.rows


def _publish(
    target: Target, log_: BufferLog, planned: Sequence[PlannedRange], staged: StagedRows, *, pending: str
) -> Published:
    shard = target.shard
    rows = Batch(
        added=staged.batch.files,
        branches=((staged.batch.branch, staged.batch.snapshot_id),),
        schema_id=staged.schema_id,
    )
    numbers = [Batch(producer=log_.producer(each.sequencer_id), range=each.range) for each in planned]
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        writer, mode = join_to_write(shard, target.deployment)
        if mode is Mode.READ_ONLY:
            raise FencedByEpoch(f"the deployment became read-only while {shard.name!r} was ingested", hint="run again")
        head = shard.load()
        finish_pending(target, head)  # seen in the head whose upper the publish requires: nothing else can be pending
        if target.expect is not None:
            name = ", ".join(f"{each.producer} {each.range}" for each in numbers)
            hint = "repair the rows, or alter `expect` and apply it; then ingest again"
            check_expectations(head.table, BatchFiles(shard.name, name, staged.batch.files, hint), target.expect)
        lower = _open_upper(head, shard.name)
        try:
            return writer.publish(
                [rows, *numbers],
                lower=lower,
                new_upper=max(target.clock.now_ms(), lower) + 1,
                kind=CommitKind.APPEND,
                properties={PENDING: pending},
            )
        except (UpperMismatch, FencedByEpoch) as error:  # others wrote: the same rows again, behind them
            failure = error
    raise ConflictsUnsettled(f"other commits to {shard.name!r} kept winning", hint="run it again") from failure


def _open_upper(head: ShardHead, name: str) -> int:
    upper = head.state.upper
    if not isinstance(upper, int):
        raise Sealed(f"collection {name!r} is sealed", hint="nothing can be written to it any more")
    return upper
