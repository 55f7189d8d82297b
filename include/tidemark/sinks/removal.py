"""Cleans up after dropped sinks: history is no longer held, and the target no longer belongs to anybody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.maintenance.dropped_tables import REMOVERS as COLLECTION_REMOVERS
from tidemark.collections.maintenance.dropped_tables import Remains, Remover
from tidemark.collections.objects.standing import Dropped, ObjectKind
from tidemark.errors import ConfigurationInvalid, TidemarkError, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.holds import release
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import DROPPED, Shards
from tidemark.sinks.targets.registry import open_target

FAIL_POINTS = ("drop-sink.released", "drop-sink.forgotten")


def clear_sinks(shards: Shards, deployment: Deployment, gone: Iterable[Dropped]) -> list[str]:
    """Clean up after the sinks among the objects that were just dropped; return, for each that waits, why."""
    waiting = []
    for dropped in gone:
        if dropped.kind is not ObjectKind.SINK:
            continue
        try:
            clear_sink(shards, deployment, dropped)
        except TidemarkError as error:
            waiting.append(f"{dropped.name}: {error}")
        else:
            deployment.objects.forget(dropped)
    return waiting


def remove_sink(shards: Shards, deployment: Deployment, remains: Remains, now_ms: int) -> str | None:
    """Clean up, or return why that waits; a target that is away for longer than the grace keeps its progress."""
    try:
        clear_sink(shards, deployment, remains.dropped)
    except (Unreachable, ConfigurationInvalid) as error:
        return f"{remains}: {error}" if remains.waits_at(now_ms) else None
    return None


# For maintenance: what is left of any object.
REMOVERS: Mapping[ObjectKind, Remover] = {**COLLECTION_REMOVERS, ObjectKind.SINK: remove_sink}


def clear_sink(shards: Shards, deployment: Deployment, dropped: Dropped) -> None:
    """Release the hold of a dropped sink, and let the target forget its progress; the rows there stay.

    Idempotent. A sink that was declared anew under the name keeps its hold, and its progress.

    Raises ``Unreachable`` if the target does not answer; the hold is released then.
    """
    sink = SinkDeclaration.model_validate(dropped.definition)
    if sink.name not in deployment.registry.read().sinks:
        for shard in _carried(shards, deployment, sink.collection):
            release(shard, sink.hold)
    fail_point("drop-sink.released")
    with open_target(sink, deployment.settings) as target:
        target.check()
        found = target.look()
        if found is not None and (found.owner.sink, found.owner.sink_id) == (dropped.name, dropped.object_id):
            target.forget(found.owner)
    fail_point("drop-sink.forgotten")


def _carried(shards: Shards, deployment: Deployment, collection: str) -> Iterator[Shard]:
    """Yield the shard of the collection, and those that it had before it was dropped."""
    if shards.exists(collection):
        yield shards.open(collection)
    for dropped in deployment.objects.dropped():
        if dropped.name == collection and shards.exists(dropped.table, DROPPED):
            yield shards.open(dropped.table, DROPPED)
