"""Which first loads are large: many processes then write the parts, if the target takes parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeGuard

from tidemark.clock import Clock
from tidemark.collections.deployment import AppliedSink, Deployment, Mode
from tidemark.collections.isolation import find_resting
from tidemark.collections.mode import read_mode
from tidemark.errors import TidemarkError
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shards import Shards
from tidemark.sinks.progress import Owner
from tidemark.sinks.target import PartedTarget, Target
from tidemark.sinks.targets.registry import open_target

log = logging.getLogger(__name__)


def owner_of(applied: AppliedSink, head: ShardHead) -> Owner:
    """Return what a target says of its owner if this sink of this collection has written there."""
    sink = applied.declaration
    return Owner(sink.name, applied.id, sink.collection, str(head.table.metadata.table_uuid))


def is_large(target: Target, head: ShardHead) -> TypeGuard[PartedTarget]:
    """Tell whether a first load is large, by the rows that the snapshot's summary counts."""
    return isinstance(target, PartedTarget) and head.row_count >= target.sink.spark_from_rows


def choose_large_loads(
    shards: Shards, deployment: Deployment, sinks: Sequence[AppliedSink], *, clock: Clock
) -> list[str]:
    """Return the names of the sinks whose next run is a large first load. Writes nothing.

    Only the targets of large collections are asked. A sink that cannot be looked at is not chosen: its run says why.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        return []
    resting = find_resting(deployment, clock, suspended=True)
    large = []
    for applied in sinks:
        try:
            if applied.name not in resting and _loads_much(shards, deployment, applied):
                large.append(applied.name)
        except TidemarkError as error:
            log.warning("%s: %s", applied.name, error)
    return large


def _loads_much(shards: Shards, deployment: Deployment, applied: AppliedSink) -> bool:
    head = shards.open(applied.declaration.collection).load()
    with open_target(applied.declaration, deployment.settings) as target:
        if not is_large(target, head):
            return False
        target.check()
        found = target.look()
        target.refuse_away(found, head.state.holds)
        return found is None or found.time is None or found.owner != owner_of(applied, head)
