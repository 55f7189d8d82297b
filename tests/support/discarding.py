"""Staged batches are given up, as `tidemark discard --yes` does it."""

from __future__ import annotations

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.staged.batches import QueuedBatch
from tidemark.collections.staged.discard import Selection, choose_discarded, discard_batches
from tidemark.iceberg.shards import Shards


def discard(
    shards: Shards, deployment: Deployment, selection: Selection, *, who: str, why: str, clock: Clock
) -> list[QueuedBatch]:
    chosen = choose_discarded(shards, deployment, selection)
    return discard_batches(shards, deployment, chosen, who=who, why=why, clock=clock)
