"""The plan of a replay, from what is committed and what the buffer has: pure, without a table."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.errors import UsageError
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import Bounds
from tidemark.ingest.replay.plan import Request, base_of, cut_ranges, find_needed, make_plan
from tidemark.interval import Unit
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.replay_plan import ReplayPlan
from tidemark.lifecycle.state import LifecycleState
from tidemark.lifecycle.windows import Slice
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists

HOUR_MS = 3_600_000
A, B, C = "1970-01-01T00", "1970-01-01T01", "1970-01-01T02"
HOURS = {A: 0, B: HOUR_MS, C: 2 * HOUR_MS}
RULES = LifecycleRules()


def arrived(state: LifecycleState, partition: str, sequencer_id: int, first: int, end: int) -> LifecycleState:
    start_ms = HOURS[partition]
    slice_ = Slice(
        sequencer_id=sequencer_id, numbers=NumberRange(first, end), rows=1, start_ms=start_ms, end_ms=start_ms + 100
    )
    return state.add({partition: [slice_]}, arrived_ms=1_000, rules=RULES)[0]


def persisted(state: LifecycleState, partition: str) -> LifecycleState:
    begun, checkpoints = state.start_persist(partition, now_ms=1_000, rules=RULES, everything=True)
    assert checkpoints is not None
    return begun.finish_persist(checkpoints)


def planned(
    state: LifecycleState,
    ends: dict[int, int],
    *,
    present: dict[int, tuple[int, int]] | None = None,
    request: Request | None = None,
    is_only_log: bool = True,
) -> ReplayPlan:
    ingested = {id_: Ledger((Range(0, end),)) for id_, end in ends.items()}
    bounds = {id_: Bounds(0, 100) for id_ in ends} | {id_: Bounds(*each) for id_, each in (present or {}).items()}
    return make_plan(state, ingested, bounds, request or Request(), buffer="the log", is_only_log=is_only_log)


def needed(plan_: ReplayPlan, sequencer_id: int = 0) -> dict[str, list[int]]:
    return {
        name: [n for n in range(10) if plan_.needs_row(name, sequencer_id=sequencer_id, number=n, time_ms=start_ms)]
        for name, start_ms in HOURS.items()
    }


def test_without_a_state_nothing_is_persisted() -> None:
    plan_ = planned(LifecycleState(), {0: 5, 1: 3})
    assert plan_.numbers == {0: NumberRange(0, 5), 1: NumberRange(0, 3)}
    assert needed(plan_) == {name: list(range(10)) for name in HOURS}


def test_what_is_not_persisted_is_read_again() -> None:
    state = persisted(arrived(arrived(LifecycleState(), A, 0, 0, 4), B, 0, 4, 6), A)
    plan_ = planned(state, {0: 8})
    assert plan_.numbers == {0: NumberRange(4, 8)}
    assert needed(plan_) == {A: [4, 5, 6, 7, 8, 9], B: [4, 5, 6, 7, 8, 9], C: [6, 7, 8, 9]}
    assert planned(persisted(state, B), {0: 6}).numbers == {0: NumberRange(6, 6)}


def test_numbers_that_the_state_has_not_counted_are_read() -> None:
    state = persisted(arrived(LifecycleState(), A, 0, 0, 4), A)
    plan_ = planned(state, {0: 6, 1: 2})
    assert plan_.numbers == {0: NumberRange(4, 6), 1: NumberRange(0, 2)}
    assert needed(plan_, 1)[C] == list(range(10))


def test_a_partition_that_late_rows_reopened_stays_persisted_below_them() -> None:
    forgotten = LifecycleState(sequencers=arrived(LifecycleState(), A, 0, 0, 4).sequencers)
    reopened = arrived(forgotten, A, 0, 6, 7)
    plan_ = planned(reopened, {0: 7})
    assert plan_.numbers == {0: NumberRange(6, 7)}
    assert needed(plan_)[A] == [6, 7, 8, 9]


def test_a_start_takes_the_place_of_the_first_number() -> None:
    state = arrived(persisted(arrived(LifecycleState(), A, 0, 0, 4), A), B, 0, 4, 6)
    earlier = planned(state, {0: 6}, request=Request(starts={0: 2}))
    assert (earlier.numbers, needed(earlier)[A]) == ({0: NumberRange(2, 6)}, list(range(2, 10)))
    assert earlier.warnings == ()
    later = planned(state, {0: 6}, request=Request(starts={0: 5}))
    assert later.numbers == {0: NumberRange(5, 6)}
    assert later.warnings == ("numbers from 4 of sequencer 0 on are not persisted, and the replay begins at 5",)
    only = planned(state, {0: 6}, request=Request(partitions=frozenset({B}), starts={0: 0}))
    assert (needed(only)[A], needed(only)[B]) == ([], list(range(10)))


@pytest.mark.parametrize(("start", "message"), [({1: 0}, "nothing was ingested from"), ({0: 6}, "none from 6 on")])
def test_a_start_lies_below_what_was_ingested(start: dict[int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(LifecycleState(), {0: 6}, request=Request(starts=start))


def test_a_start_before_the_first_number_that_was_ever_ingested_loses_nothing() -> None:
    ledger, bounds = {0: Ledger((Range(7, 9),))}, {0: Bounds(7, 9)}
    plan_ = make_plan(LifecycleState(), ledger, bounds, Request(starts={0: 0}), buffer="the log")
    assert (plan_.numbers, plan_.lost) == ({0: NumberRange(7, 9)}, {})


def test_what_the_buffer_has_lost_is_counted_over_all_sequencers() -> None:
    with pytest.raises(NoLongerExists, match="up to 3 entries are lost, and 2 of other sequencers") as lost:
        planned(LifecycleState(), {0: 5, 1: 2}, present={0: (3, 9), 1: (7, 9)})
    assert (lost.value.lost, int(lost.value.exit_code)) == (3, 66)
    skipped = planned(LifecycleState(), {0: 5, 1: 2}, present={0: (3, 9), 1: (7, 9)}, request=Request(skips_lost=True))
    assert (skipped.numbers, skipped.lost) == ({0: NumberRange(3, 5), 1: NumberRange(2, 2)}, {0: 3, 1: 2})


def test_a_plan_ends_within_the_log() -> None:
    with pytest.raises(AfterWatermark):
        planned(LifecycleState(), {0: 5}, present={0: (0, 4)})


def test_of_several_logs_only_what_is_asked_for_is_replayed() -> None:
    state = arrived(LifecycleState(), A, 0, 50, 90)  # of the log before
    plan_ = planned(state, {0: 5}, is_only_log=False)
    assert plan_.numbers == {0: NumberRange(5, 5)}
    assert "only --from replays" in plan_.warnings[0]
    rewound = planned(state, {0: 5}, request=Request(starts={0: 1}), is_only_log=False)
    assert (rewound.numbers, needed(rewound)[A]) == ({0: NumberRange(1, 5)}, list(range(1, 10)))


def test_rows_are_told_apart_many_at_once_as_one_by_one() -> None:
    state = arrived(persisted(arrived(LifecycleState(), A, 0, 0, 4), A), A, 0, 4, 6)
    state = arrived(state, B, 0, 6, 8)
    plan_ = planned(state, {0: 8}, request=Request(starts={0: 7}))
    numbers = np.tile(np.arange(10, dtype=np.int64), 6)
    times_ms = np.repeat(np.array([0, 99, 100, HOUR_MS, HOUR_MS + 99, 2 * HOUR_MS], np.int64), 10)
    names = {start_ms // HOUR_MS: name for name, start_ms in HOURS.items()}
    for each in (plan_, base_of(state), base_of(state, is_only_log=False)):
        assert find_needed(each, Unit.HOUR, 0, numbers, times_ms).tolist() == [
            each.needs_row(names[time_ms // HOUR_MS], sequencer_id=0, number=number, time_ms=time_ms)
            for number, time_ms in zip(numbers.tolist(), times_ms.tolist(), strict=True)
        ]
    assert find_needed(plan_, Unit.HOUR, 0, numbers[:0], times_ms[:0]).tolist() == []


@pytest.mark.parametrize(
    ("ingested", "uncounted", "parts"),
    [
        ([(0, 10)], [], [(2, 8)]),
        ([(0, 4), (6, 7), (9, 10)], [], [(2, 4), (6, 7)]),
        ([(0, 10)], [(4, 5)], [(2, 4), (4, 5), (5, 8)]),
        ([(0, 10)], [(0, 3), (7, 10)], [(2, 3), (3, 7), (7, 8)]),
        ([(8, 10)], [], []),
    ],
)
def test_only_ingested_numbers_are_read_apart_from_those_that_nobody_counted(
    ingested: list[tuple[int, int]], uncounted: list[tuple[int, int]], parts: list[tuple[int, int]]
) -> None:
    done, missing = (Ledger(tuple(Range(*each) for each in ranges)) for ranges in (ingested, uncounted))
    assert cut_ranges(NumberRange(2, 8), done, missing) == parts
