"""Holds history for a sink while the catalog has that sink, and not longer.

A drop takes a sink out of the catalog first, and releases its hold second. A run takes the hold first, and looks into
the catalog second. So at least one of the two sees the other. A run that is killed between the two leaves a dead hold,
which the next maintenance of the collection releases.
"""

from __future__ import annotations

from tidemark.collections.deployment import AppliedSink, Deployment
from tidemark.collections.holds import release_dead
from tidemark.collections.objects.standing import ObjectKind
from tidemark.errors import Dropped
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import NEVER


def is_applied(deployment: Deployment, applied: AppliedSink) -> bool:
    """Tell whether the catalog still has this sink; another one of the same name is not this sink."""
    found = deployment.objects.find(applied.name)
    return (found.kind, found.object_id) == (ObjectKind.SINK, applied.id)


def refuse_dropped(deployment: Deployment, applied: AppliedSink) -> None:
    """Raise ``Dropped`` if the sink was dropped, whether or not another one has its name now."""
    if not is_applied(deployment, applied):
        raise Dropped.meanwhile(applied.name)


def hold_history(
    shard: Shard, applied: AppliedSink, *, deployment: Deployment, writer: Writer, since: int | None = None
) -> None:
    """Hold history from ``since`` (default: the present since) on for the sink, for ever.

    Raises ``Dropped`` if the sink was dropped; no hold is left then, unless another sink has made the hold its own.
    Otherwise raises as ``hold``.
    """
    hold(shard, applied.declaration.hold, since=since, expires_at_ms=NEVER, writer=writer)
    if not is_applied(deployment, applied):
        release_dead(shard, deployment)
        raise Dropped.meanwhile(applied.name)
