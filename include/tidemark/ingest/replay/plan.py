"""Plans a replay: which numbers of each sequencer are read again, and which rows of theirs come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.errors import UsageError
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import Bounds
from tidemark.interval import Unit
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.partitions import find_bounds, name_partition
from tidemark.lifecycle.replay_plan import ReplayPlan, bound_plan, plan_replay
from tidemark.lifecycle.state import LifecycleState
from tidemark.write_buffer.errors import NoLongerExists


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be replayed: of some partitions or all, what is not persisted, and all rows from some numbers on."""

    partitions: frozenset[str] | None = None  # None: all of them
    starts: Mapping[int, int] = field(default_factory=dict)  # by sequencer
    skips_lost: bool = False  # whether to go on without entries that the buffer has lost

    @classmethod
    def parse(cls, partitions: Sequence[str], starts: Sequence[str], *, skips_lost: bool = False) -> Request:
        """Return the request; ``starts`` are texts such as ``0:17``, none of both means all.

        Raises ``UsageError`` if a text names no partition, or no number of a sequencer.
        """
        for name in partitions:
            find_bounds(name)
        found: dict[int, int] = {}
        for text in starts:
            sequencer, _, number = text.partition(":")
            if not (sequencer.isdecimal() and number.isdecimal()):
                raise UsageError(f"{text!r} is no start", hint="write SEQUENCER:NUMBER, such as 0:17")
            if int(sequencer) in found:
                raise UsageError(f"sequencer {int(sequencer)} stands twice", hint="name one number for each sequencer")
            found[int(sequencer)] = int(number)
        return cls(partitions=frozenset(partitions) or None, starts=found, skips_lost=skips_lost)


def make_plan(
    state: LifecycleState,
    ingested: Mapping[int, Ledger],
    present: Mapping[int, Bounds],
    request: Request,
    *,
    buffer: str,
    is_only_log: bool = True,
) -> ReplayPlan:
    """Return what to read again, within what the buffer has.

    ``state`` says what is persisted. ``ingested`` are the published numbers and ``present`` those in the buffer, by
    sequencer. Unless ``is_only_log``, the state mixes the numbers of several logs, and says nothing.

    Raises:
        UsageError: If a start is not below the numbers that were ingested.
        AfterWatermark: If the buffer never gave some of the ingested numbers.
        NoLongerExists: If the buffer has lost entries, and the request does not skip them.
    """
    begun = {id_: ledger.ranges[0].start for id_, ledger in ingested.items()}
    ends = {id_: ledger.ranges[-1].end for id_, ledger in ingested.items()}
    _check_starts(request.starts, ends)
    rewound = {id_: max(start, begun[id_]) for id_, start in request.starts.items()}
    if is_only_log:
        database = state.database
        starts = {id_: min(database[id_].start, end) if id_ in database else begun[id_] for id_, end in ends.items()}
        numbers = {id_: NumberRange(max(starts[id_], begun[id_]), end) for id_, end in ends.items()}
        whole = replace(plan_replay(state.checkpoints, [numbers], only=request.partitions), others=state.ends)
    else:
        numbers = {id_: NumberRange(end, end) for id_, end in ends.items()}
        warning = "the log was made anew once: what is persisted is not known, so only --from replays"
        whole = replace(plan_replay([], [numbers], only=request.partitions), others=numbers, warnings=(warning,))
    left_out = [
        f"numbers from {numbers[id_].start} of sequencer {id_} on are not persisted, and the replay begins at {start}"
        for id_, start in rewound.items()
        if numbers[id_].start < start
    ]
    bounded = bound_plan(
        replace(whole, rewound=rewound, warnings=(*whole.warnings, *left_out)),
        {id_: NumberRange(*bounds) for id_, bounds in present.items()},
        buffer=buffer,
        on_expired=OnLost.EARLIEST,
        starts=rewound,
    )
    if bounded.lost and not request.skips_lost:
        raise _lost(bounded, buffer=buffer)
    return bounded


def _check_starts(starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    for id_, start in starts.items():
        if id_ not in ends:
            known = ", ".join(map(str, sorted(ends))) or "none"
            raise UsageError(f"nothing was ingested from sequencer {id_}", hint=f"ingested from were: {known}")
        if start >= ends[id_]:
            raise UsageError(
                f"of sequencer {id_} all numbers below {ends[id_]} were ingested, none from {start} on",
                hint=f"begin at {ends[id_] - 1} or before",
            )


def _lost(bounded: ReplayPlan, *, buffer: str) -> NoLongerExists:
    first = min(bounded.lost)
    earliest = bounded.numbers[first].start
    others = sum(bounded.lost.values()) - bounded.lost[first]
    return NoLongerExists(
        first,
        earliest - bounded.lost[first],
        earliest,
        buffer=buffer,
        others=others,
        hint="replay what the buffer still has with --skip-lost: rows of lost entries that are there stay",
    )


def base_of(state: LifecycleState, *, is_only_log: bool = True) -> ReplayPlan:
    """Return the plan of all rows that are not persisted, by ``state``: other rows belong into persisted files."""
    if not is_only_log:
        return ReplayPlan(numbers={}, partitions={})
    return ReplayPlan(numbers={}, partitions={each.partition: each for each in state.checkpoints}, others=state.ends)


def cut_ranges(numbers: NumberRange, ingested: Ledger, uncounted: Ledger) -> list[Range]:
    """Return the ingested numbers of a range: in parts that the state of partitions has counted, or has not."""
    wanted = Range(numbers.start, numbers.end)
    parts = []
    for done in ingested.overlaps(wanted):
        within = Range(max(done.start, wanted.start), min(done.end, wanted.end))
        cuts = {cut for hole in uncounted.overlaps(within) for cut in hole if within.start < cut < within.end}
        edges = [within.start, *sorted(cuts), within.end]
        parts += [Range(start, end) for start, end in pairwise(edges)]
    return parts


def find_needed(
    plan: ReplayPlan, unit: Unit, sequencer_id: int, numbers: NDArray[np.int64], times_ms: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell of each row whether the plan needs it, by the number of its entry and its event time."""
    starts, of_rows = np.unique(floor_times(unit, times_ms), return_inverse=True)
    filters = [plan.filter_of(name_partition(unit, start), sequencer_id) for start in starts.tolist()]
    first, end, until_ms = np.array(filters, np.int64).reshape(-1, 3)[of_rows].T
    needed: NDArray[np.bool_] = (numbers >= end) | ((numbers >= first) & (times_ms >= until_ms))
    return needed


def floor_times(unit: Unit, times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the starts of the partitions that event times lie in, in ms."""
    starts = pc.floor_temporal(pa.array(times_ms).cast(pa.timestamp("ms")), unit=unit.value).cast(pa.int64())
    found: NDArray[np.int64] = starts.to_numpy(zero_copy_only=False)
    return found
