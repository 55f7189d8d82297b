"""A batch is in a buffer as a whole or does not count, and counts once, whoever dies or races."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.json import read_json

from tests.support.clock import SteppedClock
from tests.support.dying import Crash, dying_at
from tidemark.errors import RangeOverlap, Refused, UsageError
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest.messages import COLUMNS, RowDecoder
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.batches import batch_log as module
from tidemark.write_buffer.batches.batch_log import json_rows, merge_numbers, open_batch_log
from tidemark.write_buffer.batches.names import open_batches, read_batches
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.formats.entry import EntryFormat, Sequence, SequencedEntry
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.keys import POINTS, keep_keys
from tidemark.write_buffer.memory import MemoryState, registered
from tidemark.write_buffer.ranges import NumberRange, read_range
from tidemark.write_buffer.registry import open_reader, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.write_buffer.back_end import Connection
    from tidemark.write_buffer.batches.names import LoggedBatch

CLOCK = SteppedClock(1_000)


@pytest.fixture(params=["memory", "file"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    if request.param == "file":
        made = parse_connection(f"{(tmp_path / 'buffer').as_uri()}?sequencers=3")
        open_reader(made, create=True).close()
        yield made
        return
    with registered("batches", MemoryState(3)):
        yield parse_connection("memory:batches")


def rows(start: int, end: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(start, end), pa.int64()), "name": [f"n{id_ % 5}" for id_ in range(start, end)]}
    )


def add(connection: Connection, start: int, end: int, producer: str = "p", *, collection: str = "c") -> int:
    with open_batch_log(connection, collection=collection, table="t") as log:
        return log.add([rows(start, end)], (producer, Range(start, end)), clock=CLOCK)


def logged(connection: Connection) -> list[LoggedBatch]:
    with open_reader(connection) as reader, open_batches(connection) as batches:
        return [] if batches is None else read_batches(batches, reader.identity)


def ids_at(connection: Connection, batch: LoggedBatch) -> dict[int, list[int]]:
    """The ids of the rows of a batch, by sequencer."""
    found: dict[int, list[int]] = {}
    with open_reader(connection) as reader:
        for place in batch.places:
            for entry in read_range(reader, place.sequencer_id, place.start, end=place.end):
                assert isinstance(entry, SequencedEntry)
                assert entry.entry.format is EntryFormat.BATCH_ROWS
                lines = pa.BufferReader(entry.entry.payload)
                found.setdefault(place.sequencer_id, []).extend(read_json(lines)["id"].to_pylist())
    return found


def test_batch_is_found_again_with_its_rows(connection: Connection) -> None:
    assert add(connection, 0, 4) == 4
    assert add(connection, 0, 4) == 4
    assert add(connection, 4, 4 + module.ENTRY_ROWS * 2 + 1, "q") == module.ENTRY_ROWS * 2 + 1
    first, second = logged(connection)
    assert (str(first.name), first.rows, first.collection, first.table) == ("p 0:4", 4, "c", "t")
    assert [id_ for ids in ids_at(connection, first).values() for id_ in ids] == [0, 1, 2, 3]
    ((sequencer_id, ids),) = ids_at(connection, second).items()
    assert (ids, len(second.places)) == (list(range(4, 4 + second.rows)), 1), f"one place in {sequencer_id}"
    with open_batch_log(connection, collection="c", table="t") as log:
        assert (log.accepted("p").ranges, log.find("p", Range(0, 4))) == ((Range(0, 4),), 4)
    with open_batch_log(connection, collection="other", table="t") as log:
        assert log.find("p", Range(0, 4)) is None, "producers are those of one collection"


@pytest.mark.parametrize("point", module.FAIL_POINTS)
def test_append_that_dies_leaves_all_or_nothing(connection: Connection, point: str) -> None:
    with dying_at(point), pytest.raises(Crash):
        add(connection, 0, 4)
    assert len(logged(connection)) == int(point == "buffer-batch.after-name")
    assert add(connection, 0, 4) == 4
    (batch,) = logged(connection)
    assert [id_ for ids in ids_at(connection, batch).values() for id_ in ids] == [0, 1, 2, 3]


def test_of_two_appends_at_once_the_first_one_counts(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look before either writes; the second learns from the log which batch it was."""
    store = module.BufferBatches._store_rows

    def overtaken_by(start: int, end: int) -> None:
        def overtaken(self: module.BufferBatches, *arguments: Any) -> Any:
            monkeypatch.setattr(module.BufferBatches, "_store_rows", store)
            add(connection, start, end)
            return store(self, *arguments)

        monkeypatch.setattr(module.BufferBatches, "_store_rows", overtaken)

    overtaken_by(0, 4)
    assert add(connection, 0, 4) == 4
    overtaken_by(4, 6)
    with pytest.raises(RangeOverlap, match=r"\[0, 6\)"):
        add(connection, 5, 7)
    assert add(connection, 6, 7) == 1, "what did not count is in nobody's way"
    with open_batch_log(connection, collection="c", table="t") as log:
        assert log.accepted("p").ranges == (Range(0, 7),)
        assert [log.find("p", Range(*each)) for each in ((0, 4), (4, 6), (6, 7), (0, 7))] == [4, 2, 1, 0]
    assert len(logged(connection)) == 5


