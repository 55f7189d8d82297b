"""Plans what a replay reads again, and says of each row whether it is persisted already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.errors import CorruptState
from tidemark.lifecycle.checkpoints import NumberRange, Numbers, PartitionCheckpoint, fold
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists, UnknownSequencer


class UndeterminedOrder(CorruptState):
    """Of two checkpoints of a partition neither is the later one: they are of two logs, or of two writers."""


class DatabaseCheckpointMissing(CorruptState):
    """A partition has numbers of a sequencer, or beyond an end, that no database checkpoint knows."""


class RowFilter(NamedTuple):
    """Which rows of one partition and sequencer are not persisted, by the numbers of their entries and event times."""

    start: int  # no row of a number below
    end: int  # all rows of this number and of greater ones
    until_ms: int  # of the numbers [start, end), the rows of this event time and of later ones

    def needs_row(self, number: int, time_ms: int) -> bool:
        """Tell whether a row is not persisted, and so must come back."""
        return number >= self.end or (number >= self.start and time_ms >= self.until_ms)


_NEVER = (1 << 63) - 1
_NONE, _ALL = RowFilter(_NEVER, _NEVER, _NEVER), RowFilter(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The numbers ``[start, end)`` to read again of each sequencer, and the last checkpoint of each partition.

    A reader stands at ``end`` afterwards; of an empty range nothing is read. A sequencer that is not in ``numbers`` is
    read from its earliest number on, as ever.
    """

    numbers: Numbers
    partitions: Mapping[str, PartitionCheckpoint]
    only: frozenset[str] | None = None  # the partitions to rebuild; None: all of them
    # What is persisted of partitions without a checkpoint: all numbers below, if the state has forgotten them.
    others: Numbers = field(default_factory=dict)
    # By sequencer the number from which on all rows must come back, whatever is persisted.
    rewound: Mapping[int, int] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)  # by sequencer: how many entries are not read, at most
    warnings: tuple[str, ...] = ()

    @property
    def ends(self) -> dict[int, int]:
        return {id_: numbers.end for id_, numbers in self.numbers.items()}

    def needs_row(self, partition: str, *, sequencer_id: int, number: int, time_ms: int) -> bool:
        """Tell whether a row of an entry is not persisted, and so must come back."""
        return self.filter_of(partition, sequencer_id).needs_row(number, time_ms)

    def filter_of(self, partition: str, sequencer_id: int) -> RowFilter:
        """Return which rows of one partition and sequencer must come back."""
        if self.only is not None and partition not in self.only:
            return _NONE
        checkpoint = self.partitions.get(partition)
        numbers = (self.others if checkpoint is None else checkpoint.numbers).get(sequencer_id)
        if numbers is None:
            return _ALL
        end = min(numbers.end, self.rewound.get(sequencer_id, numbers.end))
        until_ms = _NEVER if checkpoint is None else checkpoint.until_ms
        return RowFilter(min(numbers.start, end), end, until_ms)


def plan_replay(
    partitions: Iterable[PartitionCheckpoint], databases: Iterable[Numbers], *, only: Collection[str] | None = None
) -> ReplayPlan:
    """Return what to read again, from the checkpoints that are committed with the files, in any order.

    ``only`` names the partitions to rebuild.

    Raises:
        UndeterminedOrder: If two checkpoints of one partition contradict each other.
        DatabaseCheckpointMissing: If a partition has seen what no database checkpoint has.
    """
    last: dict[str, PartitionCheckpoint] = {}
    for checkpoint in partitions:
        name = checkpoint.partition
        if name not in last or checkpoint.covers(last[name]):
            last[name] = checkpoint
        elif not last[name].covers(checkpoint):
            raise UndeterminedOrder(
                f"two checkpoints of partition {name} contradict each other: {_text(last[name].numbers)} and "
                f"{_text(checkpoint.numbers)}",
                hint="find out whether two logs or two writers were at work before anything is read again",
            )
    database = fold(databases)
    warnings = [warning for _, checkpoint in sorted(last.items()) for warning in _compare(checkpoint, database)]
    chosen = None if only is None else frozenset(only)
    return ReplayPlan(numbers=database, partitions=last, only=chosen, warnings=tuple(warnings))


def bound_plan(
    plan: ReplayPlan,
    present: Mapping[int, NumberRange],
    *,
    buffer: str,
    on_expired: OnLost = OnLost.FAIL,
    starts: Mapping[int, int] | None = None,
) -> ReplayPlan:
    """Return the plan within what the log has now: it ends for certain, and says how many entries are lost.

    ``present`` are the numbers ``[earliest, watermark)`` by sequencer. ``starts`` are numbers to begin with in place of
    those of the plan, by sequencer.

    Raises:
        UnknownSequencer: If the log lacks a sequencer of the plan.
        AfterWatermark: If the plan ends beyond the watermark: a reader would wait for ever.
        NoLongerExists: If retention removed entries of the plan, and ``on_expired`` is to fail.
    """
    numbers, lost = dict(plan.numbers), {}
    for id_, planned in plan.numbers.items():
        if id_ not in present:
            raise UnknownSequencer.named(id_, present, buffer=buffer)
        earliest, watermark = present[id_].start, present[id_].end
        wanted = replace(planned, start=min((starts or {}).get(id_, planned.start), planned.end))
        if planned.end > watermark:
            raise AfterWatermark(id_, planned.end, watermark, buffer=buffer)
        if not wanted.is_empty and wanted.start < earliest:
            if on_expired is OnLost.FAIL:
                raise NoLongerExists(id_, wanted.start, earliest, buffer=buffer)
            first = min(earliest, wanted.end)
            lost[id_] = first - wanted.start
            wanted = replace(wanted, start=first)
        numbers[id_] = wanted
    return replace(plan, numbers=numbers, lost=lost)


def _compare(checkpoint: PartitionCheckpoint, database: Numbers) -> list[str]:
    """Return a warning for each sequencer of which a partition lacks numbers that a replay does not read."""
    warnings = []
    for id_, own in checkpoint.numbers.items():
        if id_ not in database or own.end > database[id_].end:
            known = f"knows {database[id_]}" if id_ in database else "does not know it"
            raise DatabaseCheckpointMissing(
                f"partition {checkpoint.partition} has {own} of sequencer {id_}, the database checkpoint {known}",
                hint="a file of another collection or log lies in this one: find it before anything is read again",
            )
        if not own.is_empty and own.start < database[id_].start:
            warnings.append(
                f"partition {checkpoint.partition} lacks rows of sequencer {id_} from {own.start} on, and the replay "
                f"begins at {database[id_].start}; was a replay skipped?"
            )
    return warnings


def _text(numbers: Numbers) -> str:
    return ", ".join(f"{id_}: {range_}" for id_, range_ in sorted(numbers.items()))
