from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidemark.errors import Refused
from tidemark.sinks.reading.net_changes import net_by_key, order_updates

ROW = tuple[int | None, str | None, int, int]


def updates(*rows: ROW) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    types = (pa.int64(), pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(list(values), type_) for values, type_ in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["id", "name", "_time", "_diff"])


def net(*rows: ROW) -> tuple[list[int], list[tuple[int, str]]]:
    found = net_by_key(updates(*rows), ["id", "name"], ["id"], where="sink 'it'")
    upserts = zip(*found.upserts.to_pydict().values(), strict=True)
    return sorted(found.deletes["id"].to_pylist()), sorted(upserts)


def test_a_new_row_a_changed_row_and_a_row_that_is_gone() -> None:
    assert net((1, "a", 5, 1), (2, "a", 5, -1), (2, "b", 5, 1), (3, "c", 6, -1)) == ([3], [(1, "a"), (2, "b")])


def test_only_the_end_counts_whatever_happened_between() -> None:
    assert net((1, "a", 5, 1), (1, "a", 6, -1), (1, "b", 6, 1), (2, "x", 5, 1), (2, "x", 7, -1)) == ([], [(1, "b")])


def test_a_row_that_went_and_came_back_is_no_change() -> None:
    assert net((1, "a", 5, -1), (1, "a", 6, 1)) == ([], [])


def test_no_updates_are_no_changes() -> None:
    assert net() == ([], [])


def test_two_rows_of_one_key_are_refused_with_the_key() -> None:
    with pytest.raises(Refused, match="more than one row") as caught:
        net((1, "a", 5, 1), (1, "b", 5, 1))
    assert caught.value.sample == [{"id": 1}]


def test_a_null_in_the_key_is_refused() -> None:
    with pytest.raises(Refused, match="no value in the key column 'id'"):
        net((None, "a", 5, 1))


def test_updates_are_in_order_retractions_first_and_equal_ones_summed() -> None:
    found = order_updates(updates((1, "b", 5, 1), (1, "a", 5, -1), (1, "a", 4, 1), (1, "a", 4, 1)), ["id", "name"])
    assert list(zip(*found.to_pydict().values(), strict=True)) == [(1, "a", 4, 2), (1, "a", 5, -1), (1, "b", 5, 1)]


def test_net_changes_applied_to_the_rows_before_are_the_rows_after() -> None:
    chance = random.Random(15)  # noqa: S311 - no secret
    rows: dict[int, str] = {}
    for _ in range(200):
        before, log = dict(rows), list[ROW]()
        for time in range(chance.randrange(1, 4)):
            for id_ in chance.sample(range(6), 3):
                old, new = rows.get(id_), chance.choice(["a", "b", None])
                log += [(id_, old, time, -1)] if old is not None else []
                log += [(id_, new, time, 1)] if new is not None else []
                rows.pop(id_, None)
                rows |= {id_: new} if new is not None else {}
        deletes, upserts = net(*log)
        assert {key: value for key, value in before.items() if key not in deletes} | dict(upserts) == rows
