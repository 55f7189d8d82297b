"""Drives the lifecycle over days of arrivals in seconds, and says what was persisted when, and why.

`tidemark buffer simulate` is how people try rules with it. Rows arrive in partitions of an hour, from two sequencers,
and have no size: limits count rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import NamedTuple

import yaml
from pydantic import ValidationError

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.collections.declarations.messages import describe
from tidemark.errors import UsageError
from tidemark.interval import Unit, time_text
from tidemark.lifecycle.checkpoints import Checkpoints, NumberRange
from tidemark.lifecycle.chunks import Action, Chunk, Operation, Stage
from tidemark.lifecycle.partitions import name_partition
from tidemark.lifecycle.policy import Decision, PartitionChunks, Snapshot, decide
from tidemark.lifecycle.state import LifecycleState
from tidemark.lifecycle.windows import Slice

START_MS = 1_357_084_800_000  # 2013-01-02
MINUTE_MS = 60_000
DAY_MINUTES = 1_440
SEQUENCERS = (0, 1)
SLOTS = 2  # compactions at a time


class Pattern(StrEnum):
    """How rows arrive."""

    STEADY = "steady"
    BURSTY = "bursty"
    LATE = "late"
    COLD = "cold"
    CLOCK_STEPS = "clock-steps"


class Entry(NamedTuple):
    """Rows of one event time that arrive together."""

    sequencer_id: int
    number: int
    time_ms: int
    rows: int


def draw_steady(_: int, random: Random) -> list[tuple[int, int]]:
    """Return how long ago each entry of this minute happened, in ms, and its rows."""
    return [(random.randrange(MINUTE_MS), random.randint(10, 30)) for _ in range(6)]


def draw_bursty(minute: int, random: Random) -> list[tuple[int, int]]:
    """Return a little, and once an hour a very great deal."""
    if minute % 60 == 20 + minute // 60 % 30:
        return [(random.randrange(MINUTE_MS), 50_000) for _ in range(30)]
    return draw_steady(minute, random)[:1]


def draw_late(minute: int, random: Random) -> list[tuple[int, int]]:
    """Return steady entries, of which about one in twenty is up to three hours late."""
    entries = draw_steady(minute, random)
    return [(random.randrange(180 * MINUTE_MS) if random.randrange(20) == 0 else ago, rows) for ago, rows in entries]


def draw_cold(minute: int, random: Random) -> list[tuple[int, int]]:
    """Return entries in the first minutes of every fourth hour, then silence."""
    return draw_steady(minute, random) if minute % 240 < 8 else []  # noqa: PLR2004


DRAWS: dict[Pattern, Callable[[int, Random], list[tuple[int, int]]]] = {
    Pattern.STEADY: draw_steady,
    Pattern.BURSTY: draw_bursty,
    Pattern.LATE: draw_late,
    Pattern.COLD: draw_cold,
    Pattern.CLOCK_STEPS: draw_steady,
}


@dataclass
class Simulation:
    """One collection in memory. An operation takes a minute: rows arrive while it is under way."""

    rules: LifecycleRules
    state: LifecycleState = field(default_factory=LifecycleState)
    chunks: dict[str, list[Chunk]] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))  # not persisted, by partition
    under_way: list[tuple[Decision, Checkpoints | None]] = field(default_factory=list)
    arrived: int = 0  # rows
    persisted: int = 0
    files: int = 0
    most_open: int = 0  # rows
    reopened: int = 0  # partitions, each time
    _numbers: int = 0
    _chunk_ids: int = 0

    def step(self, now_ms: int, arrivals: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Let one minute pass; yield what happened in it."""
        for decision, checkpoints in self.under_way:
            yield from self._finish(decision, checkpoints)
        self.under_way = []
        yield from self._ingest(now_ms, arrivals)
        self.state, closed = self.state.close(dict.fromkeys(SEQUENCERS, True), now_ms=now_ms, rules=self.rules)
        for event in closed:
            yield f"closed   {event.partition}: {event.rows:,} rows, {event.late_rows:,} of them late"
        self.state = self.state.forget_settled()
        for decision in decide(self._look(), self.rules, now_ms=now_ms, slots=SLOTS):
            if isinstance(decision.action, Action):
                yield from self._begin(decision, decision.action, now_ms)
            else:
                yield f"{decision.action:8} {decision.reason}"

    def _look(self) -> Snapshot:
        partitions = {
            name: PartitionChunks(windows=partition.windows, chunks=self.chunks.get(name, ()))
            for name, partition in self.state.partitions.items()
        }
        running = frozenset(decision.operation_id for decision, _ in self.under_way)
        return Snapshot(collection="simulated", partitions=partitions, running=running)

    def _ingest(self, now_ms: int, arrivals: Sequence[tuple[int, int]]) -> Iterator[str]:
        groups: defaultdict[tuple[str, int], list[Entry]] = defaultdict(list)
        for ago_ms, rows in arrivals:
            self._numbers += 1
            sequencer_id = SEQUENCERS[self._numbers % len(SEQUENCERS)]
            entry = Entry(sequencer_id, self._numbers, now_ms - ago_ms, rows)
            groups[name_partition(Unit.HOUR, entry.time_ms), sequencer_id].append(entry)
        arrived: defaultdict[str, list[Slice]] = defaultdict(list)
        for (name, sequencer_id), entries in groups.items():
            numbers = NumberRange(entries[0].number, entries[-1].number + 1)
            times, rows = [entry.time_ms for entry in entries], sum(entry.rows for entry in entries)
            arrived[name].append(
                Slice(sequencer_id=sequencer_id, numbers=numbers, rows=rows, start_ms=min(times), end_ms=max(times) + 1)
            )
            self.entries[name] += entries
            self.arrived += rows
            self._store(name, rows, min(times), now_ms)
        self.most_open = max(self.most_open, self.arrived - self.persisted)
        self.state, reopened = self.state.add(arrived, arrived_ms=now_ms, rules=self.rules)
        self.reopened += len(reopened)
        for event in reopened:
            yield f"reopened {event.partition}: {event.late_rows:,} late rows"

    def _store(self, name: str, rows: int, start_ms: int, now_ms: int) -> None:
        chunks = self.chunks.setdefault(name, [])
        place = next((place for place, chunk in enumerate(chunks) if chunk.stage is Stage.OPEN), len(chunks))
        if place == len(chunks):
            chunks.append(self._new_chunk(rows=0, start_ms=start_ms, now_ms=now_ms))
        chunks[place] = chunks[place].add(
            rows, size_bytes=0, start_ms=start_ms, arrived_ms=now_ms, open_rows=self.rules.open_rows
        )

    def _new_chunk(self, *, rows: int, start_ms: int, now_ms: int) -> Chunk:
        self._chunk_ids += 1
        return Chunk(id=self._chunk_ids, rows=rows, start_ms=start_ms, last_write_ms=now_ms)

    def _begin(self, decision: Decision, action: Action, now_ms: int) -> Iterator[str]:
        checkpoints = None
        if action is Action.PERSIST:
            self.state, checkpoints = self.state.start_persist(
                decision.partition, now_ms=now_ms, rules=self.rules, everything=decision.everything
            )
        operation = Operation(id=decision.operation_id, action=action, started_ms=now_ms)
        chunks = self.chunks.get(decision.partition, [])
        for place, chunk in enumerate(chunks):
            if chunk.id in decision.chunks:
                chunks[place] = chunk.begin(operation)
        self.under_way.append((decision, checkpoints))
        until = "" if decision.until_ms is None else f" before {time_text(decision.until_ms)}"
        yield f"{action:8} {decision.partition}{until}: {decision.reason}"

    def _finish(self, decision: Decision, checkpoints: Checkpoints | None) -> Iterator[str]:
        name = decision.partition
        taken = [chunk for chunk in self.chunks.get(name, []) if chunk.id in decision.chunks]
        left = [chunk for chunk in self.chunks.get(name, []) if chunk.id not in decision.chunks]
        rows = sum(chunk.rows for chunk in taken)
        if checkpoints is not None:
            rows -= (written := self._write_file(name, checkpoints))
            yield f"wrote    {name}: {written:,} rows; {rows:,} stay open"
        if rows:
            merged = self._new_chunk(
                rows=rows,
                start_ms=checkpoints.partition.until_ms if checkpoints else min(chunk.start_ms for chunk in taken),
                now_ms=max(chunk.last_write_ms for chunk in taken),
            )
            left.append(replace(merged.freeze(), is_compacted=True))
        self.chunks[name] = left

    def _write_file(self, name: str, checkpoints: Checkpoints) -> int:
        """Commit a persist; return its rows."""
        self.state = self.state.finish_persist(checkpoints)
        own = checkpoints.partition
        waiting = self.entries[name]
        is_taken = [
            entry.time_ms < own.until_ms and entry.number < own.numbers[entry.sequencer_id].end for entry in waiting
        ]
        written = sum(entry.rows for entry, taken in zip(waiting, is_taken, strict=True) if taken)
        self.entries[name] = [entry for entry, taken in zip(waiting, is_taken, strict=True) if not taken]
        self.persisted += written
        self.files += 1
        return written


