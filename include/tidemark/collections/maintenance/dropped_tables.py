"""Removes what dropped objects left, once no live hold needs it and people had time to change their mind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.holds import may_be_of_sink, moment_text
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import refuse_when_read_only
from tidemark.collections.objects.drop import set_aside
from tidemark.collections.objects.quarantine import list_quarantines_aside, set_quarantine_aside
from tidemark.collections.objects.standing import Dropped, ObjectKind
from tidemark.errors import UnknownCollection
from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.protection import MAINTENANCE
from tidemark.iceberg.maintenance.orphans import store_now_ms
from tidemark.iceberg.maintenance.removal import remove_table
from tidemark.iceberg.shard.state import Hold, ShardState
from tidemark.iceberg.shards import DROPPED, Shards
from tidemark.report import CollectionReport, Outcome, Report

FAIL_POINTS = ("remove.table-gone",)
GRACE_MS = 7 * 24 * 3_600_000  # to change one's mind


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a dropped object left, and why it is there still."""

    dropped: Dropped
    has_table: bool = False
    due_ms: int = 0  # when people had time enough
    holds: Mapping[str, Hold] = field(default_factory=dict)  # live ones; no sink carries a dropped table any more

    def waits_at(self, now_ms: int) -> bool:
        return bool(self.holds) or now_ms < self.due_ms

    def __str__(self) -> str:
        if self.dropped.kind is ObjectKind.SINK:
            return f"{self.dropped}: each maintenance tries to take its progress out of the target"
        held = [f"held by {reader} until {self._end_of(reader, hold)}" for reader, hold in self.holds.items()]
        why = "; ".join([f"goes after {moment_text(self.due_ms)}", *held])
        table = f", its table is {DROPPED}.{self.dropped.table}" if self.has_table else ""
        return f"{self.dropped}{table}: {why}"

    def _end_of(self, reader: str, hold: Hold) -> str:
        if hold.is_durable:
            return f"`tidemark hold release {DROPPED}.{self.dropped.table} {reader}`"
        return moment_text(hold.expires_at_ms)


# Removes what an object left; returns None once nothing is left, or why the rest stays. The number is the time in ms.
Remover = Callable[[Shards, Deployment, Remains, int], str | None]


@dataclass(frozen=True, slots=True)
class _Named:
    """Remains under the name that the report gives them; no collection can have it."""

    dropped: Dropped

    @property
    def name(self) -> str:
        return f"{DROPPED}.{self.dropped.table}"


def look_at_remains(shards: Shards, dropped: Dropped, *, now_ms: int, grace_ms: int = GRACE_MS) -> Remains:
    """Return what a dropped object left as of ``now_ms``; nothing is changed."""
    remains = Remains(dropped=dropped, due_ms=dropped.dropped_at_ms + grace_ms)
    with suppress(UnknownCollection):
        table = shards.open(dropped.table, DROPPED).load_table()  # whatever refs it lost
        state = ShardState.parse(table.metadata.properties, shard=dropped.table)
        live = {
            reader: hold for reader, hold in state.holds.items() if hold.is_live(now_ms) and not may_be_of_sink(reader)
        }
        return replace(remains, has_table=True, holds=live)
    return remains


def remove_collection(shards: Shards, _deployment: Deployment, remains: Remains, now_ms: int) -> str | None:
    """Remove the table of a dropped collection, with a quarantine that was made late, or return why it stays."""
    if remains.waits_at(now_ms):
        return str(remains)
    dropped = remains.dropped
    if dropped.table_uuid:
        set_quarantine_aside(shards, dropped.name, dropped.table_uuid)
        for table in list_quarantines_aside(shards, dropped.name, dropped.table_uuid):
            remove_table(shards.open(table, DROPPED))
    if remains.has_table:
        remove_table(shards.open(dropped.table, DROPPED))
    return None


REMOVERS: Mapping[ObjectKind, Remover] = {ObjectKind.COLLECTION: remove_collection}


def remove_dropped(
    shards: Shards,
    deployment: Deployment,
    *,
    clock: Clock,
    grace_ms: int = GRACE_MS,
    removers: Mapping[ObjectKind, Remover] = REMOVERS,
) -> Report:
    """Remove what dropped objects left and nobody needs; the report says why the rest waits. Failures are isolated.

    Drops that died half-way are completed first. Remains of a kind without a remover wait for a process that has
    one.
    """
    started_at = clock.now_ms()

    def remove_one(named: _Named) -> CollectionReport:
        dropped = named.dropped
        refuse_when_read_only(deployment, f"removal of {named.name!r}")
        if dropped.table_uuid:
            set_aside(shards, dropped, generation=deployment.generation, now_ms=clock.now_ms())
        now_ms = clock.now_ms()
        if shards.exists(dropped.table, DROPPED):  # a clock that is ahead of the store's makes nothing too old
            now_ms = min(now_ms, store_now_ms(shards.open(dropped.table, DROPPED)))
        remains = look_at_remains(shards, dropped, now_ms=now_ms, grace_ms=grace_ms)
        remover = removers.get(dropped.kind)
        waits: str | None = f"{dropped}: nothing here can clean up after it"
        if remover is not None:
            waits = remover(shards, deployment, remains, now_ms)
        if waits is None:
            fail_point("remove.table-gone")
            deployment.objects.forget(dropped)
        return CollectionReport(
            outcome=Outcome.UNCHANGED,
            strategy="dropped" if waits else "removed",
            details={"waits": waits} if waits else {"removed": str(dropped)},
        )

    report, _ = run_one_by_one(
        MAINTENANCE,
        [_Named(dropped) for dropped in deployment.objects.dropped()],
        remove_one,
        deployment=deployment,
        clock=clock,
        started_at=started_at,
        goes_on_paused=True,
    )
    return report
