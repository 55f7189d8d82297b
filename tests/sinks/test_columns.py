"""Targets follow the columns of a collection by their identity."""

from __future__ import annotations

import pytest

from tests.support.sinks import sink_columns
from tidemark.errors import SchemaMismatch
from tidemark.sinks.columns import Evolution, evolve
from tidemark.sinks.progress import SinkColumn


def actual(*found: SinkColumn) -> dict[str, str]:
    return {column.name: str(column.type) for column in found}


BEFORE = sink_columns(a_1="int", b_2="string")


def test_the_same_columns_need_nothing() -> None:
    assert evolve(BEFORE, BEFORE, actual(*BEFORE), title="t").is_empty


def test_columns_are_added_renamed_and_widened_by_their_ids() -> None:
    after = sink_columns(b_1="bigint", c_2="string", d_3="date")
    found = evolve(BEFORE, after, actual(*BEFORE), title="t")
    assert found == Evolution(renamed=(("a", "b"), ("b", "c")), added=(after[2],), widened=(after[0],))


def test_a_dropped_column_stays() -> None:
    assert evolve(BEFORE, BEFORE[:1], actual(*BEFORE), title="t").kept == BEFORE[1:]


def test_a_dropped_column_stands_in_the_way_of_another_one_of_its_name() -> None:
    after = sink_columns(a_1="int", b_9="date")
    with pytest.raises(SchemaMismatch, match="still has a column 'b'"):
        evolve(BEFORE, after, actual(*BEFORE), title="t")
    assert evolve(BEFORE, after, actual(*BEFORE[:1]), title="t").added == after[1:], "somebody dropped it there"
