"""Messages become the rows of one collection; both ways of decoding give the same, and nothing bad is lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.ingest import messages as message_rows
from tidemark.ingest.messages import COLUMNS, WHOLE_MESSAGE, DecodedRows, RowDecoder
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.formats.entry import Delivered, EntryFormat, Message, Sequence, read_message

TYPES = {"a": pa.int64(), "b": pa.string(), "at": pa.timestamp("us", "UTC"), "f": pa.float64(), "day": pa.date32()}
KINDS = pa.schema(TYPES.items())
HEADERS = {
    "json": (),
    "table": (("tidemark-table", b"t"),),
    "points": (("content-type", EntryFormat.LINE_PROTOCOL.encode()),),
    "unknown": (("content-type", b"application/x-new"),),
}


def batch(*payloads: bytes | None, headers: str = "json") -> pa.RecordBatch:
    delivered: list[Delivered] = [
        read_message(Sequence(0, 100 + number), Message(payload, HEADERS[headers], 5_000))
        for number, payload in enumerate(payloads)
    ]
    return MessageColumns(0, COLUMNS).batch_of(delivered)


def decode(messages: pa.RecordBatch, table: str | None = None) -> DecodedRows:
    return RowDecoder(KINDS, table).decode(messages)


def found(decoded: DecodedRows) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in decoded.good.to_pylist()]


def bad(decoded: DecodedRows) -> list[tuple[int, int, str, bytes | None]]:
    return [(bad.number, bad.place, bad.row.reason, bad.row.raw) for bad in decoded.bad]


@pytest.mark.parametrize("joined", [False, True])
def test_good_rows_of_an_entry_are_kept(joined: bool) -> None:  # noqa: FBT001
    lines = [b'{"a":1,"b":"x","at":"2013-01-01T05:00:00Z"}', b'{"a":"no","b":"y"}', b'{"a":', b'{"a":2,"new":[{}]}']
    decoded = decode(batch(b"\n".join(lines)) if joined else batch(*lines))
    assert found(decoded) == [{"a": 1, "b": "x", "at": datetime(2013, 1, 1, 5, tzinfo=UTC)}, {"a": 2}]
    assert sorted((reason, raw) for _, _, reason, raw in bad(decoded)) == [
        ("row-unreadable", lines[2]),
        ("row-unreadable", lines[1]),
    ]
    details = " ".join(bad.row.detail for bad in decoded.bad)
    assert "column 'a': 'no' is no bigint" in details
    assert [row.number for row in decoded.bad] == ([100, 100] if joined else [102, 101])
    assert len({(row.number, row.place) for row in decoded.bad}) == 2


def test_messages_that_are_no_entries_are_put_aside_whole() -> None:
    assert bad(decode(batch(None))) == [(100, WHOLE_MESSAGE, "payload-missing", None)]
    assert bad(decode(batch(b"x", headers="unknown"))) == [(100, WHOLE_MESSAGE, "format-unknown", b"x")]


def test_rows_are_routed_by_their_table() -> None:
    rows = [b'{"a":1,"_table":"t"}', b'{"a":2,"_table":"u"}', b'{"a":3}']
    decoded = decode(batch(*rows), "t")
    assert (found(decoded), decoded.other_tables) == ([{"a": 1}], 1)
    assert bad(decoded) == [(102, 0, "table-missing", rows[2])]
    decoded = decode(batch(*rows, headers="table"), "t")
    assert (found(decoded), decoded.other_tables, decoded.bad) == ([{"a": 1}, {"a": 3}], 1, [])
    decoded = decode(batch(*rows))
    assert (found(decoded), decoded.bad) == ([{"a": 1}, {"a": 2}, {"a": 3}], [])


@pytest.mark.parametrize("opened", [b"[", b'{"z":'])
def test_a_row_that_is_nested_without_end_is_put_aside(opened: bytes) -> None:
    closed = {b"[": b"]"}.get(opened, b"}")
    endless = b'{"z":' + opened * 50_000 + b"1" + closed * 50_000 + b"}"  # would end the process in Arrow's parser
    decoded = decode(batch(b'{"a":1}', endless, b'{"a":2}'))
    assert found(decoded) == [{"a": 1}, {"a": 2}]
    assert bad(decoded) == [(101, 0, "row-unreadable", endless)]


def test_bytes_are_base64() -> None:
    lines = [b'{"b":"AP8=","m":{"k":"IHkg"}}', b'{"b":" x "}', b'{"b":"AP8"}']
    schema = pa.schema([("b", pa.binary()), ("m", pa.map_(pa.string(), pa.binary()))])
    decoded = RowDecoder(schema).decode(batch(*lines))
    assert decoded.good.to_pylist() == [{"b": b"\0\xff", "m": [("k", b" y ")]}]
    assert [raw for _, _, _, raw in bad(decoded)] == lines[1:]


def test_points_are_rows() -> None:
    decoded = decode(batch(b"t,b=x a=1i,f=2.5 7\nu a=1i 7\nt a=", headers="points"), "t")
    assert (found(decoded), decoded.other_tables) == ([{"a": 1, "b": "x", "f": 2.5}], 1)
    assert bad(decoded) == [(100, 2, "row-unreadable", b"t a=")]


LINES = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.one_of(st.none(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.floats(), st.booleans()),
            "b": st.one_of(st.none(), st.text(max_size=3), st.integers()),
            "at": st.one_of(st.none(), st.datetimes().map(datetime.isoformat), st.sampled_from(["x", 5])),
            "f": st.one_of(st.none(), st.floats(), st.integers(-(2**60), 2**60)),
            "_table": st.sampled_from(["t", "u", "", 5, None]),
            "other": st.one_of(st.integers(), st.lists(st.integers(), max_size=2), st.just({"x": {}})),
        },
    ).map(lambda row: json.dumps(row, ensure_ascii=False)),
    st.sampled_from(
        ['{"a":1}{"a":2}', '{"a":1,"a":2}', '{"z":1,"z":2}', '{"z":{"q":1,"q":1}}', "{}", " {}", "", "[1]", "{", "}",
         '{"b":"\\ud800"}', '{"f":1e999}', '{"f":NaN}', '{"z":-Inf}', '{"z":[Inf]}', '{"day":"0000-01-01"}',
         '{"day":"99999-01-01"}', '{"b":"a\tb"}', '{"a":01}', '{"a":-0}', "\ufeff{}", '{"a":1} '],
    ),
)  # fmt: skip


@pytest.mark.parametrize("line", [b'{"day":"0000-01-01"}', b'{"day":"99999-01-01"}', b'{"at":"0000-12-31T00:00:00"}'])
def test_days_and_times_that_nobody_can_show_are_put_aside(line: bytes) -> None:
    assert bad(decode(batch(line))) == [(100, 0, "row-unreadable", line)]


@pytest.mark.parametrize("line", [b'{"a":1.5}', b'{"a":-0.5}', b'{"n":1.5}', b'{"l":[1.5]}', b'{"s":1e39}'])
def test_numbers_are_not_cut(line: bytes) -> None:
    kinds = pa.schema([("a", pa.int64()), ("n", pa.int32()), ("l", pa.list_(pa.int64())), ("s", pa.float32())])
    assert bad(RowDecoder(kinds).decode(batch(line))) == [(100, 0, "row-unreadable", line)]


@given(
    st.lists(LINES, min_size=1, max_size=4),
    st.sampled_from([None, "t"]),
    st.sampled_from(["json", "table"]),
    st.integers(0, 4),
)
def test_both_ways_of_decoding_agree(lines: list[str], table: str | None, headers: str, split: int) -> None:
    raws = [line.encode("utf-8", "surrogatepass") for line in lines]
    messages = batch(*([b"\n".join(raws[:split])] if split else []), *raws[split:], headers=headers)
    decoder = RowDecoder(KINDS, table)
    quick = decoder._decode_lines(messages)
    slow = decoder._decode_one_by_one(messages)
    if quick is not None:
        assert str(quick.good.to_pylist()) == str(slow.good.to_pylist())
        assert sorted(bad(quick)) == sorted(bad(slow))
        assert quick.other_tables == slow.other_tables


def test_ordinary_messages_are_decoded_a_column_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rows.RowDecoder, "_decode_one_by_one", None)
    lines = [json.dumps({"a": n, "b": "x", "at": "2013-01-01 05:00:00", "f": 1}).encode() for n in range(50)]
    assert decode(batch(*lines)).good.num_rows == 50
    assert decode(batch(b"\n".join(lines) + b"\n", b"", *lines)).good.num_rows == 100


def test_one_bad_message_does_not_slow_all_down(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    one_by_one = message_rows.RowDecoder._decode_one_by_one

    def count(decoder: RowDecoder, messages: pa.RecordBatch) -> DecodedRows:
        slow.append(len(messages))
        return one_by_one(decoder, messages)

    monkeypatch.setattr(message_rows.RowDecoder, "_decode_one_by_one", count)
    lines = [b'{"a":%d}' % n for n in range(4_000)]
    lines[1_700] = b"{"
    decoded = decode(batch(*lines))
    assert [row["a"] for row in decoded.good.to_pylist()] == [n for n in range(4_000) if n != 1_700]
    assert bad(decoded) == [(1_800, 0, "row-unreadable", b"{")]
    assert sum(slow) < 600


@pytest.mark.parametrize("large", [False, True])
def test_rows_that_are_left_out_are_neither_good_nor_bad(*, large: bool) -> None:
    mixed = b'{"a":1}\n{"a":"no"}\n\n{"a":3}\n{'
    others = [b'{"a":9}'] * (600 if large else 1)
    messages = batch(mixed, None, b'{"a":4}\n{"a":5}', *others)
    whole = decode(messages)
    assert bad(whole) == [
        (100, 3, "row-unreadable", b"{"),
        (101, WHOLE_MESSAGE, "payload-missing", None),
        (100, 1, "row-unreadable", b'{"a":"no"}'),
    ]
    places = frozenset({(100, 1), (100, 2), (100, 3), (101, WHOLE_MESSAGE), (102, 0), (999, 0)})
    left = RowDecoder(KINDS, without=places).decode(messages)
    assert (found(left)[:2], len(found(left)), left.bad) == ([{"a": 1}, {"a": 5}], 2 + len(others), [])