def test_rows_without_a_name_are_added_by_every_call(connection: Connection) -> None:
    for _ in range(2):
        with open_batch_log(connection, collection="c", table="t") as log:
            assert log.add([rows(0, 2)], None, clock=CLOCK) == 2
    assert [(batch.name, batch.rows) for batch in logged(connection)] == [(None, 2)] * 2


def test_batch_without_rows_counts(connection: Connection) -> None:
    with open_batch_log(connection, collection="c", table="t") as log:
        assert log.add([], ("p", Range(0, 4)), clock=CLOCK) == 0
        assert log.find("p", Range(0, 4)) == 0


def test_rows_of_a_key_go_to_its_sequencer(connection: Connection) -> None:
    keep_keys(connection, {"t": ("name",)}, clock=CLOCK)
    add(connection, 0, 30)
    (batch,) = logged(connection)
    by_sequencer = ids_at(connection, batch)
    assert len(by_sequencer) > 1
    for ids in by_sequencer.values():
        assert ids == sorted(ids)
        assert {id_ for id_ in range(30) if id_ % 5 in {found % 5 for found in ids}} == set(ids)


@pytest.mark.parametrize(("key", "says"), [(("day",), "no such column"), (POINTS, "one of points")])
def test_key_that_the_rows_lack_is_refused(connection: Connection, key: tuple[str, ...], says: str) -> None:
    keep_keys(connection, {"t": key}, clock=CLOCK)
    with pytest.raises(UsageError, match=says):
        add(connection, 0, 1)
    assert logged(connection) == []


def test_batches_of_a_log_that_was_there_before_do_not_count(connection: Connection) -> None:
    add(connection, 0, 4)
    with open_batches(connection) as batches:
        assert batches is not None
        assert read_batches(batches, "another log") == []


def test_numbers_become_ranges_that_hold_nothing_else() -> None:
    places = [(1, 5), (0, 3), (1, 4), (0, 4), (1, 7)]
    assert merge_numbers(places) == [NumberRange(0, 3, 5), NumberRange(1, 4, 6), NumberRange(1, 7, 8)]


NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.decimal128(5, 2)))])
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [2**63 - 1, -(2**63), 0]),
    (pa.float64(), [0.1, 1e300, float("inf"), float("-inf"), -0.0]),
    (pa.float32(), [0.5, 3.4e38]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "a\nb", '"', "\u2028ü", "NaN"]),
    (pa.binary(), [b"", b" \xff\x00 "]),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1, UTC)]),
    (pa.timestamp("us"), [datetime(2013, 1, 1, 5), datetime(9999, 12, 31, 23, 59, 59, 999_999)]),  # noqa: DTZ001
    (pa.decimal128(38, 10), [Decimal("1.5"), Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-10")]),
    (NESTED, [{"a": 1, "b": [Decimal("1.25"), None]}, {"a": None, "b": None}]),
    (pa.map_(pa.int32(), pa.string()), [[(1, "x"), (2, None)], []]),
    (pa.list_(pa.struct([("t", pa.timestamp("us", "UTC"))])), [[{"t": datetime(2013, 1, 1, tzinfo=UTC)}], []]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_values_come_back_as_they_were(type_: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"v": pa.array([*values, None], type_)})
    entry = encode_json_rows(json_rows(table), table="t")
    batch = MessageColumns(0, COLUMNS).batch_of([SequencedEntry(Sequence(0, 0), 0, entry)])
    decoded = RowDecoder(table.schema, "t").decode(batch)
    assert (decoded.bad, decoded.good.column("v").to_pylist()) == ([], table.column("v").to_pylist())


def test_value_that_no_row_can_hold_is_refused(connection: Connection) -> None:
    year_10000 = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    with open_batch_log(connection, collection="c", table="t") as log, pytest.raises(Refused, match="column 'v'"):
        log.add([pa.table({"v": year_10000})], ("p", Range(0, 1)), clock=CLOCK)
    assert logged(connection) == []


def test_column_that_names_tables_is_refused(connection: Connection) -> None:
    with open_batch_log(connection, collection="c", table="t") as log, pytest.raises(Refused, match="_table"):
        log.add([pa.table({"_table": ["x"]})], ("p", Range(0, 1)), clock=CLOCK)


def test_nobody_takes_a_row_of_a_batch_for_a_row_by_itself(connection: Connection) -> None:
    add(connection, 0, 2)
    with open_writer(connection, clock=CLOCK) as writer:
        writer.store_entry(encode_json_rows([{"id": 9}], table="t"), 0)
    with open_reader(connection) as reader:
        formats = [
            entry.entry.format
            for id_ in sorted(reader.sequencer_ids())
            for entry in read_range(reader, id_, 0)
            if isinstance(entry, SequencedEntry)
        ]
    assert sorted(formats) == [EntryFormat.BATCH_ROWS, EntryFormat.JSON_ROWS]
