"""Event times are judged where rows are decoded; what is kept is counted by partition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidemark.ingest.messages import COLUMNS, DecodedRows, RowDecoder
from tidemark.ingest.partitions.arrivals import Arrival, Arrivals
from tidemark.ingest.partitions.event_times import EventTimes
from tidemark.ingest.range_rows import Tally
from tidemark.interval import Unit, milliseconds
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.formats.entry import Message, Sequence, read_message

NOON = milliseconds(datetime(2013, 1, 3, 12, tzinfo=UTC))
HOUR_MS = 3_600_000
TYPES = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "date": pa.date32()}
HOURS = EventTimes(column="at", unit=Unit.HOUR, max_ahead_ms=HOUR_MS)


def decode(*payloads: bytes, times: EventTimes, type_: str = "timestamp_ntz") -> DecodedRows:
    messages = [
        read_message(Sequence(0, 100 + number), Message(payload, (), NOON)) for number, payload in enumerate(payloads)
    ]
    schema = pa.schema([("id", pa.int64()), ("at", TYPES[type_])])
    return RowDecoder(schema, judge=times).decode(MessageColumns(0, COLUMNS).batch_of(messages))


def row(number: int, at: str | None) -> bytes:
    return b'{"id":%d}' % number if at is None else b'{"id":%d,"at":"%s"}' % (number, at.encode())


def bad(decoded: DecodedRows) -> list[tuple[int, int, str]]:
    return [(row.number, row.place, str(row.row.reason)) for row in decoded.bad]


# A line that Arrow's parser may read otherwise sends all rows through our own decoder.
@pytest.mark.parametrize("odd", [b"", b'\n{"id":7,"at":"2013-01-03T12:00:00","n":NaN}'])
def test_rows_without_an_event_time_or_too_far_ahead_are_bad(odd: bytes) -> None:
    lines = [row(1, None), row(2, "2013-01-03T13:00:00.001"), row(3, "2013-01-03T13:00:00"), row(4, "x")]
    decoded = decode(b"\n".join(lines) + odd, row(5, "2014-01-01T00:00:00"), times=HOURS)
    assert decoded.good.column("id").to_pylist() == [3]
    expected = [(100, 0, "event-time-missing"), (100, 1, "event-time-ahead"), (100, 3, "row-unreadable")]
    assert sorted(bad(decoded))[:3] == expected
    assert (101, 0, "event-time-ahead") in bad(decoded)
    assert {placed.row.raw for placed in decoded.bad} >= {lines[0], lines[1], lines[3]}
    (ahead,) = [placed.row.detail for placed in decoded.bad if (placed.number, placed.place) == (100, 1)]
    assert ahead == (
        "column 'at': the event time 2013-01-03 13:00:00.001 is more than 3600 s after its arrival at "
        "2013-01-03 12:00:00"
    )


def test_what_is_kept_is_counted_by_partition() -> None:
    lines = [row(1, "2013-01-03T05:10:00"), row(2, "2013-01-03T04:59:59.999999"), row(3, "2013-01-03T05:59:00.5")]
    decoded = decode(*lines, times=HOURS)
    five = milliseconds(datetime(2013, 1, 3, 5, tzinfo=UTC))
    assert decoded.arrivals == Arrivals(
        partitions={
            "2013-01-03T05": Arrival(100, 103, 2, five + 600_000, five + 59 * 60_000 + 501),
            "2013-01-03T04": Arrival(101, 102, 1, five - 1, five),
        }
    )


@pytest.mark.parametrize(
    ("type_", "unit", "at", "name"),
    [
        ("timestamp", Unit.HOUR, "2013-01-03T05:30:00+01:00", "2013-01-03T04"),
        ("timestamp", Unit.DAY, "1969-12-31T23:59:59.9995", "1969-12-31"),
        ("timestamp_ntz", Unit.MONTH, "2012-12-31T23:59:59", "2012-12"),
        ("date", Unit.DAY, "2013-01-03", "2013-01-03"),
        ("date", Unit.MONTH, "0001-01-01", "0001-01"),
    ],
)
def test_times_and_dates_have_partitions_in_utc(type_: str, unit: Unit, at: str, name: str) -> None:
    times = EventTimes(column="at", unit=unit, max_ahead_ms=0)
    decoded = decode(row(1, at), times=times, type_=type_)
    (arrival,) = decoded.arrivals.partitions.items()
    assert (arrival[0], arrival[1].rows) == (name, 1)


def test_rows_of_passed_partitions_are_bad_where_they_are_not_kept() -> None:
    passed = EventTimes(column="at", unit=Unit.HOUR, max_ahead_ms=0, passed_ms=NOON - HOUR_MS // 2)
    decoded = decode(row(1, "2013-01-03T10:59:00"), row(2, "2013-01-03T11:00:00"), times=passed)
    assert (decoded.good.column("id").to_pylist(), bad(decoded)) == ([2], [(100, 0, "late")])
    assert (decoded.arrivals.refused, decoded.arrivals.first_refused) == (
        1,
        "number 100 with the event time 2013-01-03 10:59:00",
    )
    assert decode(row(1, "0001-01-01T00:00:00"), times=HOURS).bad == [], "where late rows are kept, none are bad"


def test_counts_of_parts_add_up_and_travel_as_text() -> None:
    one = Arrivals(partitions={"2013-01-03": Arrival(3, 5, 2, 10, 20)}, refused=1, first_refused="number 3")
    two = Arrivals(partitions={"2013-01-03": Arrival(5, 6, 1, 5, 11), "2013-01-04": Arrival(5, 6, 1, 7, 8)})
    tallies: list[Any] = [Tally(sequencer_id=0, start=3, end=6, arrivals=each) for each in (one, two)]
    total = Tally.parse(str(tallies[0])).add(Tally.parse(str(tallies[1])))
    assert total.arrivals == Arrivals(
        partitions={"2013-01-03": Arrival(3, 6, 3, 5, 20), "2013-01-04": Arrival(5, 6, 1, 7, 8)},
        refused=1,
        first_refused="number 3",
    )


def test_dates_are_whole_days() -> None:
    days = EventTimes(column="at", unit=Unit.DAY, max_ahead_ms=0)
    decoded = decode(row(1, "2013-01-03"), times=days, type_="date")
    start = milliseconds(datetime(2013, 1, 3, tzinfo=UTC))
    assert decoded.good.column("at").to_pylist() == [date(2013, 1, 3)]
    assert decoded.arrivals.partitions == {"2013-01-03": Arrival(100, 101, 1, start, start + 1)}
