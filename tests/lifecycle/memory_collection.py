"""A log and a collection in memory: files with their checkpoints outlive a restart, open rows and the state do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.lifecycle.checkpoints import Checkpoints, NumberRange, Numbers, PartitionCheckpoint
from tidemark.lifecycle.replay_plan import ReplayPlan, bound_plan, plan_replay
from tidemark.lifecycle.state import LifecycleState, Partition
from tidemark.lifecycle.watermarks import SequencerTimes
from tidemark.lifecycle.windows import Slice, Windows

START_MS = 1_357_214_400_000
RULES = LifecycleRules(late_arrive_window="1m")


class Row(NamedTuple):
    """A row in the log: the later of two rows with one key and time wins, by its number."""

    sequencer: int
    number: int
    partition: str
    time_ms: int
    key: str
    value: int


class EntryLost(Exception):
    """The log no longer has the last entry that a replay must read."""


class File(NamedTuple):
    checkpoints: Checkpoints
    rows: list[Row]


@dataclass
class Log:
    """By sequencer its entries, by number; a number may be missing."""

    entries: dict[int, dict[int, list[Row]]]
    earliest: dict[int, int]

    @classmethod
    def of(cls, *sequencers: int) -> Log:
        return cls({id_: {} for id_ in sequencers}, dict.fromkeys(sequencers, 0))

    def write(self, sequencer: int, *rows: tuple[str, int, str, int], number: int | None = None) -> int:
        """Append an entry of rows ``(partition, time, key, value)``; return its number."""
        number = self.watermark(sequencer) if number is None else number
        self.entries[sequencer][number] = [Row(sequencer, number, *row) for row in rows]
        return number

    def watermark(self, sequencer: int) -> int:
        return max(self.entries[sequencer], default=-1) + 1

    def read(self, sequencer: int, start: int, end: int) -> Iterable[tuple[int, list[Row]]]:
        return sorted((n, rows) for n, rows in self.entries[sequencer].items() if start <= n < end)

    @property
    def present(self) -> dict[int, NumberRange]:
        return {id_: NumberRange(self.earliest[id_], self.watermark(id_)) for id_ in self.entries}


def slice_by_partition(rows: Iterable[Row]) -> dict[str, list[Slice]]:
    """Return what Spark would count in one commit: by partition and sequencer."""
    groups: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.partition, row.sequencer].append(row)
    slices: defaultdict[str, list[Slice]] = defaultdict(list)
    for (partition, sequencer), found in sorted(groups.items()):
        numbers, times = [row.number for row in found], [row.time_ms for row in found]
        slices[partition].append(
            Slice(
                sequencer_id=sequencer,
                numbers=NumberRange(min(numbers), max(numbers) + 1),
                rows=len(found),
                start_ms=min(times),
                end_ms=max(times) + 1,
            )
        )
    return slices


class MemoryCollection:
    """The steps of the reference, 5.5, over an in-memory log; each method is one step that a crash may follow."""

    def __init__(self, *sequencers: int, rules: LifecycleRules = RULES) -> None:
        self.log = Log.of(*(sequencers or (0,)))
        self.rules = rules
        self.now_ms = START_MS
        self.files: list[File] = []
        self.next = dict.fromkeys(self.log.entries, 0)  # the number to ingest next
        self.open: list[Row] = []
        self.state = LifecycleState()
        self.plan: ReplayPlan | None = None
        self.replayed: list[PartitionCheckpoint] = []  # committed at the end of a replay

    def add(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self.state, _ = self.state.add(slice_by_partition(rows), arrived_ms=self.now_ms, rules=self.rules)
        self.open += rows

    def play(self) -> None:
        """Ingest what waits, in one commit."""
        self.add(
            row for id_, next_ in self.next.items() for _, rows in self.log.read(id_, next_, 1 << 62) for row in rows
        )
        self.next = {id_: self.log.watermark(id_) for id_ in self.next}

    def ingest(self, sequencer: int, *rows: tuple[str, int, str, int]) -> None:
        """Write one entry, and play."""
        self.log.write(sequencer, *rows)
        self.play()

    def make_writes_persistable(self) -> None:
        self.now_ms += 60_000

    def start_persist(self, partition: str, *, everything: bool = False) -> Checkpoints | None:
        self.state, checkpoints = self.state.start_persist(
            partition, now_ms=self.now_ms, rules=self.rules, everything=everything
        )
        return checkpoints

    def finish_persist(self, checkpoints: Checkpoints, *, database: Numbers | None = None) -> File:
        """Commit the rows that the persist took, with the checkpoints and the state."""
        own = checkpoints.partition
        taken = [
            row
            for row in self.open
            if row.partition == own.partition and row.time_ms < own.until_ms and row.number < _end(own.numbers, row)
        ]
        self.state = self.state.finish_persist(checkpoints)
        committed = checkpoints if database is None else replace(checkpoints, database=database)
        self.files.append(File(committed, taken))
        self.open = [row for row in self.open if row not in taken]
        return self.files[-1]

    def persist(self, *partitions: str) -> None:
        for partition in partitions:
            checkpoints = self.start_persist(partition)
            assert checkpoints is not None, f"nothing of {partition} is persistable"
            self.finish_persist(checkpoints)

    def drop(self, partition: str) -> None:
        """Drop the rows of a partition; its checkpoints stay."""
        self.files = [file._replace(rows=[r for r in file.rows if r.partition != partition]) for file in self.files]

    def restart(self) -> None:
        self.open, self.state, self.plan = [], LifecycleState(passed_ms=self.state.passed_ms), None

    def plan_replay(self) -> ReplayPlan:
        points = [file.checkpoints for file in self.files]
        return plan_replay([*(p.partition for p in points), *self.replayed], [point.database for point in points])

    def replay(self, *, entries: int | None = None) -> None:
        """Read again what is not persisted; die after so many ``entries``."""
        plan = self.plan = bound_plan(self.plan_replay(), self.log.present, buffer="the log")
        for sequencer, numbers in plan.numbers.items():
            for number, rows in self.log.read(sequencer, numbers.start, 1 << 62 if not numbers.is_empty else 0):
                if entries is not None and (entries := entries - 1) < 0:
                    return
                is_last = check_read(plan, sequencer, number)
                needed = [
                    row
                    for row in rows
                    if plan.needs_row(row.partition, sequencer_id=sequencer, number=number, time_ms=row.time_ms)
                ]
                self.add(needed)
                if is_last:
                    break
        self._go_on(plan)
        self.replayed = [each.checkpoint for each in self.state.partitions.values() if each.checkpoint]

    def skip_replay(self) -> None:
        self.plan = skip_plan(self.plan_replay(), self.log.present)
        self._go_on(self.plan)

    def _go_on(self, plan: ReplayPlan) -> None:
        self.state = mark_replayed(self.state, plan)
        self.next = {id_: plan.ends.get(id_, self.log.earliest[id_]) for id_ in self.log.entries}

    @property
    def rows(self) -> list[Row]:
        """All rows that are in a file or open."""
        return [*(row for file in self.files for row in file.rows), *self.open]

    def times(self, *partitions: str) -> list[int]:
        return sorted(row.time_ms for row in self.rows if not partitions or row.partition in partitions)

    @property
    def partitions(self) -> list[str]:
        return sorted({row.partition for row in self.rows})


def check_read(plan: ReplayPlan, sequencer_id: int, number: int) -> bool:
    """Return whether the entry with that number is the last one to read of a sequencer; holes before it are fine."""
    last = plan.numbers[sequencer_id].end - 1
    if number > last:
        raise EntryLost(f"for sequencer {sequencer_id} expected to find sequence {last} but replay jumped to {number}")
    return number == last


def skip_plan(plan: ReplayPlan, present: Mapping[int, NumberRange]) -> ReplayPlan:
    """Return the plan that reads nothing and goes on at the watermarks: what lies between is lost by choice.

    Every partition of it is marked as seen and persisted up to there, so that no row of the past comes back later.
    """
    numbers = {id_: NumberRange(range_.end, range_.end) for id_, range_ in present.items()}
    # A log with no entry yet has nothing to skip, and no number that was ever seen.
    seen = {id_: range_ for id_, range_ in numbers.items() if range_.end}
    partitions = {name: replace(each, numbers={**each.numbers, **seen}) for name, each in plan.partitions.items()}
    return replace(
        plan,
        numbers=numbers,
        partitions=partitions,
        lost={id_: max(0, each.end - plan.numbers.get(id_, each).start) for id_, each in present.items()},
    )


def mark_replayed(state: LifecycleState, plan: ReplayPlan) -> LifecycleState:
    """Return the state after a replay of all partitions, or after one was skipped.

    Every partition of the plan is marked, also one that the replay did not touch: its files hold what it has seen.
    What the replay did not bring back is persisted, or lost by choice, so the checkpoints lack no more than that.
    """
    partitions = dict(state.partitions)
    for name, checkpoint in plan.partitions.items():
        before = partitions.get(name, Partition(windows=Windows()))
        windows = before.windows.mark_seen_and_persisted(checkpoint.numbers)
        lacking = {
            id_: NumberRange(min(windows.numbers[id_].start, each.end), each.end)
            for id_, each in checkpoint.numbers.items()
        }
        partitions[name] = replace(before, windows=windows, checkpoint=replace(checkpoint, numbers=lacking))
    sequencers = dict(state.sequencers)
    for id_, numbers in plan.numbers.items():
        seen = SequencerTimes(end=numbers.end, max_time_ms=None, last_ms=0)
        sequencers[id_] = sequencers.get(id_, seen).advance(seen)
    return replace(state, partitions=partitions, sequencers=sequencers)


def last_write_wins(rows: Iterable[Row]) -> Mapping[tuple[str, int, str], int]:
    """Return the value of each key at each time."""
    return {(row.partition, row.time_ms, row.key): row.value for row in sorted(rows)}


def _end(numbers: Numbers, row: Row) -> int:
    return numbers[row.sequencer].end if row.sequencer in numbers else 0
