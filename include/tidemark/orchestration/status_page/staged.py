"""What is staged and invisible: by whom, since when, and what it waits for."""

from __future__ import annotations

from typing import Any

from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.collections.deployment import StoredMode
from tidemark.collections.staged.batches import QueuedBatch, describe_waiting, queued_in
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state_reader import ShardSummary
from tidemark.orchestration.status_page.observed import Observer


def show_staged(observer: Observer) -> dict[str, Any]:
    """Return the mode of the leading deployment, and everything that is staged, the oldest first."""
    states = observer.look().states
    named = [name for name, state in states.items() if isinstance(state, ShardSummary) and state.staged]
    leader = look_at_mode(observer.catalog.ends)
    batches = [batch for name in named for batch in staged_in(observer, name, leader)]
    return {
        "mode": leader.mode.value,
        "leader": leader.generation,
        "mode_since_ms": leader.since_ms or None,
        "mode_why": leader.why,
        "batches": sorted(batches, key=lambda batch: batch["staged_at"]),
    }


def staged_in(observer: Observer, name: str, leader: StoredMode) -> list[dict[str, Any]]:
    """Return what is staged for one collection, each batch with what it ``waits_for``; ``leader`` has the mode."""
    queued = observer.of_head(name, _queued)
    return [{**each.to_json(), "waits_for": describe_waiting([each], leader)} for each in queued]


def _queued(head: ShardHead) -> list[QueuedBatch]:
    return queued_in(head, collection=head.table.name()[-1])
