"""The state of a collection: what arrives, what a persist leaves, which partitions close, and how small it stays."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.lifecycle.memory_collection import START_MS, MemoryCollection
from tidemark.collections.declarations.lifecycle import LifecycleRules, Visible
from tidemark.errors import IncompatibleDataVersion, UsageError
from tidemark.interval import Unit
from tidemark.lifecycle.checkpoints import NumberRange
from tidemark.lifecycle.partitions import name_partition
from tidemark.lifecycle.state import Closed, LifecycleState, NumbersAgain, Reopened, StalePersist
from tidemark.lifecycle.windows import Slice

HOUR_MS = 3_600_000
RULES = LifecycleRules()
NOON, ONE = "2013-01-03T12", "2013-01-03T13"


def piece(minute: float, number: int, *, sequencer: int = 0, rows: int = 1) -> Slice:
    """Return rows of one event time, that many minutes after noon."""
    start_ms = START_MS + round(minute * 60_000)
    return Slice(
        sequencer_id=sequencer,
        numbers=NumberRange(number, number + 1),
        rows=rows,
        start_ms=start_ms,
        end_ms=start_ms + 1,
    )


def add(
    state: LifecycleState, minute: float, number: int, *, at: float, sequencer: int = 0, rules: LifecycleRules = RULES
) -> tuple[LifecycleState, list[Reopened]]:
    """Add one row with an event time some minutes after noon, which arrives at another minute."""
    slice_ = piece(minute, number, sequencer=sequencer)
    name = name_partition(Unit.HOUR, slice_.start_ms)
    return state.add({name: [slice_]}, arrived_ms=START_MS + round(at * 60_000), rules=rules)


def close(
    state: LifecycleState, *, at: float, caught_up: dict[int, bool] | None = None, rules: LifecycleRules = RULES
) -> tuple[LifecycleState, list[Closed]]:
    return state.close(caught_up or {0: True}, now_ms=START_MS + round(at * 60_000), rules=rules)


def test_numbers_come_once() -> None:
    state, _ = add(LifecycleState(), 1, 4, at=1)
    with pytest.raises(NumbersAgain, match=r"sequencer 0 brings the numbers \[4, 5\) to partition 2013-01-03T13, and"):
        add(state, 61, 4, at=2)


def test_both_checkpoints_of_a_persist_are_of_its_start() -> None:
    state, _ = LifecycleState().add({NOON: [piece(1, 0)], ONE: [piece(61, 1)]}, arrived_ms=START_MS, rules=RULES)
    started, checkpoints = state.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    assert checkpoints is not None
    assert checkpoints.partition.numbers == {0: NumberRange(1, 1)}
    assert checkpoints.database == {0: NumberRange(1, 2)}
    assert started.database == {0: NumberRange(0, 2)}, "nothing is persisted before the commit"
    assert started.finish_persist(checkpoints).database == checkpoints.database


def test_a_persist_that_runs_again_goes_on_with_what_it_began_with() -> None:
    state, _ = add(LifecycleState(), 1, 0, at=1)
    started, checkpoints = state.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    grown, _ = add(started, 2, 1, at=61)
    again, same = grown.start_persist(NOON, now_ms=START_MS + 2 * HOUR_MS, rules=RULES, everything=True)
    assert checkpoints is not None
    assert same is not None
    assert (again, same.partition) == (grown, checkpoints.partition)


def test_a_persist_is_committed_once() -> None:
    state, _ = add(LifecycleState(), 1, 0, at=1)
    started, checkpoints = state.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    assert checkpoints is not None
    with pytest.raises(StalePersist, match="persist of partition 2013-01-03T12"):
        started.finish_persist(checkpoints).finish_persist(checkpoints)
    with pytest.raises(StalePersist):
        started.drop_persist(NOON).finish_persist(checkpoints)


def test_a_persist_that_is_given_up_changes_nothing() -> None:
    state, _ = add(LifecycleState(), 1, 0, at=1)
    started, _ = state.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    given_up = started.drop_persist(NOON)
    assert given_up.database == state.database
    again, _ = given_up.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    assert again == started


def test_nothing_is_persisted_that_late_rows_may_follow() -> None:
    state, _ = add(LifecycleState(), 1, 0, at=1)
    same, checkpoints = state.start_persist(NOON, now_ms=START_MS + 60_000, rules=RULES)
    assert (same, checkpoints) == (state, None)
    with pytest.raises(UsageError, match="partition yesterday has nothing to persist"):
        state.start_persist("yesterday", now_ms=START_MS, rules=RULES)


def test_a_partition_closes_when_all_sequencers_have_passed_it() -> None:
    state, _ = add(LifecycleState(), 30, 0, at=30)
    state, _ = add(state, 40, 0, at=40, sequencer=1)
    state, _ = add(state, 66, 1, at=66)
    both = {0: False, 1: False}
    state, closed = close(state, at=66, caught_up=both)
    assert (closed, state.is_passed(NOON)) == ([], False), "sequencer 1 is at 12:40"
    state, _ = add(state, 64.9, 1, at=67, sequencer=1)
    assert close(state, at=67, caught_up=both)[1] == [], "12:59:54 has passed"
    state, _ = add(state, 65.1, 2, at=67, sequencer=1)
    state, closed = close(state, at=67, caught_up=both)
    assert closed == [Closed(NOON, rows=2, late_rows=0)]
    assert close(state, at=68, caught_up=both)[1] == [], "it closes once"


def test_an_idle_sequencer_holds_nothing_back_unless_its_entries_wait() -> None:
    state, _ = add(LifecycleState(), 30, 0, at=30)
    assert close(state, at=300, caught_up={0: False})[1] == []
    assert close(state, at=64)[1] == [], "12:59 has passed"
    assert close(state, at=65)[1] == [Closed(NOON, rows=1, late_rows=0)]


def test_a_late_row_reopens_its_partition_and_it_closes_again() -> None:
    state, _ = add(LifecycleState(), 30, 0, at=30)
    state, _ = close(state, at=65)
    state, reopened = add(state, 59, 1, at=66)
    assert reopened == [Reopened(NOON, 1)]
    state, reopened = add(state, 58, 2, at=66)
    assert reopened == [], "it is open by now"
    assert close(state, at=70.9)[1] == [], "more of them may come"
    assert close(state, at=71)[1] == [Closed(NOON, rows=3, late_rows=2)]


def test_a_late_row_reopens_a_partition_that_was_forgotten() -> None:
    state = replace(LifecycleState(), passed_ms=START_MS + HOUR_MS)
    assert add(state, 59, 1, at=66)[1] == [Reopened(NOON, 1)]


def test_a_time_far_ahead_does_not_move_the_watermark() -> None:
    state, _ = add(LifecycleState(), 30, 0, at=30)
    ahead, _ = add(state, 91, 1, at=30)
    assert ahead.sequencers[0].max_time_ms == state.sequencers[0].max_time_ms
    assert close(ahead, at=31)[1] == []
    assert add(state, 90, 1, at=30)[0].sequencers[0].max_time_ms == START_MS + 90 * 60_000


def test_event_time_never_goes_back() -> None:
    state, _ = add(LifecycleState(), 30, 0, at=30)
    state, _ = close(state, at=65)
    back, _ = close(state, at=10, caught_up={0: True, 1: False})
    assert back.passed_ms == state.passed_ms


def test_where_rows_are_visible_when_persisted_a_partition_closes_then() -> None:
    rules = LifecycleRules(visible=Visible.WHEN_PERSISTED)
    state, _ = add(LifecycleState(), 30, 0, at=30, rules=rules)
    state, closed = close(state, at=65, rules=rules)
    assert (closed, state.is_passed(NOON)) == ([], True)
    started, checkpoints = state.start_persist(NOON, now_ms=START_MS + 65 * 60_000, rules=rules)
    assert checkpoints is not None
    assert close(started.finish_persist(checkpoints), at=66, rules=rules)[1] == [Closed(NOON, rows=1, late_rows=0)]


def persist(state: LifecycleState, partition: str) -> LifecycleState:
    started, checkpoints = state.start_persist(partition, now_ms=START_MS + HOUR_MS, rules=RULES)
    assert checkpoints is not None
    return started.finish_persist(checkpoints)


def test_what_is_settled_is_forgotten() -> None:
    state, _ = LifecycleState().add({NOON: [piece(1, 0)], ONE: [piece(61, 1)]}, arrived_ms=START_MS, rules=RULES)
    state = persist(state, ONE)
    assert set(state.forget_settled().partitions) == {NOON, ONE}, "it may take rows still"
    state, _ = close(state, at=200)
    assert set(state.forget_settled().partitions) == {NOON, ONE}, "a replay, which begins at 0, reads its row again"
    state = persist(state, NOON).forget_settled()
    assert (state.partitions, state.database) == ({}, {0: NumberRange(2, 2)})


def test_the_checkpoints_of_a_partition_go_on_after_it_was_forgotten() -> None:
    collection = MemoryCollection(0, 1)
    collection.ingest(0, (NOON, START_MS, "a", 1))
    collection.ingest(1, (NOON, START_MS, "b", 2))
    collection.make_writes_persistable()
    collection.persist(NOON)
    collection.state, _ = collection.state.close(
        {0: True, 1: True}, now_ms=START_MS + 2 * HOUR_MS, rules=collection.rules
    )
    collection.state = collection.state.forget_settled()
    assert not collection.state.partitions
    collection.ingest(1, (NOON, START_MS, "b", 3))
    collection.make_writes_persistable()
    collection.persist(NOON)
    first, second = (file.checkpoints.partition for file in collection.files)
    assert second.covers(first)


def test_the_json_form_is_read_back() -> None:
    state, _ = LifecycleState().add({NOON: [piece(1, 0)], ONE: [piece(61, 1)]}, arrived_ms=START_MS, rules=RULES)
    state, checkpoints = state.start_persist(NOON, now_ms=START_MS + HOUR_MS, rules=RULES)
    assert checkpoints is not None
    done, _ = close(state.finish_persist(checkpoints), at=300)
    for each in (LifecycleState(), state, done):
        assert LifecycleState.from_json(json.loads(json.dumps(each.to_json()))) == each


def test_another_version_is_refused() -> None:
    with pytest.raises(IncompatibleDataVersion, match="has version 2, this program reads version 1"):
        LifecycleState.from_json({**LifecycleState().to_json(), "version": 2})


def test_a_state_of_thousands_of_partitions_is_small() -> None:
    """Each partition that takes rows has a dozen windows; one that waits for the database minimum has none."""
    state = LifecycleState()
    names = [name_partition(Unit.HOUR, START_MS + hour * HOUR_MS) for hour in range(3_000)]
    slices = {name: [piece(hour * 60, hour, sequencer=hour % 4, rows=1_000)] for hour, name in enumerate(names)}
    state, _ = state.add(slices, arrived_ms=START_MS, rules=RULES)
    cold_bytes = len(json.dumps(state.to_json(), separators=(",", ":")))
    for minute in range(12):
        hot = {name: [piece(hour * 60, 3_000 * (minute + 1) + hour)] for hour, name in enumerate(names[:50])}
        state, _ = state.add(hot, arrived_ms=START_MS + minute * 31_000, rules=RULES)
    hot_bytes = len(json.dumps(state.to_json(), separators=(",", ":"))) - cold_bytes
    assert cold_bytes / 3_000 < 200
    assert hot_bytes / 50 < 1_200
