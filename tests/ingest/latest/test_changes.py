"""Of all changes of a key the last one stays, however they arrive, and keys are found among any rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tidemark.iceberg.files.key_index import ABSENT, KeyIndex
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.ingest.latest.changes import Changes, Folding, keep_last
from tidemark.ingest.latest.corrections import TouchedRows, correct

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.float64()), (DIFF, pa.int64())])
KEY = ("a", "b")
VALUES = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan])
ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz"), VALUES, st.sampled_from([1, -1])), max_size=30)
Rows = list[tuple[Any, ...]]


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def tuples(rows: pa.Table) -> list[str]:
    """As texts: NaN equals nothing."""
    return [repr(tuple(row.values())) for row in rows.to_pylist()]


@given(rows=ROWS, cuts=st.lists(st.integers(0, 30), max_size=4), fold_rows=st.integers(1, 9))
@explore(50)
def test_the_last_change_of_each_key_stays(rows: Rows, cuts: list[int], fold_rows: int) -> None:
    folding = Folding(KEY, fold_rows)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
        folding.add(table(rows[start:end]))
    last = folding.last()
    wanted = {row[:2]: row for row in rows}
    assert sorted(tuples(last) if last else []) == sorted(repr(row) for row in wanted.values())


def test_what_has_each_key_once_stays_as_it_is() -> None:
    rows = table([(1, "x", 1.0, 1), (2, "x", 1.0, -1)])
    assert keep_last(rows, KEY).equals(rows)


@given(indexed=ROWS, rows=ROWS)
@explore(50)
def test_an_index_finds_its_keys_and_no_others(indexed: Rows, rows: Rows) -> None:
    index, numbers = KeyIndex.of(table(indexed), KEY)
    known = {row[:2]: number for row, number in zip(indexed, numbers, strict=True)}
    assert len(known) == index.count == len(set(known.values()))
    places, found = index.find(table(rows))
    wanted = [(place, known[row[:2]]) for place, row in enumerate(rows) if row[:2] in known]
    assert list(zip(places.tolist(), found.tolist(), strict=True)) == wanted


def test_zeros_and_what_is_no_number_are_keys_like_others() -> None:
    schema = pa.schema([("k", pa.float64())])
    rows = pa.table({"k": [0.0, -0.0, math.nan, 1.0]}, schema=schema)
    index, numbers = KeyIndex.of(rows, ["k"])
    assert (index.count, numbers[0] == numbers[1]) == (3, True)
    assert index.find(pa.table({"k": [math.nan, -0.0, 2.0]}, schema=schema))[0].tolist() == [0, 1]


def equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))


@given(stored=ROWS, arrived=ROWS)
@explore(100)
def test_corrections_make_the_stored_rows_what_the_changes_leave(stored: Rows, arrived: Rows) -> None:
    before = {row[:2]: row for row in stored if row[3] == 1}
    changes = Changes.of({0: keep_last(table(arrived), KEY)}, SCHEMA, KEY)
    old = table(list(before.values()))
    places, keys = changes.index.find(old)
    touched = TouchedRows(old.take(pa.array(places)), keys, np.zeros(len(keys), np.int64), places, ("f",))
    corrections = correct(changes, touched, KEY)
    after = dict(before)
    for row in touched.rows.take(pa.array(corrections.retracted)).to_pylist():
        del after[row["a"], row["b"]]
    for row in changes.rows.take(pa.array(corrections.added)).to_pylist():
        assert (row["a"], row["b"]) not in after
        after[row["a"], row["b"]] = tuple(row.values())
    wanted = dict(before)
    for row in arrived:
        wanted.pop(row[:2], None)
        if row[3] == 1:
            wanted[row[:2]] = row
    assert after.keys() == wanted.keys()
    assert all(equal(after[key][2], wanted[key][2]) for key in wanted)
    moved = {(row["a"], row["b"]) for row in touched.rows.take(pa.array(corrections.retracted)).to_pylist()}
    assert all(key not in wanted or not equal(before[key][2], wanted[key][2]) for key in moved), "no change for nothing"


def test_a_key_is_of_its_stored_row_or_of_the_smallest_sequencer() -> None:
    rows = {2: table([(1, "x", 1.0, 1), (2, "x", 1.0, 1)]), 1: table([(1, "x", 2.0, 1), (3, "x", 2.0, 1)])}
    changes = Changes.of(rows, SCHEMA, KEY)
    assert changes.find_owners(np.full(3, ABSENT))[changes.keys].tolist() == [1, 2, 1, 1]
    assert changes.find_owners(np.full(3, 7))[changes.keys].tolist() == [7, 7, 7, 7]


def test_no_changes_are_no_corrections() -> None:
    changes = Changes.of({}, SCHEMA, KEY)
    assert (changes.rows.num_rows, changes.index.count) == (0, 0)
    none = np.zeros(0, np.int64)
    assert correct(changes, TouchedRows(SCHEMA.empty_table(), none, none, none, ()), KEY).is_empty