def simulate(simulation: Simulation, pattern: Pattern, *, days: int, seed: int) -> Iterator[str]:
    """Yield what happens in so many days, in order; ``simulation`` is then as of that moment."""
    random = Random(seed)  # noqa: S311 - the same days each time
    step_ms = 0
    for minute in range(days * DAY_MINUTES):
        if pattern is Pattern.CLOCK_STEPS and minute % 360 == 359:  # noqa: PLR2004 - four times a day
            step_ms = random.randint(-20, 20) * MINUTE_MS
            yield f"the clock is {step_ms // MINUTE_MS} min off from now on"
        now_ms = START_MS + minute * MINUTE_MS + step_ms
        for event in simulation.step(now_ms, DRAWS[pattern](minute, random)):
            yield f"{time_text(now_ms)}  {event}"


def parse_rules(texts: Sequence[str]) -> LifecycleRules:
    """Return the rules that texts such as ``persist_age=1h`` declare; others have their defaults.

    Raises ``UsageError`` if a declaration would not take them.
    """
    try:
        declared = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in texts)}
        return LifecycleRules.model_validate(declared)
    except yaml.YAMLError as error:
        wrong = f"no value of YAML: {error}"
    except ValidationError as error:
        wrong = "; ".join(describe(each, LifecycleRules, where=lambda *_: "--rule") for each in error.errors())
    raise UsageError(wrong, hint="write rules as in `lifecycle` of a declaration: --rule persist_age=1h")
