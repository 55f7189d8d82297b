"""One pass over one snapshot of a collection: what to do with which chunks, each with its reason."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidemark.collections.declarations.lifecycle import LifecycleRules, Limit
from tidemark.interval import duration_text
from tidemark.lifecycle.checkpoints import numbers_json
from tidemark.lifecycle.chunks import Action, Chunk, Stage
from tidemark.lifecycle.windows import Flush, Windows

RECOVERY_MS = 10_000  # an operation that nobody runs any more is given up so long after its start


class Control(StrEnum):
    """What a pass decides besides actions on chunks."""

    CLEAR = "clear"  # give an operation up that failed; the next pass may try again
    PAUSE = "pause"  # ingest takes no more rows, until a pass does not say so


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChunks:
    """What one partition holds."""

    windows: Windows
    chunks: Sequence[Chunk] = ()

    @property
    def unpersisted(self) -> list[Chunk]:
        return sorted((c for c in self.chunks if not c.is_persisted), key=lambda chunk: (chunk.order, chunk.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A collection at one moment."""

    collection: str
    partitions: Mapping[str, PartitionChunks]
    running: frozenset[str] = frozenset()  # ids of the operations that somebody works on
    is_replaying: bool = False  # nothing is persisted meanwhile: its rows are not all back


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, and why; the same snapshot gives the same id, so that a task may run again."""

    action: Action | Control
    partition: str = ""  # empty: the whole collection
    chunks: tuple[int, ...] = ()
    reason: str
    operation_id: str
    until_ms: int | None = None  # rows below this event time are persisted (exclusive)
    everything: bool = False  # persist all rows, also those that late ones may still follow


@dataclass(frozen=True, slots=True)
class _Pass:
    snapshot: Snapshot
    rules: LifecycleRules
    now_ms: int

    def clear_failed(self, name: str, partition: PartitionChunks) -> list[Decision]:
        failed: dict[str, list[int]] = {}
        for chunk in partition.chunks:
            if (operation := chunk.operation) and self._has_failed(operation.id, operation.started_ms):
                failed.setdefault(operation.id, []).append(chunk.id)
        if flush := partition.windows.flush:
            id_ = persist_id(self.snapshot.collection, name, flush)
            if self._has_failed(id_, flush.started_ms):
                failed.setdefault(id_, [])
        reason = f"nobody works on it, and it began more than {duration_text(RECOVERY_MS)} ago"
        return [
            Decision(action=Control.CLEAR, partition=name, chunks=tuple(chunks), reason=reason, operation_id=id_)
            for id_, chunks in failed.items()
        ]

    def _has_failed(self, operation_id: str, started_ms: int) -> bool:
        return operation_id not in self.snapshot.running and self.now_ms - started_ms >= RECOVERY_MS

    def why_persist(self, windows: Windows) -> str | None:
        """Return why a partition is to be persisted now; None if it is not."""
        rules, late_ms = self.rules, self.rules.late_ms
        age_ms = windows.oldest_age_ms(self.now_ms)
        if age_ms is None or not rules.persist or self.snapshot.is_replaying:
            return None
        if (rows := windows.count_persistable(self.now_ms, late_ms=late_ms)) >= rules.persist_rows:
            return f"{rows:,} persistable rows >= {rules.persist_rows:,}"
        if age_ms >= rules.persist_age_ms:
            return f"oldest open row {duration_text(age_ms)} >= {duration_text(rules.persist_age_ms)}"
        quiet_ms = self.now_ms - windows.last_ms
        if rules.persist_when_cold and quiet_ms >= late_ms:
            return f"cold: no row for {duration_text(quiet_ms)} >= {duration_text(late_ms)}"
        return None

    def persist(
        self, name: str, partition: PartitionChunks, reason: str, *, everything: bool = False
    ) -> Decision | Action | None:
        """Return the decision to persist a partition; else the action of a chunk that it must wait for, if any."""
        if partition.windows.flush is not None:
            return None
        late_ms = self.rules.late_ms
        flush = partition.windows.start_flush(self.now_ms, late_ms=late_ms, everything=everything).flush
        if flush is None:
            return None
        chunks = partition.unpersisted
        places = [place for place, chunk in enumerate(chunks) if chunk.start_ms < flush.until_ms]
        for place in places:
            if operation := chunks[place].operation:
                return operation.action
        # Also what lies before and between them, so that what is left stays behind in the order of chunks.
        taken = [chunk.id for chunk in chunks[: places[-1] + 1] if chunk.operation is None] if places else []
        return Decision(
            action=Action.PERSIST,
            partition=name,
            chunks=tuple(taken),
            reason=reason,
            operation_id=persist_id(self.snapshot.collection, name, flush),
            until_ms=flush.until_ms,
            everything=everything,
        )

    def compact(self, name: str, partition: PartitionChunks) -> Decision | None:
        chosen: list[Chunk] = []
        reasons: list[str] = []
        rows_left = self.rules.persist_rows
        for chunk in partition.unpersisted:
            if chunk.operation is not None:
                if chosen:
                    break  # a merge never jumps over a chunk that something else happens to
            elif chunk.stage is Stage.OPEN:
                if why := why_freeze(chunk, self.rules, now_ms=self.now_ms):
                    chosen.append(chunk)
                    reasons.append(why)
            elif not chunk.is_compacted:
                chosen.append(chunk)
            elif chunk.rows < rows_left:
                chosen.append(chunk)
                rows_left -= chunk.rows
        fresh = sum(not chunk.is_compacted for chunk in chosen)
        if not fresh and len(chosen) <= 1:
            return None
        reasons.append(f"{len(chosen)} chunks to merge, {fresh} of them in small files")
        ids = tuple(chunk.id for chunk in chosen)
        return Decision(
            action=Action.COMPACT,
            partition=name,
            chunks=ids,
            reason="; ".join(reasons),
            operation_id=_operation_id(Action.COMPACT, self.snapshot.collection, name, *ids),
        )

    def relieve(self, decided: Sequence[Decision]) -> list[Decision]:
        """Return what makes room above the soft limit, and the pause above the hard one."""
        soft, hard = self.rules.limits
        found: list[Decision] = []
        if soft is not None and (staged := self._count_staged(soft)) >= soft.amount:
            found += self._make_room(
                soft, staged, f"{staged:,} open {soft.unit} >= `soft_limit` {soft.amount:,}", decided
            )
        if hard is not None and (staged := self._count_staged(hard)) >= hard.amount:
            reason = f"{staged:,} open {hard.unit} >= `hard_limit` {hard.amount:,}"
            id_ = _operation_id(Control.PAUSE, self.snapshot.collection, "", hard)
            found.append(Decision(action=Control.PAUSE, reason=reason, operation_id=id_))
        return found

    def _count_staged(self, limit: Limit) -> int:
        return sum(_size(c, limit) for p in self.snapshot.partitions.values() for c in p.chunks if c.is_staged)

    def _make_room(self, limit: Limit, staged: int, reason: str, decided: Sequence[Decision]) -> list[Decision]:
        """Return what to unload, then what to drop, one by one until there is room; else the oldest rows to persist."""
        busy = {(each.partition, id_) for each in decided for id_ in each.chunks}
        free = [
            (Action.UNLOAD if chunk.is_persisted else Action.DROP, name, chunk)
            for name, partition in self.snapshot.partitions.items()
            for chunk in partition.chunks
            if chunk.operation is None and (name, chunk.id) not in busy
            if chunk.is_cached or (chunk.stage is Stage.FROZEN and not self.rules.persist)
        ]
        # What is unloaded can be read again, what is dropped is gone.
        free.sort(key=lambda each: (each[0] is Action.DROP, each[2].last_read_ms, each[1], each[2].id))
        found: list[Decision] = []
        for action, name, chunk in free:
            if staged < limit.amount:
                return found
            why = f"{reason}; of these, nobody has read it for the longest time"
            id_ = _operation_id(action, self.snapshot.collection, name, chunk.id)
            found.append(Decision(action=action, partition=name, chunks=(chunk.id,), reason=why, operation_id=id_))
            staged -= _size(chunk, limit)
        if staged >= limit.amount and self.rules.persist and not self.snapshot.is_replaying:
            why = f"{reason}; of all partitions, its rows wait for the longest time"
            found += self._persist_oldest(limit, staged, why, decided)
        return found

    def _persist_oldest(self, limit: Limit, staged: int, reason: str, decided: Sequence[Decision]) -> list[Decision]:
        """Return the persists of the oldest partitions that make room, beside those that are decided."""
        waiting = [(n, p) for n, p in self.snapshot.partitions.items() if not p.windows.is_persisted]
        if any(p.windows.flush for _, p in waiting):
            return []  # that one makes room already
        sizes = {name: sum(_size(chunk, limit) for chunk in partition.unpersisted) for name, partition in waiting}
        staged -= sum(sizes.get(each.partition, 0) for each in decided if each.action is Action.PERSIST)
        taken = {each.partition for each in decided}
        found: list[Decision] = []
        for name, partition in sorted(waiting, key=lambda each: (each[1].windows.unpersisted[0].opened_ms, each[0])):
            if staged < limit.amount:
                break
            decision = None if name in taken else self.persist(name, partition, reason, everything=True)
            if isinstance(decision, Decision):
                found.append(decision)
                staged -= sizes[name]
        return found


def decide(snapshot: Snapshot, rules: LifecycleRules, *, now_ms: int, slots: int | None = None) -> list[Decision]:
    """Return what to do now, in order of partitions, at most one action for each chunk; then what the limits demand.

    At most ``slots`` compactions are under way at a time; None: any number. The same snapshot, rules and time give the
    same decisions. What is decided is not in the snapshot yet: the next one
    shows it as operations under way.
    """
    this = _Pass(snapshot, rules, now_ms)
    active = {
        chunk.operation.id
        for partition in snapshot.partitions.values()
        for chunk in partition.chunks
        if chunk.operation is not None and chunk.operation.action is Action.COMPACT
    }
    free = float("inf") if slots is None else slots - len(active)
    decided: list[Decision] = []
    for name, partition in sorted(snapshot.partitions.items()):
        decided += this.clear_failed(name, partition)
        reason = this.why_persist(partition.windows)
        persist = None if reason is None else this.persist(name, partition, reason)
        if isinstance(persist, Decision):
            decided.append(persist)  # the next pass merges what is left
        elif persist is not Action.COMPACT and free > 0 and (compact := this.compact(name, partition)):
            # Otherwise the persist waits for a merge, and another merge would make it wait again.
            decided.append(compact)
            free -= 1
    return decided + this.relieve(decided)


def decide_all(snapshot: Snapshot, rules: LifecycleRules, *, now_ms: int) -> list[Decision]:
    """Return what persists all rows, however young, because somebody asks for that."""
    this = _Pass(snapshot, rules, now_ms)
    decided = (
        this.persist(name, partition, "asked for", everything=True)
        for name, partition in sorted(snapshot.partitions.items())
    )
    return [each for each in decided if isinstance(each, Decision)]


def find_next_due(snapshot: Snapshot, rules: LifecycleRules) -> tuple[int, str] | None:
    """Return when the next partition is due at the latest, in ms, if no more rows come, and its name; None if never."""
    if not rules.persist:
        return None
    dues = []
    for name, partition in snapshot.partitions.items():
        windows = partition.windows
        if oldest := next(iter(windows.unpersisted), None):
            cold = [windows.last_ms + rules.late_ms] if rules.persist_when_cold else []
            dues.append((min([oldest.opened_ms + rules.persist_age_ms, *cold]), name))
    return min(dues, default=None)


def why_freeze(chunk: Chunk, rules: LifecycleRules, *, now_ms: int) -> str | None:
    """Return why an open chunk takes no more rows; None if it takes more."""
    if chunk.rows >= rules.open_rows:
        return f"{chunk.rows:,} rows >= {rules.open_rows:,}"
    if (quiet_ms := max(0, now_ms - chunk.last_write_ms)) >= rules.late_ms:
        return f"no row for {duration_text(quiet_ms)} >= {duration_text(rules.late_ms)}"
    return None


def persist_id(collection: str, partition: str, flush: Flush) -> str:
    """Return the id of a persist: the same for the same rows, in whatever run."""
    return _operation_id(Action.PERSIST, collection, partition, flush.until_ms, numbers_json(flush.numbers))


def _size(chunk: Chunk, limit: Limit) -> int:
    return chunk.rows if limit.unit == "rows" else chunk.size_bytes


def _operation_id(action: Action | Control, collection: str, partition: str, *what: object) -> str:
    digest = hashlib.sha256(repr((collection, partition, what)).encode()).hexdigest()[:12]
    return "-".join(part for part in (action, collection, partition, digest) if part)
