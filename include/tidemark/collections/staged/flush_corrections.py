"""Corrections that a read-only deployment computed: one for each slice, published unchanged if nothing has moved."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tidemark.collections.deployment import Mode
from tidemark.collections.mode import join_to_write, read_only
from tidemark.collections.staged.batches import RECONCILE
from tidemark.errors import ConflictsUnsettled, FencedByEpoch, InputsGone, UpperMismatch
from tidemark.fail_points import fail_point
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.staging.branches import branch_name, drop_staged
from tidemark.iceberg.staging.correction_branches import read_whole
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from tidemark.clock import Clock
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.correction_branches import StagedCorrections

FAIL_POINTS = ("flush-corrections.before-drop",)
WHOLE = "all"
ATTEMPTS = 12
_BACKOFF_S = 0.02


def corrections_branch(generation: int, interval: tuple[int, int] | None) -> str:
    """Return the branch of a deployment's corrections of a slice ``[start, end)`` in ms; None: of everything."""
    batch = WHOLE if interval is None else f"{interval[0]}:{interval[1]}"
    return branch_name(generation=generation, writer=RECONCILE, batch=batch)


def own_corrections(head: ShardHead, generation: int) -> list[str]:
    """Return the branches on which a deployment has staged corrections, sorted."""
    prefix = f"{STAGED}{generation}/{RECONCILE}/"
    return sorted(branch for branch in head.staged_branches if branch.startswith(prefix))


def flush_corrections(shard: Shard, deployment: Deployment, *, clock: Clock) -> CollectionReport:
    """Publish staged corrections if the upper is still the one that they were computed against.

    Any others are dropped and reported: they rest on a source state older than what is stored by now, so only a new
    reconcile can tell what is to be corrected. Of several slices one can be published, which moves the upper.

    Raises:
        ReadOnly: If the deployment is read-only.
        FencedByGeneration: If a newer deployment owns the collection.
        ConflictsUnsettled: If other commits kept winning.
    """
    began_ms = clock.now_ms()
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
        writer, mode = join_to_write(shard, deployment)
        if mode is Mode.READ_ONLY:
            raise read_only(deployment.generation, f"flush of {shard.name!r}")
        head = shard.load()
        branches = own_corrections(head, deployment.generation)
        current = _find_current(head, branches)
        lower = upper = head.state.upper
        if current is not None:
            try:
                upper = writer.publish(
                    [current.batch],
                    lower=current.lower,
                    new_upper=max(clock.now_ms(), current.time) + 1,
                    digest=current.digest,
                    digest_note=current.digest_note,
                    raise_to=deployment.generation,
                ).state.upper
            except (UpperMismatch, FencedByEpoch, InputsGone) as error:
                failure = error  # look again: what was current may be stale now
                continue
        fail_point("flush-corrections.before-drop")
        published = {branch for branch, _ in current.batch.branches} if current else set()
        stale = drop_staged(shard, [branch for branch in branches if branch not in published])
        return CollectionReport(
            outcome=Outcome.FLUSHED if current else Outcome.UNCHANGED,
            lower=lower,
            upper=upper,
            inserted=current.batch.inserted_rows if current else 0,
            retracted=current.batch.retracted_rows if current else 0,
            batches=1 if current else 0,
            seconds=(clock.now_ms() - began_ms) / 1000,
            details={"stale": stale, "next": f"tidemark reconcile {shard.name}"} if stale else {},
        )
    raise ConflictsUnsettled(
        f"the flush of {shard.name!r} kept losing to other commits", hint="run it again"
    ) from failure


def _still_live(head: ShardHead, staged: StagedCorrections) -> bool:
    """Tell whether the files that the corrections delete from are there; compaction may have rewritten them."""
    if not staged.batch.deleted_from or staged.batch.pinned_snapshot_id == head.contents.snapshot_id:
        return True
    return staged.batch.deleted_from <= set(read_data_files(head.table.io, head.contents))


def _find_current(head: ShardHead, branches: list[str]) -> StagedCorrections | None:
    for branch in branches:
        staged = read_whole(head, branch)
        if staged is None or staged.lower != head.state.upper:
            continue
        if staged.batch.schema_id == head.table.metadata.current_schema_id and _still_live(head, staged):
            return staged
    return None
