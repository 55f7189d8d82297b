"""Has partitions counted anew: the way out of a state that is damaged, or of a clock that was ahead.

The state is set to that of a collection whose rows nobody has counted. The next ingest counts all rows that are there,
as after a state that was lost: what lies in persisted files stays persisted, all else is open, and the watermark is
computed from the rows again.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import lead_to_write
from tidemark.collections.publish import ATTEMPTS
from tidemark.errors import CorruptState, FencedByEpoch, UpperMismatch
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind
from tidemark.ingest.partitions.state import PROPERTY, PartitionRules, Partitions
from tidemark.interval import time_text
from tidemark.retry import retrying


class Counted(NamedTuple):
    """What the state says that is given up; nothing if it is damaged."""

    watermark: str | None = None
    partitions: int = 0
    closed: int = 0
    under_way: int = 0  # persists, which then write nothing
    damage: str = ""


def look(shard: Shard, declaration: Declaration) -> Counted:
    """Say what ``recount`` gives up. Raises ``UsageError`` if the rows of the collection have no event times."""
    rules = PartitionRules.required(declaration)
    try:
        found = Partitions.parse(shard.load().table.properties, rules.column, rules.unit)
    except CorruptState as error:
        return Counted(damage=str(error))
    passed_ms, partitions = found.state.passed_ms, found.state.partitions.values()
    return Counted(
        watermark=None if passed_ms is None else time_text(passed_ms),
        partitions=len(partitions),
        closed=sum(each.is_closed for each in partitions),
        under_way=len(found.under_way),
    )


def recount(shard: Shard, declaration: Declaration, *, deployment: Deployment, clock: Clock) -> Counted:
    """Give the state up; return what it said. An ingest or a persist at work computes its commit again, or gives way.

    Raises:
        UsageError: If the rows of the collection have no event times.
        ReadOnly: If the deployment is read-only.
        UpperMismatch: If others kept writing; nothing was changed.
    """
    rules = PartitionRules.required(declaration)

    def give_up() -> Counted:
        writer = lead_to_write(shard, deployment, what="repair")
        before, head = look(shard, declaration), shard.load()
        writer.publish(
            lower=head.state.open_upper(f"collection {shard.name!r}"),
            new_upper=head.state.next_upper(clock.now_ms()),
            kind=CommitKind.ADVANCE,
            properties={PROPERTY: str(Partitions(column=rules.column, unit=rules.unit))},
        )
        return before

    what = f"the repair of {shard.name!r}"
    return retrying(UpperMismatch, FencedByEpoch, attempts=ATTEMPTS, what=what)(give_up)
