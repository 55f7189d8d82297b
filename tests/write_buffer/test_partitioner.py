"""The hash of a key never changes: other producers follow it, and rows of one key must stay together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError
from tidemark.write_buffer.formats.entry import Row
from tidemark.write_buffer.partitioner import KeyValue, Partitioner, hash_key, hash_keys

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("table", "values", "expected"),
    [
        ("weather", ["EWR", 1357034400000], 13856198734818662735),
        ("weather", ["JFK", 1357034400000], 13112789992603878440),
        ("weather", [], 17031934148030713718),
        ("weather", [None], 3023102233594715353),
        ("weather", [True], 9352056633058981255),
        ("weather", ["Zürich", -1], 6232054352565461500),
        ("weather", [0.1, 2**64], 11693402861191172673),
    ],
)
def test_golden_values(table: str, values: list[object], expected: int) -> None:
    assert hash_key(table, values) == expected  # type: ignore[arg-type]


def test_a_whole_number_is_one_key_whatever_its_type() -> None:
    assert hash_key("t", [7]) == hash_key("t", [7.0])
    assert hash_key("t", [0.0]) == hash_key("t", [-0.0])
    assert len({hash_key("t", [value]) for value in (1, True, "1", None, 1.5)}) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], {"a": 1}])
def test_what_cannot_be_compared_is_no_key(value: object) -> None:
    with pytest.raises(UsageError, match="cannot be a key"):
        hash_key("t", [value])  # type: ignore[list-item]


def test_a_table_without_a_key_is_refused() -> None:
    with pytest.raises(UsageError, match="no key is known for the table 'u'"):
        Partitioner({0}, {"t": ["a"]}).sequencer_of(Row("u", {"a": 1}))


@given(
    st.sets(st.integers(0, 2**31), min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), max_size=20),
)
def test_rows_of_one_key_never_spread_and_keep_their_order(ids: set[int], keys: list[tuple[str, int]]) -> None:
    rows = [Row("t", {"name": name, "day": day, "place": place}) for place, (name, day) in enumerate(keys)]
    parts = Partitioner(ids, {"t": ["name", "day"]}).split(rows)
    assert set(parts) <= ids
    assert sorted(row.values["place"] for part in parts.values() for row in part) == list(range(len(rows)))
    owners: dict[tuple[str, int], set[int]] = {}
    for sequencer_id, part in parts.items():
        places = [row.values["place"] for row in part]
        assert places == sorted(places)
        for row in part:
            owners.setdefault((row.values["name"], row.values["day"]), set()).add(sequencer_id)
    assert all(len(each) == 1 for each in owners.values())


def test_keys_are_spread_evenly() -> None:
    partitioner = Partitioner(range(4), {"t": ["id"]})
    counts = [0] * 4
    for number in range(4_000):
        counts[partitioner.sequencer_of(Row("t", {"id": number}))] += 1
    assert min(counts) > 900


@given(st.lists(st.tuples(KEYS, KEYS)), st.text())
def test_keys_are_hashed_alike_one_by_one_and_together(keys: list[tuple[KeyValue, KeyValue]], table: str) -> None:
    columns = [*zip(*keys, strict=True)] if keys else [(), ()]
    assert hash_keys(table, columns) == [hash_key(table, key) for key in keys]
