"""What the memory buffer adds for tests of other things: it is made late, goes wrong on demand, and forgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.buffers import entry, take, take_entries
from tests.support.clock import SteppedClock
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable, NoLongerExists
from tidemark.write_buffer.formats.entry import BadMessage, BadReason, Message
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR = BufferUnreachable("the injected error")
CALLS: dict[str, Callable[[MemoryState, int], object]] = {
    "push": lambda state, sequencer_id: state.push(sequencer_id, 0, message("x")),
    "push_error": lambda state, sequencer_id: state.push_error(sequencer_id, ERROR),
    "messages": lambda state, sequencer_id: state.messages(sequencer_id),
    "expire": lambda state, sequencer_id: state.expire(sequencer_id),
}


def message(text: str) -> Message:
    return Message.of(entry(text), time_ms=7)


def writer(state: MemoryState) -> MemoryWriter:
    return MemoryWriter(state, clock=SteppedClock())


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_sequencer_is_refused(call: str) -> None:
    with pytest.raises(ValueError, match="has no sequencer 2"):
        CALLS[call](MemoryState(2), 2)


@pytest.mark.parametrize("call", CALLS)
def test_a_state_without_sequencers_is_refused(call: str) -> None:
    with pytest.raises(ValueError, match="no sequencers yet"):
        CALLS[call](MemoryState(), 0)


@pytest.mark.parametrize("number", [13, 12])
def test_numbers_must_grow(number: int) -> None:
    state = MemoryState(1)
    state.push(0, 13, message("x"))
    says = f"sequence number {number} is less/equal than current max sequencer number 13"
    with pytest.raises(ValueError, match=says):
        state.push(0, number, message("x"))


def test_holes_upward_are_skipped() -> None:
    state = MemoryState(1)
    state.push(0, 2, message("2"))
    state.push(0, 7, message("7"))
    reader = MemoryReader(state)
    reader.seek(0, 3)
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("7")]
        assert streams[0].next_number == 8


def test_delayed_init() -> None:
    state = MemoryState()
    for opening in (lambda: MemoryReader(state), lambda: writer(state)):
        with pytest.raises(BufferMissing):
            opening()
    state.create(1)
    reader = MemoryReader(state)
    writer(state).store_entry(entry("1"), 0)
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("1")]


@pytest.mark.parametrize("state", [MemoryState(1), MemoryState()])
def test_double_init_is_refused(state: MemoryState) -> None:
    if not state.exists:
        state.create(1)
    with pytest.raises(ValueError, match="already initialized"):
        state.create(1)


def test_an_injected_error_is_raised_in_its_place_and_the_stream_goes_on() -> None:
    state = MemoryState(1)
    state.push(0, 0, message("0"))
    state.push_error(0, ERROR)
    state.push(0, 1, message("1"))
    reader = MemoryReader(state)
    with reader.streams() as streams:
        assert len(streams[0].take(10)) == 1, "what comes before the error is delivered before it is raised"
        with pytest.raises(BufferUnreachable, match="injected"):
            streams[0].take(10)
        assert take_entries(streams[0], 1) == [entry("1")]
    reader.seek(0, 1)
    with reader.streams() as streams, pytest.raises(BufferUnreachable, match="injected"):
        streams[0].take(10)  # errors have no number: always delivered


def test_a_bad_message_is_delivered_as_such_and_the_stream_goes_on() -> None:
    state = MemoryState(1)
    state.push(0, 4, Message(None, (("a", b"1"),), 7))
    state.push(0, 5, message("5"))
    with MemoryReader(state).streams() as streams:
        bad, good = take(streams[0], 2)
    assert isinstance(bad, BadMessage)
    assert (bad.sequence.number, bad.reason, bad.message.headers) == (4, BadReason.PAYLOAD_MISSING, (("a", b"1"),))
    assert good.sequence.number == 5


def test_retention() -> None:  # test_clear_messages
    state = MemoryState(2)
    for each in (0, 1):
        for text in "012":
            writer(state).store_entry(entry(text), each)
    behind, fresh = MemoryReader(state), MemoryReader(state)
    with behind.streams() as streams:
        take(streams[0], 1)
    state.expire(0)
    assert (state.messages(0), len(state.messages(1))) == ([], 3)
    assert (fresh.fetch_earliest(0), fresh.fetch_high_watermark(0)) == (3, 3), "numbers are never given twice"
    writer(state).store_entry(entry("3"), 0)
    with fresh.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("3")], "who never read from it has missed nothing"
        assert len(take(streams[1], 3)) == 3
    for _ in range(2):
        with behind.streams() as streams, pytest.raises(NoLongerExists, match="up to 2 entries are lost") as gone:
            streams[0].take(1)
        assert (gone.value.number, gone.value.earliest, gone.value.lost) == (1, 3, 2)
    behind.reset_to_earliest()
    with behind.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("3")]


def test_whoever_saw_the_end_of_a_log_notices_what_retention_takes_behind_it() -> None:
    state = MemoryState(1)
    reader = MemoryReader(state)
    with reader.streams() as streams:
        assert streams[0].take(1) == []
    writer(state).store_entry(entry("0"), 0)
    state.expire(0)
    with reader.streams() as streams, pytest.raises(NoLongerExists):
        streams[0].take(1)
