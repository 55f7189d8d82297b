"""The restart of one dataflow that a person asks for: a word in the log, as a worker says it after a failure."""

from __future__ import annotations

import re

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import refuse_when_read_only
from tidemark.errors import NotYetAvailable, UnknownObject
from tidemark.iceberg.shards import Shards
from tidemark.storage.command_log import ShardCommandLog
from tidemark.storage.commands import Start, SuspendAndRestart
from tidemark.storage.definitions import object_id
from tidemark.storage.history import retain
from tidemark.storage.order import Outbox
from tidemark.storage.running import how_to_run, running_on_workers


def restart_dataflow(shards: Shards, deployment: Deployment, name: str, *, who: str, clock: Clock) -> None:
    """Ask all workers to stop the dataflow of an object, and to start it from fresh points.

    Raises:
        UnknownObject: If there is no such object; with near matches.
        NotYetAvailable: If no worker runs the object.
        ReadOnly: If the deployment is read-only; nothing was changed.
    """
    objects = deployment.registry.objects()
    if name not in objects:
        raise UnknownObject.named(name, objects)
    refuse_when_read_only(deployment, f"restart of {name!r}")  # before the log is made
    id_ = object_id(objects[name])
    log = ShardCommandLog.open(shards, deployment=deployment, clock=clock)
    starts = {row.command.id: row.index for row in retain(log.read(0)) if isinstance(row.command, Start)}
    if id_ not in starts or name not in running_on_workers(deployment.settings):
        raise NotYetAvailable(f"no storage worker runs {name!r}", hint=how_to_run(name, deployment))
    outbox = Outbox(log.join("console-" + re.sub(r"\W", "-", who)))
    outbox.put(SuspendAndRestart(id_, f"asked for by {who}", starts[id_], is_failure=False))
    outbox.flush(log)
