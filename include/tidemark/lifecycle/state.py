"""Where all partitions of one collection stand: one frozen value, which is committed with the data that it describes.

Each step returns the next state. What a persist commits, both checkpoints, is computed from one such value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tidemark.collections.declarations.lifecycle import LifecycleRules, Visible
from tidemark.errors import IncompatibleDataVersion, StaleState, UsageError
from tidemark.interval import EARLIEST_MS
from tidemark.lifecycle.checkpoints import Checkpoints, NumberRange, Numbers, PartitionCheckpoint, combine
from tidemark.lifecycle.partitions import find_bounds
from tidemark.lifecycle.watermarks import SequencerTimes, find_passed, is_ahead
from tidemark.lifecycle.windows import Slice, Windows

STATE_VERSION = 1


class StalePersist(StaleState):
    """The persist that is to be committed is not the one that is under way: it was given up, or committed before."""


class NumbersAgain(UsageError):
    """A sequencer brings numbers that it brought before: what is persisted would no longer be known."""


class Reopened(NamedTuple):
    """Rows arrived in a partition that was closed."""

    partition: str
    late_rows: int


class Closed(NamedTuple):
    """All sequencers have passed a partition."""

    partition: str
    rows: int  # since the state knows the partition: it forgets one that is closed and persisted
    late_rows: int  # of these, arrived after the partition was passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition that may lack something."""

    windows: Windows
    checkpoint: PartitionCheckpoint | None = None  # of the last persist
    rows: int = 0
    late_rows: int = 0
    is_closed: bool = False

    def persist_under_way(self, name: str) -> PartitionCheckpoint | None:
        """Return the checkpoint that the persist under way commits; None if there is none."""
        flush = self.windows.flush
        if flush is None:
            return None
        return PartitionCheckpoint(partition=name, numbers=flush.numbers, until_ms=flush.until_ms)

    def mark_persisted(self, name: str, sequencer_id: int, numbers: NumberRange, *, until_ms: int) -> Partition:
        """Return the partition with rows of some numbers that were persisted before the state knew of them.

        Their event times lie below ``until_ms``. Where open rows have smaller numbers, those of them with such event
        times count as persisted, too: a replay takes no row that is persisted for one that is not.
        """
        before = self.checkpoint
        if before is None:
            known = {id_: NumberRange(each.start, each.start) for id_, each in self.windows.numbers.items()}
            before = PartitionCheckpoint(partition=name, numbers=known, until_ms=EARLIEST_MS)
        windows = self.windows.mark_seen_and_persisted({sequencer_id: NumberRange(numbers.end, numbers.end)})
        first_open = windows.numbers[sequencer_id].start
        end = max(numbers.end, before.numbers.get(sequencer_id, numbers).end)
        if first_open >= end:
            own, until_ms = NumberRange(first_open, first_open), before.until_ms
        else:
            own, until_ms = NumberRange(first_open, end), max(until_ms, before.until_ms)
        checkpoint = replace(before, numbers={**before.numbers, sequencer_id: own}, until_ms=until_ms)
        return replace(self, windows=windows, checkpoint=checkpoint)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without what is empty."""
        form = {"windows": self.windows.to_json(), "rows": [self.rows, self.late_rows], "closed": self.is_closed}
        if self.checkpoint is not None:
            form["checkpoint"] = self.checkpoint.to_json()
        return form

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Partition:
        """Return what ``to_json`` wrote."""
        return cls(
            windows=Windows.from_json(data["windows"]),
            checkpoint=PartitionCheckpoint.from_json(name, data["checkpoint"]) if "checkpoint" in data else None,
            rows=data["rows"][0],
            late_rows=data["rows"][1],
            is_closed=data["closed"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleState:
    """All partitions that may lack something, and what each sequencer has brought."""

    partitions: Mapping[str, Partition] = field(default_factory=dict)
    sequencers: Mapping[int, SequencerTimes] = field(default_factory=dict)
    passed_ms: int | None = None  # partitions that end at this event time, or before, are passed; it never goes back

    @property
    def database(self) -> dict[int, NumberRange]:
        """The numbers that any partition may lack, by sequencer."""
        return combine([self.ends, *(partition.windows.numbers for partition in self.partitions.values())])

    @property
    def checkpoints(self) -> list[PartitionCheckpoint]:
        """What is persisted of each partition; of one that was never persisted, the numbers below its first open row.

        (A partition that was persisted and forgotten has rows below, once late rows reopened it.)
        """
        return [
            partition.checkpoint
            or PartitionCheckpoint(partition=name, numbers=partition.windows.numbers, until_ms=EARLIEST_MS)
            for name, partition in self.partitions.items()
        ]

    @property
    def ends(self) -> dict[int, NumberRange]:
        """What is persisted of partitions that the state has forgotten: all numbers that were seen, by sequencer."""
        return {id_: NumberRange(times.end, times.end) for id_, times in self.sequencers.items()}

    def is_passed(self, partition: str) -> bool:
        """Tell whether the watermarks of all sequencers have passed the partition: rows that arrive now are late."""
        return self.passed_ms is not None and find_bounds(partition).end_ms <= self.passed_ms

    def add(
        self, arrived: Mapping[str, Sequence[Slice]], *, arrived_ms: int, rules: LifecycleRules
    ) -> tuple[LifecycleState, list[Reopened]]:
        """Return the state with what one ingest commit brought to each partition, and the partitions that it reopened.

        Raises ``NumbersAgain`` if a sequencer brought some of the numbers before.
        """
        partitions, reopened = dict(self.partitions), []
        for name, slices in sorted(arrived.items()):
            self._check_order(name, slices)
            partition = partitions.get(name) or Partition(windows=self._windows_of_new())
            windows = partition.windows
            for slice_ in slices:
                windows = windows.add_range(slice_, arrived_ms=arrived_ms, late_ms=rules.late_ms)
            rows = sum(slice_.rows for slice_ in slices)
            late_rows = rows if self.is_passed(name) else 0
            if late_rows and (partition.is_closed or name not in partitions):
                reopened.append(Reopened(name, late_rows))
            partitions[name] = replace(
                partition,
                windows=windows,
                rows=partition.rows + rows,
                late_rows=partition.late_rows + late_rows,
                is_closed=False,
            )
        sequencers = dict(self.sequencers)
        for slice_ in (slice_ for slices in arrived.values() for slice_ in slices):
            max_time_ms = slice_.end_ms - 1
            ahead = is_ahead(max_time_ms, arrived_ms=arrived_ms, max_ahead_ms=rules.max_ahead_ms)
            new = SequencerTimes(end=slice_.numbers.end, max_time_ms=None if ahead else max_time_ms, last_ms=arrived_ms)
            sequencers[slice_.sequencer_id] = sequencers.get(slice_.sequencer_id, new).advance(new)
        return replace(self, partitions=partitions, sequencers=sequencers), reopened

    def start_persist(
        self, partition: str, *, now_ms: int, rules: LifecycleRules, everything: bool = False
    ) -> tuple[LifecycleState, Checkpoints | None]:
        """Return the state with a persist under way, and what its commit says; None if there is nothing to persist.

        A persist that is under way already goes on with what it began with: a task may run again. ``everything``
        persists all rows, also those that late ones may still follow.
        """
        state, begun = self.start_persists({partition: everything}, now_ms=now_ms, rules=rules)
        return state, begun[0] if begun else None

    def start_persists(
        self, wanted: Mapping[str, bool], *, now_ms: int, rules: LifecycleRules
    ) -> tuple[LifecycleState, list[Checkpoints]]:
        """Return the state with persists under way that one commit will end, and what this commit says.

        ``wanted`` says of each partition whether all of its rows are to be persisted. Otherwise as ``start_persist``.
        """
        started, after = dict(self.partitions), dict(self.partitions)
        begun = []
        for name, everything in wanted.items():
            before = self._find(name)
            windows = before.windows
            if windows.flush is None:
                windows = windows.start_flush(now_ms, late_ms=rules.late_ms, everything=everything)
            if windows.flush is not None:
                started[name] = replace(before, windows=windows)
                after[name] = replace(before, windows=windows.finish_flush())
                begun.append(name)
        # Of this very state, as these flushes will leave it: rows that arrive later have greater numbers.
        database = replace(self, partitions=after).database
        found = [started[name].persist_under_way(name) for name in begun]
        begun_ = [Checkpoints(partition=each, database=database) for each in found if each is not None]
        return replace(self, partitions=started), begun_

    def finish_persist(self, checkpoints: Checkpoints) -> LifecycleState:
        """Return the state to commit with the files of a persist. Raises as ``finish_persists``."""
        return self.finish_persists([checkpoints])

    def finish_persists(self, ended: Iterable[Checkpoints]) -> LifecycleState:
        """Return the state to commit with the files of some persists.

        Raises ``StalePersist`` if one is not under way: committed before, given up, or its partition is unknown.
        """
        partitions = dict(self.partitions)
        for checkpoints in ended:
            name = checkpoints.partition.partition
            before = partitions.get(name)
            if before is None or before.persist_under_way(name) != checkpoints.partition:
                until_ms = checkpoints.partition.until_ms
                raise StalePersist(
                    f"the persist of partition {name} up to {until_ms} ms is not under way any more",
                    hint="its files were not committed; the next pass persists what is still missing",
                )
            windows = before.windows.finish_flush()
            partitions[name] = replace(before, windows=windows, checkpoint=checkpoints.partition)
        return replace(self, partitions=partitions)

    def drop_persist(self, partition: str) -> LifecycleState:
        """Return the state after the persist under way was given up; the same state if there is none."""
        before = self._find(partition)
        return self._with(partition, replace(before, windows=before.windows.drop_flush()))

    def drop_persists(self, names: Iterable[str]) -> LifecycleState:
        """Return the state after the persists under way of some partitions were given up."""
        found = self.partitions
        dropped = {name: replace(found[name], windows=found[name].windows.drop_flush()) for name in names}
        return replace(self, partitions={**found, **dropped})

    def close(
        self, caught_up: Mapping[int, bool], *, now_ms: int, rules: LifecycleRules
    ) -> tuple[LifecycleState, list[Closed]]:
        """Return the state with the partitions closed that all sequencers have passed, and these partitions.

        One with late rows waits until no more of them arrive, or each of them would be announced. Where rows are
        visible only when they are persisted, a partition waits for that. ``caught_up`` names all sequencers of the
        buffer, and says of each whether none of its entries waits.
        """
        passed_ms = find_passed(self.sequencers, caught_up, now_ms=now_ms, late_ms=rules.late_ms)
        known = [time for time in (self.passed_ms, passed_ms) if time is not None]
        passed = replace(self, passed_ms=max(known, default=None))
        closed = {
            name: partition
            for name, partition in self.partitions.items()
            if not partition.is_closed
            and passed.is_passed(name)
            and (not partition.late_rows or now_ms - partition.windows.last_ms >= rules.late_ms)
            and (rules.visible is Visible.AT_ONCE or partition.windows.is_persisted)
        }
        partitions = {name: replace(partition, is_closed=True) for name, partition in closed.items()}
        events = [Closed(name, partition.rows, partition.late_rows) for name, partition in sorted(closed.items())]
        return replace(passed, partitions={**self.partitions, **partitions}), events

    def forget_settled(self) -> LifecycleState:
        """Return the state without partitions that lack nothing: closed, persisted, and before every replay's start.

        So the state grows with the partitions in use, not with the age of the collection.
        """
        database = self.database
        kept = {name: each for name, each in self.partitions.items() if not _is_settled(each, database)}
        return replace(self, partitions=kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "partitions": {name: partition.to_json() for name, partition in sorted(self.partitions.items())},
            "sequencers": {
                str(id_): [times.end, times.max_time_ms, times.last_ms]
                for id_, times in sorted(self.sequencers.items())
            },
            "passed": self.passed_ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LifecycleState:
        """Return what ``to_json`` wrote. Raises ``IncompatibleDataVersion`` for another version."""
        if (version := data.get("version")) != STATE_VERSION:
            raise IncompatibleDataVersion(
                f"the lifecycle state has version {version}, this program reads version {STATE_VERSION}",
                hint="run the program that wrote it, or a newer one",
            )
        return cls(
            partitions={name: Partition.from_json(name, form) for name, form in data["partitions"].items()},
            sequencers={
                int(id_): SequencerTimes(end=end, max_time_ms=max_time_ms, last_ms=last_ms)
                for id_, (end, max_time_ms, last_ms) in data["sequencers"].items()
            },
            passed_ms=data["passed"],
        )

    def _with(self, name: str, partition: Partition) -> LifecycleState:
        return replace(self, partitions={**self.partitions, name: partition})

    def _find(self, partition: str) -> Partition:
        if (found := self.partitions.get(partition)) is None:
            raise UsageError(
                f"partition {partition} has nothing to persist", hint="list them: tidemark buffer partitions"
            )
        return found

    def _windows_of_new(self) -> Windows:
        # It has no rows of the numbers so far, or they are persisted and it was forgotten: its checkpoints go on.
        return Windows(seen={id_: times.end for id_, times in self.sequencers.items()})

    def _check_order(self, name: str, slices: Sequence[Slice]) -> None:
        for slice_ in slices:
            if (times := self.sequencers.get(slice_.sequencer_id)) and slice_.numbers.start < times.end:
                raise NumbersAgain(
                    f"sequencer {slice_.sequencer_id} brings the numbers {slice_.numbers} to partition {name}, and has "
                    f"brought all below {times.end} before",
                    hint="each number is ingested once, in order: go on where the last commit ended",
                )


def _is_settled(partition: Partition, database: Numbers) -> bool:
    """Tell whether a replay reads no number that the partition has seen."""
    return (
        partition.is_closed
        and partition.windows.is_persisted
        and all(end <= database[id_].start for id_, end in partition.windows.seen.items())
    )
