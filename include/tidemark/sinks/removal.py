"""Cleans up after dropped sinks: history is no longer held, and the target no longer belongs to anybody."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.holds import read_sink_holds
from tidemark.collections.maintenance.dropped_tables import REMOVERS as COLLECTION_REMOVERS
from tidemark.collections.maintenance.dropped_tables import Remains, Remover
from tidemark.collections.objects.standing import Dropped, ObjectKind
from tidemark.errors import TidemarkError
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.holds import release
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import DROPPED, Shards
from tidemark.sinks.targets.registry import open_target

log = logging.getLogger(__name__)

FAIL_POINTS = ("drop-sink.released", "drop-sink.forgotten")


def clear_sinks(shards: Shards, deployment: Deployment, gone: Iterable[Dropped]) -> list[str]:
    """Clean up after the sinks among the objects that were just dropped; return, for each that waits, why."""
    waiting = []
    for dropped in gone:
        if dropped.kind is not ObjectKind.SINK:
            continue
        try:
            release_history(shards, deployment, dropped)
            free_target(deployment, dropped)
        except TidemarkError as error:
            waiting.append(f"{dropped.name}: {error}")
        else:
            deployment.objects.forget(dropped)
    return waiting


def remove_sink(shards: Shards, deployment: Deployment, remains: Remains, now_ms: int) -> str | None:
    """Clean up, or return why that waits; a target that fails for longer than the grace keeps its progress."""
    release_history(shards, deployment, remains.dropped)
    try:
        free_target(deployment, remains.dropped)
    except TidemarkError as error:
        if remains.waits_at(now_ms):
            return f"{remains}: {error}"
        log.warning("%s: its target keeps the progress of the sink: %s", remains.dropped, error)
    return None


# For maintenance: what is left of any object.
REMOVERS: Mapping[ObjectKind, Remover] = {**COLLECTION_REMOVERS, ObjectKind.SINK: remove_sink}


def release_history(shards: Shards, deployment: Deployment, dropped: Dropped) -> None:
    """Release the hold of a dropped sink. A sink of the same name that carries the same collection keeps the hold."""
    sink = SinkDeclaration.model_validate(dropped.definition)
    if (sink.collection, sink.hold) not in read_sink_holds(deployment.registry):
        for shard in _carried(shards, deployment, sink.collection):
            release(shard, sink.hold)
    fail_point("drop-sink.released")


def free_target(deployment: Deployment, dropped: Dropped) -> None:
    """Let the target forget the progress of a dropped sink; the rows there, and the progress of other sinks, stay.

    Raises ``Unreachable`` if the target does not answer.
    """
    sink = SinkDeclaration.model_validate(dropped.definition)
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
