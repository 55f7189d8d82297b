"""What every buffer promises: the same tests for memory, files and a real Kafka.

Source: reference/write_buffer_lifecycle.md section 2.6; the names there are in brackets where they differ.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.buffers import LIMIT_BYTES, entry, take, take_entries
from tidemark.write_buffer.errors import BufferMissing, EntryTooLarge, StreamsOpen, UnknownSequencer
from tidemark.write_buffer.formats.entry import Entry, EntryFormat, SequencedEntry
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.formats.line_protocol import encode_line_protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.buffers import BufferContext
    from tidemark.write_buffer.reader import Stream

    OpenContext = Callable[[int], BufferContext]


def is_pending(stream: Stream, context: BufferContext) -> bool:
    return stream.take(1, timeout_s=context.pending_s) == []


def test_single_stream_io(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    with reader.streams() as streams:
        assert list(streams) == [0]
        assert is_pending(streams[0], context)
        writer.store_entry(entry("1"), 0)
        assert take_entries(streams[0], 1) == [entry("1")]
        assert is_pending(streams[0], context)
        writer.store_entry(entry("2"), 0)
        writer.store_entry(entry("3"), 0)
        assert take_entries(streams[0], 2) == [entry("2"), entry("3")]
        assert is_pending(streams[0], context)


def test_streams_go_on_where_the_last_ones_stopped(open_context: OpenContext) -> None:  # test_multi_stream_io
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    for text in "123":
        writer.store_entry(entry(text), 0)
    with reader.streams():
        pass
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("1")]
    with reader.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("2"), entry("3")]
    with reader.streams() as streams:
        assert is_pending(streams[0], context)


def test_multi_sequencer_io(open_context: OpenContext) -> None:
    context = open_context(2)
    writer, reader = context.writing(), context.reading()
    with reader.streams() as streams:
        assert set(streams) == {0, 1} == reader.sequencer_ids()
        assert is_pending(streams[0], context)
        assert is_pending(streams[1], context)
        for there, other in ((0, 1), (1, 0)):
            writer.store_entry(entry(f"to {there}"), there)
            assert take_entries(streams[there], 1) == [entry(f"to {there}")]
            assert is_pending(streams[other], context)
        assert is_pending(streams[1], context)


def test_multi_writer_multi_reader(open_context: OpenContext) -> None:
    context = open_context(2)
    one, other = context.writing(), context.writing()
    assert one.sequencer_ids() == other.sequencer_ids() == {0, 1}
    one.store_entry(entry("east 1"), 0)
    one.store_entry(entry("west 1"), 1)
    other.store_entry(entry("east 2"), 0)
    for reader in (context.reading(), context.reading()):
        with reader.streams() as streams:
            assert take_entries(streams[0], 2) == [entry("east 1"), entry("east 2")]
            assert take_entries(streams[1], 1) == [entry("west 1")]
            assert is_pending(streams[0], context)
            assert is_pending(streams[1], context)


def test_order_holds_inside_one_sequencer(open_context: OpenContext) -> None:
    context = open_context(2)
    writer, reader = context.writing(), context.reading()
    first, _ = writer.store_entry(entry("east 1"), 0)
    writer.store_entry(entry("west 1"), 1)
    second, _ = writer.store_entry(entry("east 2"), 0)
    assert second.number > first.number, "numbers grow, with holes: never assert first + 1"
    with reader.streams() as streams:
        delivered = take(streams[0], 2)
    assert [each.sequence for each in delivered] == [first, second]


def test_seek(open_context: OpenContext) -> None:
    context = open_context(2)
    writer = context.writing()
    writer.store_entry(entry("east 1"), 0)
    east_2, _ = writer.store_entry(entry("east 2"), 0)
    writer.store_entry(entry("west 1"), 1)
    moved, other = context.reading(), context.reading()
    moved.seek(0, east_2.number)
    with moved.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("east 2")]
        assert take_entries(streams[1], 1) == [entry("west 1")]
    with other.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("east 1"), entry("east 2")], "each reader stands for itself"
    moved.seek(0, 0)
    with moved.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("east 1"), entry("east 2")], "backward, too"
        assert is_pending(streams[1], context), "each sequencer stands for itself"
    moved.seek(0, 1_000_000)
    with moved.streams() as streams:
        writer.store_entry(entry("east 3"), 0)
        assert is_pending(streams[0], context), "the number is remembered: what is written below it is not delivered"
        assert is_pending(streams[1], context)
    moved.seek(0, east_2.number + 1)
    with moved.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("east 3")], "seeking back recovers"


def test_seeking_just_beyond_the_end_delivers_what_comes_there(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    first, _ = writer.store_entry(entry("0"), 0)
    reader.seek(0, first.number + 2)
    with reader.streams() as streams:
        assert is_pending(streams[0], context)
        writer.store_entry(entry("1"), 0)
        assert is_pending(streams[0], context)
        writer.store_entry(entry("2"), 0)
        assert take_entries(streams[0], 1) == [entry("2")]


def test_seeking_an_unknown_sequencer_is_no_error(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    writer.store_entry(entry("1"), 0)
    reader.seek(7, 3)
    with reader.streams() as streams:
        assert set(streams) == {0}
        assert take_entries(streams[0], 1) == [entry("1")]


def test_one_set_of_streams_and_no_seek_while_streaming(open_context: OpenContext) -> None:
    context = open_context(1)
    reader = context.reading()
    streams = reader.streams()
    with pytest.raises(StreamsOpen, match="still open"):
        reader.streams()
    with pytest.raises(StreamsOpen, match="cannot be moved"):
        reader.seek(0, 1)
    with pytest.raises(StreamsOpen, match="cannot be moved"):
        reader.reset_to_earliest()
    kept = streams[0]
    streams.close()
    with pytest.raises(StreamsOpen, match="is closed"):
        kept.take(1)
    reader.seek(0, 1)
    reader.streams().close()


def test_watermark(open_context: OpenContext) -> None:
    context = open_context(2)
    writer, reader = context.writing(), context.reading()
    assert [reader.fetch_high_watermark(each) for each in (0, 1)] == [0, 0]
    assert [reader.fetch_earliest(each) for each in (0, 1)] == [0, 0]
    east, _ = writer.store_entry(entry("east 1"), 0)
    east, _ = writer.store_entry(entry("east 2"), 0)
    west, _ = writer.store_entry(entry("west 1"), 1)
    assert reader.fetch_high_watermark(0) == east.number + 1
    assert reader.fetch_high_watermark(1) == west.number + 1
    assert reader.fetch_earliest(0) == 0
    assert reader.fetch_high_watermark(7) == 0, "a sequencer that does not exist"


def test_timestamp(open_context: OpenContext) -> None:
    context = open_context(1)
    context.clock.step(129 - context.clock.now_ms())
    writer, reader = context.writing(), context.reading()
    _, told = writer.store_entry(entry("1"), 0)
    context.clock.step(10_000)
    with reader.streams() as streams:
        (delivered,) = take(streams[0], 1)
    assert isinstance(delivered, SequencedEntry)
    assert (told, delivered.time_ms) == (129, 129)


def test_sequencer_auto_creation_by_a_writer(open_context: OpenContext) -> None:
    context = open_context(1)
    with pytest.raises(BufferMissing, match="does not exist"):
        context.writing(create=False)
    with pytest.raises(BufferMissing, match="does not exist"):
        context.reading(create=False)
    context.writing()
    assert context.writing(create=False).sequencer_ids() == {0}
    assert context.reading(create=False).sequencer_ids() == {0}


def test_sequencer_auto_creation_by_a_reader(open_context: OpenContext) -> None:
    context = open_context(1)
    context.reading()
    assert context.writing(create=False).sequencer_ids() == {0}
    assert context.reading(create=False).sequencer_ids() == {0}


def test_what_exists_is_taken_as_it_is(open_context: OpenContext) -> None:
    context = open_context(2)
    identity = context.reading().identity
    context.sequencers = 5
    assert context.writing().sequencer_ids() == {0, 1}
    assert context.reading().identity == identity


def test_sequencer_ids(open_context: OpenContext) -> None:
    context = open_context(10)
    assert context.writing().sequencer_ids() == context.writing().sequencer_ids() == set(range(10))


def test_headers_go_along(open_context: OpenContext) -> None:  # test_span_context
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    trace = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    sent = [
        Entry(b"{}", EntryFormat.JSON_ROWS),
        Entry(b"{}", EntryFormat.JSON_ROWS, (trace,)),
        Entry(b"{}", EntryFormat.JSON_ROWS, (trace, ("X-Bytes", bytes(range(256))), ("x-empty", b""))),
        encode_line_protocol(["weather,origin=EWR temp=1"]),
        Entry(b"", EntryFormat.LINE_PROTOCOL),
    ]
    for each in sent:
        writer.store_entry(each, 0)
    with reader.streams() as streams:
        assert take_entries(streams[0], len(sent)) == sent


def test_unknown_sequencer_is_refused_and_leaves_no_trace(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    for unknown in (~0, 1):
        with pytest.raises(UnknownSequencer, match="has no sequencer"):
            writer.store_entry(entry("1"), unknown)
    assert reader.fetch_high_watermark(0) == 0


def test_reset_to_earliest(open_context: OpenContext) -> None:
    context = open_context(2)
    writer, reader = context.writing(), context.reading()
    for each in (0, 1):
        writer.store_entry(entry(f"first of {each}"), each)
        writer.store_entry(entry(f"second of {each}"), each)
    for _ in range(2):
        with reader.streams() as streams:
            for each in (0, 1):
                assert take_entries(streams[each], 1) == [entry(f"first of {each}")]
        reader.reset_to_earliest()


def test_an_entry_that_is_too_large_is_refused_before_it_is_sent(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    text = "x" * LIMIT_BYTES
    with pytest.raises(EntryTooLarge, match=rf"is {LIMIT_BYTES} bytes") as refused:
        writer.store_entry(entry(text), 0)
    assert refused.value.entry_bytes > refused.value.limit_bytes == LIMIT_BYTES
    assert reader.fetch_high_watermark(0) == 0
    with pytest.raises(EntryTooLarge):
        writer.store_entries([entry("1"), entry(text), entry("2")], 0)
    assert reader.fetch_high_watermark(0) == 1, "those before it are stored"
    reader.seek(0, 1)
    noise = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(LIMIT_BYTES // 3 - 100))
    writer.store_entry(entry(noise), 0)  # just below the limit, and hardly compressible
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry(noise)]


def test_many_entries_are_stored_in_their_order(open_context: OpenContext) -> None:
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    sent = [entry(str(number)) for number in range(100)]
    answers = writer.store_entries(sent, 0)
    numbers = [each.sequence.number for each in answers]
    assert numbers == sorted(set(numbers))
    assert writer.store_entries([], 0) == []
    with reader.streams() as streams:
        delivered = take(streams[0], len(sent))
        assert streams[0].next_number == numbers[-1] + 1 == reader.fetch_high_watermark(0)
    assert [each.sequence for each in delivered] == [each.sequence for each in answers]
    assert [each.entry for each in delivered if isinstance(each, SequencedEntry)] == sent


def test_a_pending_stream_is_woken_by_a_write(open_context: OpenContext) -> None:  # test_delayed_insert
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    with reader.streams() as streams, ThreadPoolExecutor(1) as pool:
        assert is_pending(streams[0], context)
        waiting = pool.submit(take_entries, streams[0], 1)
        writer.store_entry(entry("1"), 0)
        assert waiting.result() == [entry("1")]


def test_writes_at_once_do_not_wait_for_each_other(open_context: OpenContext) -> None:  # test_flush
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    writer.store_entry(entry("connect"), 0)
    start = threading.Barrier(20)

    def store(number: int) -> int:
        start.wait()
        return writer.store_entry(entry(str(number)), 0).sequence.number

    with ThreadPoolExecutor(20) as pool:
        began = time.monotonic()
        numbers = list(pool.map(store, range(20)))
        assert time.monotonic() - began < 2, "20 writes, of which none waits for a timer"
    with reader.streams() as streams:
        delivered = take(streams[0], 21)[1:]
    stored = {number: entry(str(place)) for place, number in enumerate(numbers)}
    assert {each.sequence.number: each.entry for each in delivered if isinstance(each, SequencedEntry)} == stored


def test_streams_are_read_by_threads_while_others_write(open_context: OpenContext) -> None:
    context = open_context(4)
    writer, reader = context.writing(), context.reading()

    def write(sequencer_id: int) -> None:
        for number in range(50):
            writer.store_entry(entry(f"{sequencer_id}/{number}"), sequencer_id)

    with reader.streams() as streams, ThreadPoolExecutor(8) as pool:
        reading = {each: pool.submit(take_entries, stream, 50) for each, stream in streams.items()}
        list(pool.map(write, streams))
        for each, taken in reading.items():
            assert taken.result() == [entry(f"{each}/{number}") for number in range(50)]


def test_tables_survive_the_round_trip(open_context: OpenContext) -> None:  # test_multi_namespaces
    context = open_context(1)
    writer, reader = context.writing(), context.reading()
    sent = [encode_json_rows([{"a": 1}], table=table) for table in ("weather", "über / _table", "flights")]
    for each in sent:
        writer.store_entry(each, 0)
    with reader.streams() as streams:
        assert [each.table for each in take_entries(streams[0], 3)] == ["weather", "über / _table", "flights"]
