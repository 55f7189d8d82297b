"""The sensor that waits until a partition of event times is closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.errors import UsageError
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.ingest.partitions.state import Partitions
from tidemark.interval import Unit
from tidemark.lifecycle.partitions import find_bounds, name_partition
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings


def see_partition(settings: Settings, collection: str, partition: str) -> Seen:
    """Look whether a partition is closed, without a JVM and without pyiceberg, in a few ms.

    The facts have its rows, and how many of them are late; None for one that closed so long ago that it is forgotten.

    Raises:
        UnknownCollection: If there is no such collection.
        UsageError: If the text names no partition of the collection.
        Unreachable: If the catalog does not answer.
    """
    start_ms = find_bounds(partition).start_ms
    found = Partitions.read(read_state(settings, collection).properties)
    facts: Facts = {"collection": collection, "partition": partition}
    waiting = f"partition {partition} of {collection!r} stayed open"
    if found is None:
        return Seen(facts, waiting)
    if name_partition(found.unit, start_ms) != partition:
        raise UsageError(
            f"{partition!r} is no partition of {collection!r}, which is cut by {Unit(found.unit)}",
            hint=f"name one as in {name_partition(found.unit, start_ms)!r}",
        )
    known = found.state.partitions.get(partition)
    facts |= {"rows": known and known.rows, "late_rows": known and known.late_rows}
    return Seen(facts, "" if found.is_closed(partition) else waiting)


class PartitionClosedSensor(WaitingSensor):
    """Wait until all sequencers of its buffer have passed a partition of a collection; return what it holds.

    The answer rests on the table, not on an event. A late row may open the partition again, whatever was answered.
    """

    template_fields: Sequence[str] = ("collection", "partition")
    watch = "PartitionClosedTrigger"

    def __init__(self, *, collection: str, partition: str, poll_seconds: float = 10.0, **kwargs: Any) -> None:
        super().__init__(poll_seconds=poll_seconds, **kwargs)
        self.collection, self.partition = collection, partition

    def look(self, before: Facts | None) -> Seen:
        return see_partition(load_settings(), self.collection, self.partition)

    def watched(self, seen: Seen) -> dict[str, Any]:
        return {"collection": self.collection, "partition": self.partition}
