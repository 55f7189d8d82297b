"""The tables of the reference, 5.3 and 5.5, that need no log: positions of numbers, plans, and their bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lifecycle.memory_collection import EntryLost, check_read, skip_plan
from tests.lifecycle.ranges import Bounds, checkpoint, spans, written
from tidemark.collections.sources.formats.buffer import OnLost
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.replay_plan import (
    DatabaseCheckpointMissing,
    ReplayPlan,
    UndeterminedOrder,
    bound_plan,
    plan_replay,
)
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists, UnknownSequencer

LETTERS = {(False, False): "P", (False, True): "~", (True, True): "U"}  # by the rows of an early and a late time
A, B = "2013-01-01T00", "2013-01-01T01"


@pytest.mark.parametrize(
    ("bounds", "letters"), [((None, 0), "PU"), ((None, 1), "PPU"), ((0, 0), "~U"), ((1, 1), "P~U"), ((2, 4), "PP~~~UU")]
)
def test_sequence_number_section(bounds: Bounds, letters: str) -> None:
    plan = plan_replay([checkpoint({1: bounds}, until_ms=100)], [spans({1: bounds})])

    def letters_of(partition: str, sequencer_id: int) -> str:
        rows = plan.filter_of(partition, sequencer_id)
        found = [(rows.needs_row(number, 99), rows.needs_row(number, 100)) for number in range(len(letters))]
        return "".join(LETTERS[needed] for needed in found)

    assert letters_of(A, 1) == letters
    assert letters_of(A, 2) == "U" * len(letters), "another sequencer"
    assert letters_of(B, 1) == "U" * len(letters), "no checkpoint"


def test_a_partition_that_the_state_has_forgotten_is_persisted() -> None:
    plan = replace(plan_replay([], [spans({0: (2, 4)})]), others=spans({0: (None, 4)}))
    assert [plan.needs_row(A, sequencer_id=0, number=number, time_ms=10**12) for number in (4, 5)] == [False, True]
    assert plan.needs_row(A, sequencer_id=1, number=0, time_ms=0), "a sequencer that the state never saw"


def test_from_a_rewound_number_on_all_rows_are_needed() -> None:
    plan = plan_replay([checkpoint({0: (2, 4), 1: (2, 4)}, until_ms=100)], [spans({0: (2, 4), 1: (2, 4)})])
    for start, needed in ((3, [0, 0, 0, 1, 1]), (1, [0, 1, 1, 1, 1]), (9, [0, 0, 0, 0, 0])):
        rewound = replace(plan, rewound={0: start})
        assert [rewound.needs_row(A, sequencer_id=0, number=n, time_ms=99) for n in range(5)] == list(map(bool, needed))
        assert not rewound.needs_row(A, sequencer_id=1, number=4, time_ms=99), "another sequencer"
    forgotten = replace(plan, others=spans({0: (None, 4)}), rewound={0: 3})
    assert [forgotten.needs_row(B, sequencer_id=0, number=number, time_ms=0) for number in (2, 3)] == [False, True]


@pytest.mark.parametrize(
    ("number", "time_ms", "needed"),
    [(1, 50, False), (1, 150, False), (2, 99, False), (2, 100, True), (4, 150, True), (5, 50, True)],
)
def test_a_row_is_needed_if_it_is_not_persisted(*, number: int, time_ms: int, needed: bool) -> None:
    plan = plan_replay([checkpoint({0: (2, 4)}, partition=A, until_ms=100)], [spans({0: (2, 4)})])
    assert plan.needs_row(A, sequencer_id=0, number=number, time_ms=time_ms) == needed
    assert plan.needs_row(B, sequencer_id=0, number=number, time_ms=time_ms), "nothing of that partition is persisted"


def test_only_the_partitions_that_are_rebuilt_need_rows() -> None:
    plan = plan_replay([checkpoint({0: (2, 4)}, partition=A)], [spans({0: (2, 4)})], only=[B])
    assert [plan.needs_row(name, sequencer_id=0, number=4, time_ms=200) for name in (A, B)] == [False, True]


def test_replay_planner_empty() -> None:
    assert plan_replay([], []) == ReplayPlan(numbers={}, partitions={})


def test_replay_planner_normal() -> None:
    first = {1: (15, 19), 2: (21, 27), 5: (50, 50), 7: (70, 80), 8: (None, 80), 10: (None, 100)}
    second = {1: (16, 19), 3: (35, 39), 4: (40, 40), 5: (51, 51), 8: (None, 80), 10: (None, 101)}
    databases = [
        {1: (10, 19), 2: (20, 28), 5: (49, 50), 7: (69, 79), 8: (None, 80), 10: (100, 100), 11: (1, 1)},
        {1: (11, 20), 2: (20, 29), 3: (30, 39), 4: (40, 41), 5: (50, 51), 7: (69, 80), 10: (None, 101), 11: (1, 2)},
    ]
    older = {id_: bounds for id_, bounds in first.items() if id_ != 7}
    older[1] = (12, 13)
    points = [checkpoint(first, partition=A), checkpoint(second, partition=B), checkpoint(older, partition=A)]
    for ordered in (points, points[::-1]):
        plan = plan_replay(ordered, map(spans, databases))
        assert written(dict(plan.numbers)) == {
            1: (11, 20), 2: (20, 29), 3: (30, 39), 4: (40, 41), 5: (50, 51),
            7: (69, 80), 8: (None, 80), 10: (None, 101), 11: (1, 2),
        }  # fmt: skip
        assert plan.partitions == {A: points[0], B: points[1]}, "the older checkpoint is ignored"
        assert not plan.warnings


def test_replay_planner_fail_undetermined_order() -> None:
    points = [checkpoint({1: (11, 12)}), checkpoint({1: (9, 13)})]
    with pytest.raises(UndeterminedOrder, match=r"2013-01-01T00 contradict each other: 1: \[11, 13\) and 1: \[9, 14\)"):
        plan_replay(points, [spans({1: (9, 20)})])


def test_replay_planner_fail_missing_database_checkpoint() -> None:
    with pytest.raises(DatabaseCheckpointMissing, match=r"of sequencer 1, the database checkpoint does not know it"):
        plan_replay([checkpoint({1: (11, 12)})], [spans({2: (11, 12)})])


def test_replay_planner_fail_maximum_out_of_sync() -> None:
    with pytest.raises(DatabaseCheckpointMissing, match=r"has \[11, 13\) of sequencer 1, .* knows \[11, 12\)"):
        plan_replay([checkpoint({1: (11, 12)})], [spans({1: (11, 11)})])


@pytest.mark.parametrize(
    ("name", "database"), [("warns_empty_range_out_of_sync", (None, 12)), ("warns_minima_out_of_sync", (12, 12))]
)
def test_replay_planner_warns(name: str, database: Bounds) -> None:
    [warning] = plan_replay([checkpoint({1: (11, 12)})], [spans({1: database})]).warnings
    assert "lacks rows of sequencer 1 from 11 on" in warning, name


def bound(
    plan: dict[int, Bounds],
    present: dict[int, tuple[int, int]],
    *,
    on_expired: OnLost = OnLost.FAIL,
    **more: dict[int, int],
) -> ReplayPlan:
    there = {id_: NumberRange(*numbers) for id_, numbers in present.items()}
    return bound_plan(plan_replay([], [spans(plan)]), there, buffer="the topic", on_expired=on_expired, **more)


def test_replay_fail_sequencers_change() -> None:
    with pytest.raises(UnknownSequencer, match="the topic has no sequencer 2"):
        bound({0: (0, 5), 2: (0, 5)}, {0: (0, 9), 1: (0, 9)})


def test_a_plan_beyond_the_watermark_is_an_error_and_no_hang() -> None:
    assert bound({0: (0, 5)}, {0: (0, 6)}).ends == {0: 6}
    with pytest.raises(AfterWatermark, match="number 6 of sequencer 0 of the topic lies after its watermark 5"):
        bound({0: (0, 5)}, {0: (0, 5)})
    with pytest.raises(AfterWatermark):
        bound({0: (None, 5)}, {0: (0, 5)})


def test_an_expired_minimum_fails_or_is_skipped_with_its_count() -> None:
    with pytest.raises(NoLongerExists, match="up to 3 entries are lost") as lost:
        bound({0: (2, 9)}, {0: (5, 10)})
    assert lost.value.exit_code == 66
    plan = bound({0: (2, 9), 1: (4, 9)}, {0: (5, 10), 1: (4, 10)}, on_expired=OnLost.EARLIEST)
    assert (plan.numbers[0], plan.lost) == (NumberRange(5, 10), {0: 3})


def test_a_log_that_lost_all_of_the_plan_leaves_nothing_to_read() -> None:
    plan = bound({0: (2, 9)}, {0: (20, 30)}, on_expired=OnLost.EARLIEST)
    assert (plan.numbers[0], plan.lost) == (NumberRange(10, 10), {0: 8})
    assert bound({0: (None, 9)}, {0: (20, 30)}).lost == {}, "nothing was wanted"


def test_a_replay_may_begin_elsewhere() -> None:
    assert bound({0: (5, 9)}, {0: (0, 10)}, starts={0: 2}).numbers == {0: NumberRange(2, 10)}
    assert bound({0: (5, 9)}, {0: (0, 20)}, starts={0: 15}).numbers == {0: NumberRange(10, 10)}, "never beyond the end"


def test_holes_are_tolerated_and_a_number_beyond_the_end_is_not() -> None:
    plan = bound({0: (0, 5)}, {0: (0, 9)})
    assert [check_read(plan, 0, number) for number in (0, 3, 5)] == [False, False, True]
    with pytest.raises(EntryLost, match="for sequencer 0 expected to find sequence 5 but replay jumped to 6"):
        check_read(plan, 0, 6)


def test_a_skipped_replay_counts_what_it_gives_up() -> None:
    plan = plan_replay([checkpoint({0: (2, 4)}, partition=A)], [spans({0: (2, 4)})])
    skipped = skip_plan(plan, {0: NumberRange(0, 9), 1: NumberRange(3, 5), 2: NumberRange(0, 0)})
    assert (skipped.ends, skipped.lost) == ({0: 9, 1: 5, 2: 0}, {0: 7, 1: 2, 2: 0})
    assert written(dict(skipped.partitions[A].numbers)) == {0: (None, 8), 1: (None, 4)}
