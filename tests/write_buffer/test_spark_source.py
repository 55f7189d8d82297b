"""A buffer as a Spark source: every message once, in bounded ranges, from files and from a real Kafka."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import NullType, StructField, StructType

from tests.support.buffers import BufferContext, FileContext, KafkaContext, entry
from tests.support.clock import SteppedClock
from tidemark.errors import TidemarkError, UsageError
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists, UnknownSequencer
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.arrow_messages import TYPES
from tidemark.write_buffer.formats.entry import Entry, EntryFormat
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter
from tidemark.write_buffer.ranges import NumberRange, plan_ranges, split_ranges
from tidemark.write_buffer.spark_source import BufferDataSource, parse_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def reader() -> MemoryReader:
    """Sequencer 0 holds [2, 5), sequencer 1 holds [0, 4), sequencer 2 holds nothing."""
    state = MemoryState(3)
    writer = MemoryWriter(state, clock=SteppedClock())
    for sequencer_id, count in ((0, 5), (1, 4)):
        writer.store_entries([entry(str(number)) for number in range(count)], sequencer_id)
    state.expire(0, 2)
    return MemoryReader(state)


def test_all_that_is_there_is_planned(reader: MemoryReader) -> None:
    assert plan_ranges(reader) == [NumberRange(0, 2, 5), NumberRange(1, 0, 4)]


def test_ranges_that_are_wanted_end_at_the_watermark_at_most(reader: MemoryReader) -> None:
    assert plan_ranges(reader, {0: (3, None), 1: (1, 2), 2: (0, None)}) == [NumberRange(0, 3, 5), NumberRange(1, 1, 2)]
    assert plan_ranges(reader, {0: (5, None), 1: (2, 2)}) == []


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({3: (0, None)}, UnknownSequencer),
        ({0: (1, None)}, NoLongerExists),
        ({0: (0, None)}, NoLongerExists),
        ({1: (5, None)}, AfterWatermark),
        ({1: (0, 5)}, AfterWatermark),
        ({1: (3, 2)}, UsageError),
    ],
)
def test_ranges_that_cannot_be_read_are_refused(
    reader: MemoryReader, wanted: dict[int, tuple[int, int | None]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        plan_ranges(reader, wanted)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), max_size=4, unique_by=lambda each: each[0]),
    st.integers(1, 30),
)
def test_parts_are_the_same_numbers(spans: list[tuple[int, int]], part_numbers: int) -> None:
    ranges = [NumberRange(sequencer_id, start, start + size) for sequencer_id, (start, size) in enumerate(spans)]
    parts = split_ranges(ranges, part_numbers)
    assert all(0 < part.end - part.start <= part_numbers for part in parts)
    for each in ranges:
        mine = sorted(part for part in parts if part.sequencer_id == each.sequencer_id)
        assert [number for part in mine for number in range(part.start, part.end)] == list(range(each.start, each.end))


@pytest.mark.parametrize("text", ["", "[]", '{"a": [1, 2]}', '{"0": 1}', '{"0": [1]}', '{"0": [1, "2"]}', "{"])
def test_what_are_no_ranges_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="are no ranges"):
        parse_ranges(text)


def test_ranges_are_parsed() -> None:
    assert parse_ranges('{"0": [100, 200], "1": [5, null]}') == {0: (100, 200), 1: (5, None)}


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def buffer(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> Iterator[tuple[BufferContext, str]]:
    """A context, and its address."""
    if request.param == "file":
        context: BufferContext = FileContext(2, tmp_path / "buffer")
        uri = (tmp_path / "buffer").as_uri()
    else:
        broker = request.getfixturevalue("kafka")
        context = KafkaContext(2, broker.address, unique_name)
        uri = f"kafka://{broker.address}/{unique_name}"
    with context:
        yield context, uri


def store_bad_message(context: BufferContext) -> None:
    """Let a foreign producer write a message without a payload to sequencer 1."""
    if isinstance(context, KafkaContext):
        producer = Producer({"bootstrap.servers": context.connection.place, "log_level": "0"})
        producer.produce(
            context.connection.topic, value=None, partition=1, headers=[("a", b"1"), ("b", None)], timestamp=9
        )
        assert producer.flush(10) == 0
    elif isinstance(context, FileContext):
        from tidemark.write_buffer.file.folder import open_folder
        from tidemark.write_buffer.formats.entry import Message

        open_folder(context.folder).logs[1].append(encode_message(Message(None, (("a", b"1"), ("b", b"")), 9)))


def read_in_process(
    columns: Iterable[str] = TYPES, **options: str
) -> tuple[int, dict[tuple[int, int], dict[str, Any]]]:
    """Plan and read as Spark does, without it: how many parts there are, and the rows by sequencer and number."""
    schema = StructType([StructField(name, NullType()) for name in columns])  # the names are what is looked at
    reader = BufferDataSource(options).reader(schema)
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301 -- our own; they go to other processes
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return len(parts), {(row["sequencer"], row["number"]): row for row in rows}


def test_every_message_is_a_row_once(buffer: tuple[BufferContext, str]) -> None:
    context, uri = buffer
    writer = context.writing()
    points = Entry(b"weather temp=1 1", EntryFormat.LINE_PROTOCOL, (("x", b"\x00\xff"),))
    writer.store_entries([entry(str(number)) for number in range(25)], 0)
    writer.store_entries([encode_json_rows([{"a": 1}]), points], 1)
    store_bad_message(context)

    count, rows = read_in_process(buffer=uri, part_numbers="10")
    assert count == 4
    assert sorted(rows) == [(0, number) for number in range(25)] + [(1, 0), (1, 1), (1, 2)]
    for number in range(25):
        row = rows[0, number]
        assert (row["format"], row["table"], row["reason"]) == (EntryFormat.JSON_ROWS.value, "texts", None)
        assert (row["payload"], row["time_ms"]) == (entry(str(number)).payload, 1_000)
    assert rows[1, 0]["table"] is None
    assert (rows[1, 1]["format"], rows[1, 1]["reason"]) == (EntryFormat.LINE_PROTOCOL.value, None)
    assert rows[1, 1]["headers"][-1] == {"name": "x", "value": b"\x00\xff"}
    bad = rows[1, 2]
    assert (bad["format"], bad["reason"], bad["payload"], bad["time_ms"]) == (None, "payload-missing", None, 9)
    assert [tuple(pair.values()) for pair in bad["headers"]] == [("a", b"1"), ("b", b"")]

    some = '{"0": [3, 8], "1": [2, null]}'
    assert sorted(read_in_process(["sequencer", "number"], buffer=uri, ranges=some)[1]) == [
        *((0, number) for number in range(3, 8)), (1, 2),
    ]  # fmt: skip
    assert read_in_process(buffer=uri, ranges='{"0": [25, null]}') == (0, {})


def test_messages_of_one_kind_are_read_as_those_of_many(buffer: tuple[BufferContext, str]) -> None:
    context, uri = buffer
    context.writing().store_entries([entry("same")] * 30, 0)
    _, rows = read_in_process(buffer=uri)
    assert len(rows) == 30
    for row in rows.values():
        assert (row["sequencer"], row["format"], row["table"], row["reason"]) == (
            0,
            EntryFormat.JSON_ROWS,
            "texts",
            None,
        )
        assert [pair["name"] for pair in row["headers"]] == ["content-type", "tidemark-table"]


def load(spark: SparkSession, schema: str | None = None, **options: str) -> DataFrame:
    spark.dataSource.register(BufferDataSource)
    reading = spark.read.format("tidemark_buffer").options(**options)
    return (reading.schema(schema) if schema else reading).load()


@pytest.mark.spark
def test_spark_reads_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    with FileContext(2, tmp_path / "buffer") as context:
        writer = context.writing()
        writer.store_entries([entry(str(number)) for number in range(25)], 0)
        frame = load(spark, buffer=(tmp_path / "buffer").as_uri(), part_numbers="10")
        rows = {row.number: row for row in frame.collect()}
        assert sorted(rows) == list(range(25))
        assert bytes(rows[7].payload) == entry("7").payload
        assert rows[7].headers[1] == ("tidemark-table", b"texts")
        writer.store_entry(entry("late"), 0)
        assert frame.count() == 25, "a frame's watermarks are taken once"
        late = load(spark, "number long", buffer=(tmp_path / "buffer").as_uri(), ranges='{"0": [25, null]}')
        assert [tuple(row) for row in late.collect()] == [(25,)]


@pytest.mark.spark
def test_spark_says_why_it_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has no sequencers"):
        load(spark, buffer=(tmp_path / "gone").as_uri()).count()


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (TYPES, {"buffer": "memory:x"}, "Unknown memory buffer"),
        (TYPES, {}, "the option `buffer` is missing"),
        (["offset"], {"buffer": "memory:x"}, "a buffer has no column offset"),
    ],
)
def test_what_cannot_be_meant_is_refused(columns: Iterable[str], options: dict[str, str], says: str) -> None:
    with pytest.raises(TidemarkError, match=says):
        read_in_process(columns, **options)
