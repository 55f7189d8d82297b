"""The state of partitions: what came out of order counts, too, and what is known is not read again."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.lifecycle import Late, LifecycleRules
from tidemark.errors import CorruptState, UsageError
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.batches import BatchesSeen
from tidemark.ingest.buffer_log import Bounds, BufferLog
from tidemark.ingest.partitions.arrivals import Arrival
from tidemark.ingest.partitions.closing import Look
from tidemark.ingest.partitions.counting import judging
from tidemark.ingest.partitions.state import KEPT_CLOSED, PROPERTY, Arrived, PartitionRules, Partitions
from tidemark.ingest.replay.plan import base_of
from tidemark.interval import Unit
from tidemark.lifecycle.chunks import Action
from tidemark.lifecycle.partitions import find_bounds
from tidemark.lifecycle.policy import Decision, PartitionChunks, Snapshot, decide
from tidemark.lifecycle.state import Reopened, StalePersist

HOUR_MS = 3_600_000
START = find_bounds("2013-01-03T00").start_ms
RULES = PartitionRules("at", Unit.HOUR, LifecycleRules(late_arrive_window="1h"))
LOG = BufferLog("t", "0123abcd")
EMPTY = Partitions(column="at", unit=Unit.HOUR)


def arrival(hour: int, first: int, end: int, rows: int = 1) -> dict[str, Arrival]:
    start_ms = START + hour * HOUR_MS
    return {f"2013-01-{3 + hour // 24:02}T{hour % 24:02}": Arrival(first, end, rows, start_ms, start_ms + 1)}


def add(before: Partitions, *arrived: Arrived, hour: int) -> tuple[Partitions, list[Reopened], int]:
    return before.add(arrived, now_ms=START + hour * HOUR_MS, rules=RULES.lifecycle)


def close(before: Partitions, hour: int) -> tuple[Partitions, list[str]]:
    after, closed = before.close({0: True, 1: True}, now_ms=START + hour * HOUR_MS, rules=RULES.lifecycle)
    return after, [each.partition for each in closed]


def counts(partitions: Partitions) -> dict[str, tuple[int, int, bool]]:
    found = partitions.state.partitions
    return {name: (each.rows, each.late_rows, each.is_closed) for name, each in found.items()}


def test_rows_of_a_flush_count_after_rows_with_greater_numbers() -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 5, 9)), hour=1)
    state, reopened, late = add(state, Arrived(0, arrival(1, 0, 5, 2)), Arrived(None, arrival(2, 7, 8)), hour=2)
    assert counts(state) == {"2013-01-03T01": (3, 0, False), "2013-01-03T02": (1, 0, False)}
    assert (reopened, late, state.state.sequencers.keys()) == ([], 0, {0})
    assert state.state.sequencers[0].end == 9, "it never goes back"


def needs(partitions: Partitions, number: int, *, after_ms: int = 0) -> bool:
    """Tell whether a replay takes a row of 01:00, that much later, for one that is not persisted."""
    time_ms = START + HOUR_MS + after_ms
    return base_of(partitions.state).needs_row("2013-01-03T01", sequencer_id=0, number=number, time_ms=time_ms)


def test_rows_that_were_persisted_before_the_state_knew_them_are_no_open_rows() -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 2, 6, 3), is_persisted=True), hour=1)
    assert counts(state) == {"2013-01-03T01": (3, 0, False)}
    assert state.state.partitions["2013-01-03T01"].windows.is_persisted
    assert [number for number in range(8) if needs(state, number)] == [6, 7]
    state, _, _ = add(state, Arrived(0, arrival(1, 6, 8)), hour=2)
    assert [number for number in range(8) if needs(state, number)] == [6, 7]
    assert Partitions.read({PROPERTY: str(state)}) == state


def test_open_rows_below_persisted_ones_count_as_persisted_up_to_their_time() -> None:
    arrived = (Arrived(0, arrival(1, 4, 5)), Arrived(0, arrival(1, 6, 7), is_persisted=True))
    state, _, _ = add(EMPTY, *arrived, hour=1)
    assert [number for number in range(9) if needs(state, number)] == [7, 8]
    assert [number for number in range(9) if needs(state, number, after_ms=1)] == [4, 5, 6, 7, 8]
    assert not state.state.partitions["2013-01-03T01"].windows.is_persisted, "the next pass takes the open row"


def test_a_partition_that_was_forgotten_is_persisted_whatever_a_flush_brings() -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(9, 8, 9)), hour=9)
    state, _, _ = add(state, Arrived(0, arrival(1, 4, 5)), hour=9)
    assert [number for number in range(11) if needs(state, number)] == [9, 10]


@pytest.mark.parametrize(
    "arrived", [Arrived(0, arrival(1, 9, 10)), Arrived(0, arrival(1, 0, 5)), Arrived(None, arrival(1, 0, 5))]
)
def test_late_rows_reopen_a_partition_whatever_their_numbers(arrived: Arrived) -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 5, 9)), hour=1)
    state, closed = close(state, 3)
    assert (closed, counts(state)) == (["2013-01-03T01"], {"2013-01-03T01": (1, 0, True)})
    state, reopened, late = add(state, arrived, hour=3)
    assert (reopened, late) == ([Reopened("2013-01-03T01", 1)], 1)
    state, closed = close(state, 3)
    assert (closed, counts(state)) == ([], {"2013-01-03T01": (2, 1, False)}), "more may be late"
    state, closed = close(state, 4)
    assert (closed, counts(state)) == (["2013-01-03T01"], {"2013-01-03T01": (2, 1, True)})


def test_only_the_newest_closed_partitions_are_kept_and_older_ones_reopen() -> None:
    state, rules = EMPTY, RULES.lifecycle
    for hour in range(KEPT_CLOSED + 3):
        state, _, _ = add(state, Arrived(0, arrival(hour, hour, hour + 1)), hour=hour)
        state, _ = close(state, hour)
    state, _ = close(state, KEPT_CLOSED + 9)
    assert len(state.state.partitions) == KEPT_CLOSED + 3, "what is open is not forgotten"
    without = rules.model_copy(update={"persist": False})
    assert len(state.forget_old(without).state.partitions) == KEPT_CLOSED, "unless nothing is ever persisted"
    now_ms = START + (KEPT_CLOSED + 9) * HOUR_MS
    chunks = {name: PartitionChunks(windows=each.windows) for name, each in state.state.partitions.items()}
    due = decide(Snapshot(collection="c", partitions=chunks), rules, now_ms=now_ms)
    state, begun = state.start_persist(due, now_ms=now_ms, rules=rules)
    state = state.finish_persist(begun, rules)
    assert sorted(state.state.partitions) == sorted(
        name for hour in range(3, KEPT_CLOSED + 3) for name in arrival(hour, 0, 1)
    )
    assert len(str(state)) < 20_000
    _, reopened, late = add(state, Arrived(0, arrival(0, 99, 100)), hour=KEPT_CLOSED + 9)
    assert (reopened, late) == ([Reopened("2013-01-03T00", 1)], 1)


def test_a_persist_that_another_pass_began_anew_or_of_which_the_state_was_lost_is_stale() -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 5, 9)), hour=1)
    (name,) = state.state.partitions
    decision = Decision(action=Action.PERSIST, partition=name, reason="", operation_id="", everything=True)
    now_ms, rules = START + HOUR_MS, RULES.lifecycle
    under_way, begun = state.start_persist([decision], now_ms=now_ms, rules=rules)
    anew, dropped = under_way.drop_persists()
    assert dropped == [name]
    assert under_way.drop_persists(but=[name]) == (under_way, [])
    leased, _ = state.start_persist([decision], now_ms=now_ms, rules=rules, lease="7")
    assert Partitions.parse({PROPERTY: str(leased)}, "at", Unit.HOUR) == leased != under_way
    anew, _, _ = add(anew, Arrived(None, arrival(1, 0, 1)), hour=1)  # its rows have no numbers, and the same time
    anew, begun_anew = anew.start_persist([decision], now_ms=now_ms + 1, rules=rules)
    assert [each.checkpoints for each in begun] == [each.checkpoints for each in begun_anew]
    for other in (EMPTY, state, anew):
        with pytest.raises(StalePersist):
            other.finish_persist(begun, rules)
    assert under_way.finish_persist(begun, rules).state.partitions[name].windows.is_persisted


def test_what_is_stored_is_read_back_and_another_column_begins_anew() -> None:
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 5, 9)), hour=1)
    state = Partitions(column="at", unit=Unit.HOUR, state=state.state, known={"p": Ledger.parse("0:9,12:15")})
    assert Partitions.parse({PROPERTY: str(state)}, "at", Unit.HOUR) == state
    for column, unit in (("at", Unit.DAY), ("other", Unit.HOUR)):
        assert Partitions.parse({PROPERTY: str(state)}, column, unit) == Partitions(column=column, unit=unit)
    assert Partitions.parse({}, "at", Unit.HOUR) == EMPTY


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"column":"at","unit":"hour","known":{},"state":{"version":1}}'])
def test_a_damaged_state_says_what_to_do(text: str) -> None:
    with pytest.raises(CorruptState) as error:
        Partitions.parse({PROPERTY: text}, "at", Unit.HOUR)
    assert "the next ingest rebuilds it" in error.value.hint


def test_published_numbers_are_missing_until_they_are_known() -> None:
    state = Partitions(column="at", unit=Unit.HOUR, known={"p": Ledger.parse("0:5,7:9")})
    published = {"p": Ledger.parse("0:12"), "q": Ledger.parse("3:4"), "r": Ledger()}
    assert {name: str(ledger) for name, ledger in state.missing(published).items()} == {"p": "5:7,9:12", "q": "3:4"}
    assert Partitions(column="at", unit=Unit.HOUR, known=published).missing(published) == {}


@pytest.mark.parametrize(
    ("batches", "ledgers", "expected"),
    [
        (BatchesSeen(), {"t.0123abcd.0": "3:9"}, {0: True, 1: True}),
        (BatchesSeen(), {"t.0123abcd.0": "3:8"}, {0: False, 1: True}),
        (BatchesSeen(), {"t.0123abcd.0": "4:9"}, {0: False, 1: True}),
        (BatchesSeen(obstacle="no right"), {"t.0123abcd.0": "3:9"}, {0: False, 1: False}),
        (BatchesSeen(producer="b", watermark=2), {"t.0123abcd.0": "3:9", "b": "0:1"}, {0: False, 1: False}),
        (BatchesSeen(producer="b", watermark=2), {"t.0123abcd.0": "3:9", "b": "0:2"}, {0: True, 1: True}),
    ],
)
def test_a_sequencer_is_caught_up_when_nothing_of_it_waits(
    batches: BatchesSeen, ledgers: dict[str, Any], expected: dict[int, bool]
) -> None:
    look = Look(now_ms=0, present={0: Bounds(4, 9), 1: Bounds(0, 0)}, begun={0: 3, 1: 0}, batches=batches)
    published = {producer: Ledger.parse(text) for producer, text in ledgers.items()}
    assert look.find_caught_up(LOG, published) == expected


def test_a_sequencer_with_gaps_passes_nothing() -> None:
    look = Look(now_ms=0, present={0: Bounds(4, 9), 1: Bounds(0, 0)}, begun={0: 3, 1: 0}, batches=BatchesSeen())
    found = [look.find_gaps(LOG, {"t.0123abcd.0": Ledger.parse(text)}) for text in ("", "3:5", "4:5", "3:4,6:9")]
    assert found == [set(), set(), {0}, {0}]
    state, _, _ = add(EMPTY, Arrived(0, arrival(1, 5, 9)), Arrived(0, arrival(9, 9, 10)), hour=9)
    caught_up = {0: False, 1: True}
    held, closed = state.close(caught_up, {0}, now_ms=START + 9 * HOUR_MS, rules=RULES.lifecycle)
    assert (closed, held.state.sequencers) == ([], state.state.sequencers)
    _, closed = state.close(caught_up, now_ms=START + 9 * HOUR_MS, rules=RULES.lifecycle)
    assert [each.partition for each in closed] == ["2013-01-03T01"]


def test_a_long_window_is_no_contradiction() -> None:
    rules = PartitionRules("at", Unit.DAY, LifecycleRules(late_arrive_window="2d", late=Late.REFUSE))
    assert (rules.lifecycle.late_ms, judging(rules, 7).passed_ms) == (2 * 86_400_000, 7)
    assert judging(RULES, 7).passed_ms is None, "late rows are appended: none is told apart"


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        ({"kind": "append-only"}, "'it' has no event times", "declare their column"),
        ({"kind": "latest", "key": ["id"]}, "'it' keeps the latest row of each key", "are for append-only collections"),
    ],
)
def test_what_goes_by_event_times_says_why_a_collection_has_none(kind: dict[str, Any], message: str, hint: str) -> None:
    fields = {"name": "it", "schema": "id bigint", "source": {"buffer": "b"}, **kind}
    with pytest.raises(UsageError, match=message) as refused:
        PartitionRules.required(Declaration.model_validate(fields))
    assert hint in refused.value.hint
