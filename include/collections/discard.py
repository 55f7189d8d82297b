"""Gives up staged batches, on request and by name alone; who, when and why is recorded before anything goes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.collections.mode import LOG, SYSTEM, mode_of, read_mode
from include.collections.staged_batches import list_batches
from include.errors import ConflictsUnsettled, Sealed, UpperMismatch, UsageError
from include.fail_points import fail_point
from include.persist.log import LOG_SCHEMA, LogUpdate, append_to_log, read_log
from include.persist.shard_state import ShardKind
from include.persist.staging import drop_staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from include.clock import Clock
    from include.collections.staged_batches import QueuedBatch
    from include.persist.ledger import Range
    from include.persist.shards import Shards
    from include.settings import Settings

FAIL_POINTS = ("discard.after-record", "discard.after-drop")
ENTRY_KIND = "discard"
_ATTEMPTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which staged batches are meant: those that fit everything that is given, so something has to be."""

    names: tuple[str, ...] = ()
    producer: str | None = None
    generation: int | None = None
    range: Range | None = None
    everything: bool = False  # all that is staged, said in so many words

    def __post_init__(self) -> None:
        if not (self.names or self.producer or self.generation is not None or self.range or self.everything):
            raise UsageError(
                "discard needs to be told what to discard: nothing was selected",
                hint="name collections, --producer, --generation or --range; `tidemark staged` lists what there is",
            )

    def fits(self, queued: QueuedBatch) -> bool:
        """Tell whether a batch is meant; the range is that of the batch, not a part of it."""
        return (
            (not self.names or queued.collection in self.names)
            and self.producer in {None, queued.name.producer}
            and self.generation in {None, queued.generation}
            and self.range in {None, queued.name.range}
        )


def discard(
    shards: Shards, settings: Settings, selection: Selection, *, who: str, why: str, clock: Clock
) -> list[QueuedBatch]:
    """Remove the selected staged batches with their rows, which exist nowhere else; return what is gone.

    The record comes first: a crash in between leaves a batch that a rerun discards under the record that is there.

    Raises:
        UnknownCollection: If a named collection does not exist.
        FencedByGeneration: If a newer deployment leads; nothing was changed.
        ConflictsUnsettled: If other commits kept winning.
    """
    mode_of(read_mode(settings), settings.generation)
    chosen = [each for each in list_batches(shards, selection.names) if selection.fits(each)]
    return discard_batches(shards, settings, chosen, who=who, why=why, clock=clock)


def discard_batches(
    shards: Shards, settings: Settings, chosen: Sequence[QueuedBatch], *, who: str, why: str, clock: Clock
) -> list[QueuedBatch]:
    """Remove these very batches, as ``discard`` does; return what is gone, less what was published meanwhile."""
    if not chosen:
        return []
    _record(shards, settings, chosen, who=who, why=why, clock=clock)
    fail_point("discard.after-record")
    gone: list[QueuedBatch] = []
    for collection in dict.fromkeys(each.collection for each in chosen):
        mine = [each for each in chosen if each.collection == collection]
        dropped = drop_staged(shards.open(collection), [each.branch for each in mine])
        gone += [each for each in mine if each.branch in dropped]
        fail_point("discard.after-drop")
    return gone


def read_discards(shards: Shards) -> list[dict[str, Any]]:
    """Return the records of all discarded batches, oldest first."""
    if not shards.exists(LOG, SYSTEM):
        return []
    entries = read_log(shards.open(LOG, SYSTEM).load())
    found = [json.loads(value) for kind, _, value in entries if kind == ENTRY_KIND]
    return sorted(found, key=lambda each: (each["discarded_at"], each["collection"], each["producer"], each["range"]))


def _record(
    shards: Shards, settings: Settings, chosen: Sequence[QueuedBatch], *, who: str, why: str, clock: Clock
) -> None:
    shard = shards.create(LOG, schema=LOG_SCHEMA, kind=ShardKind.LOG, namespace=SYSTEM)
    for _ in range(_ATTEMPTS):
        head = shard.load()
        lower = head.state.upper
        if not isinstance(lower, int):
            raise Sealed(f"shard {shard.name!r} is sealed", hint="this installation was closed for good")
        recorded = {key for kind, key, _ in read_log(head) if kind == ENTRY_KIND}
        now_ms = max(clock.now_ms(), lower)
        updates = [
            LogUpdate(ENTRY_KIND, _key(each), _entry(each, who=who, why=why, now_ms=now_ms), 1)
            for each in chosen
            if _key(each) not in recorded
        ]
        if not updates:
            return
        try:
            append_to_log(shard.join(settings.generation), updates, lower=lower, time=now_ms)
        except UpperMismatch:
            continue
        return
    raise ConflictsUnsettled("the record of what is discarded kept losing to others", hint="run it again")


def _key(queued: QueuedBatch) -> str:
    """Return what is the same for the same staged rows, and another for the same range staged again."""
    return f"{queued.collection} {queued.branch} {queued.snapshot_id}"


def _entry(queued: QueuedBatch, *, who: str, why: str, now_ms: int) -> str:
    return json.dumps({**queued.to_json(), "discarded_at": now_ms, "who": who, "why": why}, sort_keys=True)
