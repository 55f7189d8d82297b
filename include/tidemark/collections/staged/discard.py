"""Gives up staged batches, on request and by name alone; who, when and why is recorded before anything goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import mode_of
from tidemark.collections.staged.batches import QueuedBatch, choose_own, list_batches, queued_batches
from tidemark.collections.system.findings import forget_findings
from tidemark.errors import ReadOnly, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged

FAIL_POINTS = ("discard.after-record", "discard.after-drop")
MAINTENANCE = "maintenance"  # who discards batches by age


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which staged batches are meant: those that fit everything that is given, so something has to be."""

    names: tuple[str, ...] = ()
    producer: str | None = None
    generation: int | None = None
    range: Range | None = None
    everything: bool = False  # all that is staged, said in so many words

    def __post_init__(self) -> None:
        if not (self.names or self.producer or self.generation is not None or self.range or self.everything):
            raise UsageError(
                "discard needs to be told what to discard: nothing was selected",
                hint="name collections, --producer, --generation or --range; `tidemark staged` lists what there is",
            )

    def fits(self, queued: QueuedBatch) -> bool:
        """Tell whether a batch is meant; the range is that of the batch, not a part of it."""
        return (
            (not self.names or queued.collection in self.names)
            and self.producer in {None, queued.name.producer}
            and self.generation in {None, queued.generation}
            and self.range in {None, queued.name.range}
        )


def choose_discarded(shards: Shards, deployment: Deployment, selection: Selection) -> list[QueuedBatch]:
    """Return the staged batches that are selected; nothing is changed.

    Raises:
        UnknownCollection: If a named collection does not exist.
        FencedByGeneration: If a newer deployment leads.
        ReadOnly: If an older deployment leads, which alone discards.
    """
    stored = deployment.modes.read()
    mode_of(stored, deployment.generation)
    if stored.generation != deployment.generation:  # the record is the leader's, and so is the decision
        raise ReadOnly(
            f"deployment {deployment.generation} does not lead, {stored.generation} does: it discards nothing",
            hint=f"have the leader do it, with --generation {deployment.generation}",
        )
    return [batch for batch in list_batches(shards, selection.names) if selection.fits(batch)]


def discard_batches(
    shards: Shards, deployment: Deployment, chosen: Sequence[QueuedBatch], *, who: str, why: str, clock: Clock
) -> list[QueuedBatch]:
    """Remove these very batches with their rows; return the removed batches, without those published meanwhile.

    The record comes first: a crash in between leaves a batch that a rerun discards under the record that is there.
    Raises as ``DiscardRecords.add``.
    """
    if not chosen:
        return []
    now_ms = clock.now_ms()
    records = {
        # The same for the same staged rows, and another for the same range staged again.
        f"{batch.collection} {batch.branch} {batch.snapshot_id}": {
            **batch.to_json(),
            "discarded_at": now_ms,
            "who": who,
            "why": why,
        }
        for batch in chosen
    }
    deployment.discards.add(records, who=who)
    fail_point("discard.after-record")
    for generation in {batch.generation for batch in chosen} - {deployment.generation}:
        names = {batch.collection for batch in chosen if batch.generation == generation}
        forget_findings(deployment.settings, generation, sorted(names))  # it is no longer caught up
    discarded: list[QueuedBatch] = []
    for collection in dict.fromkeys(batch.collection for batch in chosen):
        batches = [batch for batch in chosen if batch.collection == collection]
        dropped = drop_staged(shards.open(collection), [batch.branch for batch in batches])
        discarded += [batch for batch in batches if batch.branch in dropped]
        fail_point("discard.after-drop")
    return discarded


def discard_expired(
    shards: Shards, shard: Shard, declaration: Declaration | None, deployment: Deployment, *, now_ms: int, clock: Clock
) -> list[QueuedBatch]:
    """Discard the batches that at ``now_ms`` are older than the declared ``staged_retention``; none without one.

    What the next flush by the ``deployment``, which leads, publishes stays unless the retention includes it.
    """
    if declaration is None or (retention := declaration.staged_retention) is None:
        return []
    queued = queued_batches(shard.load(), collection=shard.name)
    kept = [] if retention.include_leader else choose_own(queued, deployment)
    oldest_ms = now_ms - retention.age_ms  # a batch of exactly that age stays
    expired = [batch for batch in queued if batch.staged_at_ms < oldest_ms and batch not in kept]
    why = f"staged_retention {retention.age}"
    return discard_batches(shards, deployment, expired, who=MAINTENANCE, why=why, clock=clock)
