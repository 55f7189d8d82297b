"""From messages to entries to rows: what is understood, what is put aside, and with which reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import (
    BadMessage,
    BadReason,
    Entry,
    EntryFormat,
    Message,
    Row,
    Sequence,
    SequencedEntry,
    find_header,
    parse_content_type,
    read_message,
)
from tidemark.write_buffer.formats.json_rows import decode_json_rows, encode_json_rows
from tidemark.write_buffer.formats.line_protocol import decode_line_protocol, encode_line_protocol, split_lines

AT = Sequence(3, 14)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec="utf-8"))
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "understood"),
    [
        ("application/x-ndjson; version=1", EntryFormat.JSON_ROWS),
        ("application/json", EntryFormat.JSON_ROWS),
        ("Application/JSON;charset=UTF-8", EntryFormat.JSON_ROWS),
        ('application/vnd.influxdata.line-protocol; version="1"', EntryFormat.LINE_PROTOCOL),
        ("application/x-ndjson; version=2", None),
        ("application/x-ndjson; charset=latin-1", None),
        ("application/x-protobuf", None),
        ("", None),
    ],
)
def test_a_content_type_names_format_and_version(text: str, understood: EntryFormat | None) -> None:
    assert parse_content_type(text) is understood


@pytest.mark.parametrize("each", EntryFormat)
def test_what_is_written_is_understood(each: EntryFormat) -> None:
    assert parse_content_type(each.value) is each
    entry = Entry(b"x", each, (("a", b"1"),))
    assert read_message(AT, Message.of(entry, 129)) == SequencedEntry(AT, 129, entry)


@pytest.mark.parametrize(
    ("message", "reason", "detail"),
    [
        (Message(None, (), 1), BadReason.PAYLOAD_MISSING, "Payload missing"),
        (Message(b"{}", (), None), BadReason.TIMESTAMP_MISSING, "Timestamp missing"),
        (Message(b"{}", (("content-type", b"text/x"),), 1), BadReason.FORMAT_UNKNOWN, "Unknown message format: text/x"),
        (Message(b"", (("content-type", b"\xff"),), 1), BadReason.FORMAT_UNKNOWN, "Unknown message format: \ufffd"),
    ],
)
def test_a_bad_message_says_why_and_keeps_its_bytes(message: Message, reason: BadReason, detail: str) -> None:
    assert read_message(AT, message) == BadMessage(AT, message, reason, detail)


def test_a_missing_content_type_is_the_default_format() -> None:
    delivered = read_message(AT, Message(b"{}", (), 1))
    assert isinstance(delivered, SequencedEntry)
    assert delivered.entry.format is EntryFormat.JSON_ROWS


def test_header_names_have_no_case_and_the_last_one_counts() -> None:
    headers = (("Content-Type", b"text/x"), ("X", b"1"), ("content-TYPE", b"application/json"), ("x", b"2"))
    assert find_header(headers, "x") == b"2"
    assert find_header(headers, "y") is None
    delivered = read_message(AT, Message(b"{}", headers, 1))
    assert isinstance(delivered, SequencedEntry)
    assert delivered.entry.headers == (("X", b"1"), ("x", b"2")), "the content type is the format now"


@given(st.lists(st.dictionaries(NAMES.filter(lambda name: name != "_table"), JSON_VALUES, max_size=4), max_size=5))
def test_json_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    decoded = decode_json_rows(encode_json_rows(rows, table="t").payload, default_table="t")
    assert decoded.good == tuple(Row("t", row) for row in rows)
    assert not decoded.bad


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_bad_rows(payload: bytes) -> None:
    for rows in (decode_json_rows(payload, default_table=None), decode_line_protocol(payload, default_time_ns=0)):
        for bad in rows.bad:
            assert bad.raw in payload
        for row in rows.good:
            json.dumps(row.values, ensure_ascii=False).encode()


def test_an_entry_has_rows_of_several_tables() -> None:
    rows = [{"_table": "weather", "temp": 1}, {"temp": 2}, {"_table": "flights", "delay": None}]
    sequenced = SequencedEntry(AT, 5, encode_json_rows(rows, table="rest"))
    assert decode_entry(sequenced).good == (
        Row("weather", {"temp": 1}),
        Row("rest", {"temp": 2}),
        Row("flights", {"delay": None}),
    )


def test_the_table_of_the_entry_comes_before_that_of_the_reader() -> None:
    named = SequencedEntry(AT, 5, encode_json_rows([{"a": 1}], table="of the entry"))
    unnamed = SequencedEntry(AT, 5, encode_json_rows([{"a": 1}]))
    assert decode_entry(named, default_table="of the reader").good[0].table == "of the entry"
    assert decode_entry(unnamed, default_table="of the reader").good[0].table == "of the reader"
    assert [bad.reason for bad in decode_entry(unnamed).bad] == [BadReason.TABLE_MISSING]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not a JSON object: Expecting"),
        (b"[1]", "not a JSON object but list"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": -Infinity}', "-Infinity is no JSON"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"a": "\xff"}', "invalid start byte"),
        (b"[" * 100_000, "recursion"),
        (b'{"_table": 5}', "names no table"),
    ],
)
def test_a_bad_json_row_leaves_the_good_ones(line: bytes, says: str) -> None:
    decoded = decode_json_rows(b'{"a":1}\n' + line + b'\r\n\n{"a":2}', default_table="t")
    assert decoded.good == (Row("t", {"a": 1}), Row("t", {"a": 2}))
    (bad,) = decoded.bad
    assert bad.raw == line + b"\r"
    assert says in bad.detail


def test_one_row_over_several_lines_is_one_row() -> None:
    assert decode_json_rows(b'{\n  "a": 1\n}\n', default_table="t").good == (Row("t", {"a": 1}),)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_a_row_that_is_no_json_cannot_be_written(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode_json_rows([{"a": value}])


def test_points_become_rows_with_tags_fields_and_time() -> None:
    lines = [
        'weather,origin=EWR,sky=clear temp=39.5,gust=17i,rain=f,note="a, \\"b\\" = c" 1357034400000000001',
        "# a comment",
        "",
        "my\\ table,a\\ b=c\\,d value=1u",
    ]
    rows = decode_entry(SequencedEntry(AT, 129, encode_line_protocol(lines)))
    assert not rows.bad
    values = {"origin": "EWR", "sky": "clear", "temp": 39.5, "gust": 17, "rain": False, "note": 'a, "b" = c'}
    assert rows.good == (
        Row("weather", values | {"time": 1357034400000000001}),
        Row("my table", {"a b": "c,d", "value": 1, "time": 129_000_000}),
    )


@pytest.mark.parametrize(
    "line",
    [
        b"weather",
        b"weather temp=",
        b"weather temp=1 noon",
        b"weather temp=9223372036854775808i",
        b"weather,temp=1 temp=2",
        b"weather time=1",
        b'weather note="never closed',
        b"weather temp=\xff",
        b"weather temp=1\\",
    ],
)
def test_a_bad_point_leaves_the_good_ones(line: bytes) -> None:
    rows = decode_line_protocol(b"a x=1 1\n" + line + b"\na x=2 2\n", default_time_ns=0)
    assert [row.values for row in rows.good] == [{"x": 1, "time": 1}, {"x": 2, "time": 2}]
    assert [(bad.raw, bad.reason) for bad in rows.bad] == [(line, BadReason.ROW_UNREADABLE)]


def escape(text: str, special: str) -> str:
    return "".join(f"\\{char}" if char in special else char for char in text)


PLAIN = st.characters(codec="utf-8", exclude_characters="\\#", exclude_categories=("Cc",))
TEXT = st.text(PLAIN, min_size=1, max_size=6)
QUOTED = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(TEXT, TEXT, QUOTED, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=4))
def test_points_of_any_text_are_split_and_read(points: list[tuple[str, str, str, int]]) -> None:
    lines, rows = [], []
    for measurement, tag, note, count in points:
        quoted = note.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{escape(measurement, ", ")},k={escape(tag, ",= ")} note="{quoted}",count={count}i 7')
        rows.append(Row(measurement, {"k": tag, "note": note, "count": count, "time": 7}))
    payload = "\n".join(lines)
    assert list(split_lines(payload)) == lines
    decoded = decode_line_protocol(payload.encode(), default_time_ns=0)
    assert decoded.good == tuple(rows)


@given(st.text(st.sampled_from('ab,= "\\\n#i1'), max_size=40))
def test_splitting_loses_no_text(text: str) -> None:
    assert "".join("".join(split_lines(text)).split()) == "".join(text.split())
    if '"' not in text:
        assert list(split_lines(text)) == [line for line in text.split("\n") if line.strip()]
