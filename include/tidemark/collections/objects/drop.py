"""Drops objects in two steps: gone from the catalog at once, then their tables are renamed and sealed.

The catalog's transaction decides. A process that dies after it leaves a table under a name that is free: whoever
applies, drops or maintains next renames that very table, by its uuid, never one that was made anew. The renamed table
waits for maintenance, see ``dropped_tables``.

Why no write can land in a table that is made anew under the name: every commit names the uuid of its table and replaces
the very metadata file that it was built upon, so one that is under way at the rename fails; and a shard object means
the table of its first load (``iceberg/shard/shard.py``), so what its process does next fails with ``Dropped``. A file
that is written already lies in the folder of the dropped table and goes with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, Declaration
from tidemark.collections.deployment import Deployment, Leaving
from tidemark.collections.holds import may_be_of_sink
from tidemark.collections.mode import refuse_when_read_only
from tidemark.collections.objects.quarantine import set_quarantine_aside
from tidemark.collections.objects.rename import finish_renames
from tidemark.collections.objects.standing import Dropped, ObjectKind
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.staged.batches import queued_in
from tidemark.errors import CorruptState, UnknownCollection
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import COLLECTIONS, DROPPED, Shards

log = logging.getLogger(__name__)

FAIL_POINTS = ("drop.recorded", "drop.renamed", "drop.sealed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlan:
    """What the drop of one object takes along."""

    leaving: Leaving
    rows: dict[str, int]  # by table
    staged: int = 0  # batches that wait for a flush
    holds: tuple[str, ...] = ()  # readers, without sinks, that hold history: the table stays as long as they do
    buffer: str | None = None  # that it reads: what waits there stays there

    def __str__(self) -> str:
        name, kind = self.leaving.name, self.leaving.kind
        parts = [f"{rows} rows of {table!r}" for table, rows in self.rows.items()]
        if self.staged:
            parts.append(f"{self.staged} staged batches, which exist nowhere else")
        if self.holds:
            parts.append(f"its table stays until nobody holds its history any more; now: {', '.join(self.holds)}")
        if self.buffer:
            parts.append(f"what waits in the buffer {self.buffer!r} stays there")
        if kind is ObjectKind.SINK:
            parts.append("its declaration, and its hold on history; what is in its target stays there")
        return f"{kind} {name!r}: {'; '.join(parts) or 'its declaration alone'}"


def plan_drop(shards: Shards, deployment: Deployment, names: Sequence[str], *, clock: Clock) -> list[DropPlan]:
    """Return what a drop of ``names`` would take along, once earlier drops and renames are complete.

    Raises:
        ReadOnly: If the deployment is read-only; nothing was changed.
        Others as ``Objects.look``, and as ``finish_drops``.
    """
    refuse_when_read_only(deployment, "drop")
    finish_drops(shards, deployment, clock=clock)  # perhaps a drop of this very name, which died
    # The catalog first: while the item keeps its number, the table of that name is the table of that object.
    leaving = deployment.objects.look(names)
    finish_renames(shards, deployment)  # else a table would be left under its old name
    return [_plan(shards, deployment.registry.find(each.name), each, now_ms=clock.now_ms()) for each in leaving]


def _plan(shards: Shards, declaration: Declaration | None, leaving: Leaving, *, now_ms: int) -> DropPlan:
    if leaving.kind is not ObjectKind.COLLECTION:
        return DropPlan(leaving=leaving, rows={})
    tables: dict[str, str] = {}
    rows: dict[str, int] = {}
    holds: list[str] = []
    staged = 0
    for name in (leaving.name, leaving.name + QUARANTINE_SUFFIX):
        if not shards.exists(name):  # nothing was ever quarantined, or the apply died before it made the table
            continue
        shard = shards.open(name)
        tables[name] = str(shard.load_table().metadata.table_uuid)
        with suppress(CorruptState):  # what is damaged can be dropped, too
            head = shard.load()
            rows[name] = head.row_count
            live = [reader for reader, hold in head.state.holds.items() if hold.is_live(now_ms)]
            holds += [reader for reader in live if not may_be_of_sink(reader)]  # sinks go before, or with it
            staged += len(queued_in(head, collection=name))
    source = None if declaration is None else declaration.source
    return DropPlan(
        leaving=replace(leaving, tables=tables),
        rows=rows,
        staged=staged,
        holds=tuple(sorted(set(holds))),
        buffer=source.buffer if isinstance(source, BufferSource) else None,
    )


def drop(shards: Shards, deployment: Deployment, plans: Iterable[DropPlan], *, clock: Clock) -> list[Dropped]:
    """Drop the planned objects, all or none, and set their tables aside; also those of drops that died before.

    Raises:
        ReadOnly: If the deployment is read-only; nothing was changed.
        Others as ``Objects.drop``, and as ``finish_drops`` once everything is gone from the catalog.
    """
    gone = deployment.objects.drop([plan.leaving for plan in plans])
    fail_point("drop.recorded")
    finish_drops(shards, deployment, clock=clock)
    return gone


def finish_drops(shards: Shards, deployment: Deployment, *, clock: Clock) -> list[Dropped]:
    """Rename and seal the tables of all dropped objects that have their names still; return all dropped objects.

    Raises:
        FencedByGeneration: If a newer deployment owns a table.
        ConflictsUnsettled: If writers kept winning against the rename.
    """
    dropped = deployment.objects.dropped()
    aside = set(shards.names(DROPPED)) if dropped else set()
    for each in dropped:
        if each.table_uuid and each.table not in aside:
            set_aside(shards, each, generation=deployment.generation, now_ms=clock.now_ms())
    # Quarantines that were there have their names by now: what is left was made by somebody who was still at work.
    present = set(shards.names()) if dropped else set()
    for each in dropped:
        if each.table_uuid and each.name + QUARANTINE_SUFFIX in present:
            set_quarantine_aside(shards, each.name, each.table_uuid)
    return dropped


def left_over(shards: Shards, deployment: Deployment) -> set[str]:
    """Return the names that tables of dropped objects have still: to a new collection the names are free."""
    names = set()
    for each in deployment.objects.dropped():
        with suppress(UnknownCollection):
            if each.table_uuid == str(shards.open(each.name).load_table().metadata.table_uuid):
                names.add(each.name)
    return names


def set_aside(shards: Shards, dropped: Dropped, *, generation: int, now_ms: int) -> None:
    """Rename the table of a dropped object, so that its name is free, and seal it. May be repeated."""
    if shards.rename((COLLECTIONS, dropped.name), (DROPPED, dropped.table), uuid=dropped.table_uuid):
        fail_point("drop.renamed")
    if not shards.exists(dropped.table, DROPPED):
        return
    shard = shards.open(dropped.table, DROPPED)
    try:
        if not shard.load().state.is_sealed:
            Writer.raise_token(shard, generation).seal(now_ms=now_ms, keeps_holds=True)
            fail_point("drop.sealed")
    except CorruptState as damage:  # nobody can write to it either
        log.warning("%s is not sealed: %s", shard.identifier, damage)
