"""Cleans up after dropped sinks: history is no longer held, and the target no longer belongs to anybody.

A drop takes a sink out of the catalog first, and looks for runs of it second. A run begins its lease first, and looks
into the catalog second. So a run that may still claim the target is seen, and the item that says what is to be cleaned
up stays for a later maintenance, in case the run dies before it takes its progress out of the target itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.holds import release_dead
from tidemark.collections.maintenance.dropped_tables import REMOVERS as COLLECTION_REMOVERS
from tidemark.collections.maintenance.dropped_tables import Remains, Remover
from tidemark.collections.objects.standing import Dropped, ObjectKind
from tidemark.errors import ConfigurationInvalid, TidemarkError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import DROPPED, Shards
from tidemark.sinks.targets.registry import open_target
from tidemark.sinks.turns import may_be_running

log = logging.getLogger(__name__)

FAIL_POINTS = ("drop-sink.released", "drop-sink.forgotten")


def clear_sinks(shards: Shards, deployment: Deployment, gone: Iterable[Dropped]) -> list[str]:
    """Clean up after the sinks among the objects that were just dropped; return, for each that waits, why."""
    waiting = []
    for dropped in gone:
        if dropped.kind is not ObjectKind.SINK:
            continue
        try:
            why = _clear(shards, deployment, dropped)
        except TidemarkError as error:
            why = str(error)
        if why is None:
            deployment.objects.forget(dropped)
        else:
            waiting.append(f"{dropped.name}: {why}")
    return waiting


def remove_sink(shards: Shards, deployment: Deployment, remains: Remains, now_ms: int) -> str | None:
    """Clean up, or return why that waits; after the grace a target is given up whose connection nobody has any more."""
    if not remains.waits_at(now_ms) and not _is_connected(deployment, remains.dropped):
        release_history(shards, deployment, remains.dropped)
        log.warning("%s: its target keeps the progress of the sink: no connection to it is set", remains.dropped)
        return None
    try:
        why = _clear(shards, deployment, remains.dropped)
    except TidemarkError as error:
        why = str(error)
    return None if why is None else f"{remains.dropped}: {why}"


def _is_connected(deployment: Deployment, dropped: Dropped) -> bool:
    """Tell whether the environment has the connection of the target, whether or not that answers."""
    try:
        open_target(SinkDeclaration.model_validate(dropped.definition), deployment.settings).close()
    except ConfigurationInvalid:
        return False
    return True


def _clear(shards: Shards, deployment: Deployment, dropped: Dropped) -> str | None:
    """Release the history and free the target; return why that may have to be done again. Raises as the two."""
    is_running = may_be_running(deployment.settings, dropped.name, dropped.object_id)
    release_history(shards, deployment, dropped)
    free_target(deployment, dropped)
    return "a run of it may be under way, and claim the target once more" if is_running else None


# For maintenance: what is left of any object.
REMOVERS: Mapping[ObjectKind, Remover] = {**COLLECTION_REMOVERS, ObjectKind.SINK: remove_sink}


def release_history(shards: Shards, deployment: Deployment, dropped: Dropped) -> None:
    """Release the hold of a dropped sink, and what else no sink holds; a sink of its name keeps what it carries."""
    sink = SinkDeclaration.model_validate(dropped.definition)
    for shard in _carried(shards, deployment, sink.collection):
        release_dead(shard, deployment)
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
