"""Rows of Arrow as JSON: what is made a column at a time is what Python's own encoder makes of each row."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.write_buffer.formats.arrow_rows import join_objects, json_columns, json_texts

KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.string(), st.text()),
    (pa.large_string(), st.text("aü€\N{GRINNING FACE}")),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.date32(), st.dates()),
    (pa.list_(pa.string()), st.lists(st.none() | st.text())),
    (pa.decimal128(5, 2), st.decimals(-9, 9, places=2)),
    (pa.binary(), st.binary()),
]


def line_of(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Return columns of some kinds, with NULLs, under any names."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    names = draw(st.lists(st.text(), min_size=len(kinds), max_size=len(kinds), unique=True))
    count = draw(st.integers(0, 4))
    columns = [
        pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), type_) for type_, values in kinds
    ]
    return pa.table(columns, names=names)


@given(tables())
def test_rows_are_written_as_by_python(rows: pa.Table) -> None:
    values = json_columns(rows)
    expected = [line_of(dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
    assert join_objects(json_texts(rows)).to_pylist() == expected


def test_values_that_json_lacks_are_texts() -> None:
    rows = pa.table(
        {
            "amount": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "day": pa.array([date(2013, 1, 2), None]),
            "at": pa.array([datetime(2013, 1, 2, 3, 4, 5, 6, UTC), None], pa.timestamp("us", "UTC")),
            "bytes": pa.array([b"\x00\xff", None]),
            "ratio": pa.array([math.inf, 0.5]),
            "plain": pa.array([0.1, None]),
            "nested": pa.array([{"a": [Decimal(1)]}, None], pa.struct({"a": pa.list_(pa.decimal128(3, 1))})),
        }
    )
    assert json_columns(rows) == {
        "amount": ["1.50", None],
        "day": ["2013-01-02", None],
        "at": ["2013-01-02T03:04:05.000006Z", None],
        "bytes": ["AP8=", None],
        "ratio": ["inf", 0.5],
        "plain": [0.1, None],
        "nested": [{"a": ["1.0"]}, None],
    }


@given(st.lists(st.none() | st.datetimes() | st.datetimes().map(lambda time: time.replace(microsecond=0))))
def test_times_are_texts_as_python_writes_them(times: list[datetime | None]) -> None:
    zoned = [None if time is None else time.replace(tzinfo=UTC) for time in times]
    days = [None if time is None else time.date() for time in times]
    rows = pa.table(
        {
            "local": pa.array(times, pa.timestamp("us")),
            "zoned": pa.array(zoned, pa.timestamp("us", "UTC")),
            "day": pa.array(days, pa.date32()),
        }
    )
    local = [None if time is None else time.isoformat() for time in times]
    assert json_columns(rows) == {
        "local": local,
        "zoned": [None if text is None else f"{text}Z" for text in local],
        "day": [None if day is None else day.isoformat() for day in days],
    }


def test_a_value_that_no_row_can_hold_names_its_column() -> None:
    rows = pa.table({"at": pa.array([-(10**17)], pa.timestamp("us"))})
    with pytest.raises(ValueError, match="column 'at' has a value that no row in a buffer can hold"):
        json_columns(rows)
