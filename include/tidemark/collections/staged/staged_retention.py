"""Discards staged batches that the declaration gives up after a time; each with the record that any discard leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.staged.batches import queued_batches
from tidemark.collections.staged.discard import discard_batches

if TYPE_CHECKING:
    from tidemark.clock import Clock
    from tidemark.collections.declarations.append_only import StagedRetention
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.collections.staged.batches import QueuedBatch
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards

WHO = "maintenance"


def find_expired_batches(
    head: ShardHead, retention: StagedRetention, *, collection: str, generation: int, now_ms: int
) -> list[QueuedBatch]:
    """Return the staged batches that are older than the retention; one of exactly its age stays.

    Args:
        head: The freshly loaded head.
        retention: What the declaration says.
        collection: Its name.
        generation: The deployment that leads, whose batches the next flush publishes: they stay, unless declared.
        now_ms: The present time.
    """
    return [
        each
        for each in queued_batches(head, collection=collection)
        if now_ms - each.staged_at_ms > retention.age_ms and (each.generation != generation or retention.include_leader)
    ]


def discard_expired(
    shards: Shards, shard: Shard, declaration: Declaration | None, deployment: Deployment, *, clock: Clock
) -> list[QueuedBatch]:
    """Discard what the declared ``staged_retention`` gives up, recorded; nothing without one.

    The caller leads: it may write, and no newer deployment does.
    """
    if declaration is None or (retention := declaration.staged_retention) is None:
        return []
    expired = find_expired_batches(
        shard.load(), retention, collection=shard.name, generation=deployment.generation, now_ms=clock.now_ms()
    )
    why = f"staged_retention {retention.age}"
    return discard_batches(shards, deployment, expired, who=WHO, why=why, clock=clock)
