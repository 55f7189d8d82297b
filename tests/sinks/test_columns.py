"""Targets follow the columns of a collection by their identity."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.sinks import sink_columns
from tidemark.collections.schema.types import Type, fits
from tidemark.errors import SchemaMismatch
from tidemark.sinks import columns
from tidemark.sinks.columns import Evolution
from tidemark.sinks.progress import SinkColumn


def actual(*found: SinkColumn) -> dict[str, Type]:
    return {column.name: column.type for column in found}


BEFORE = sink_columns(a_1="int", b_2="string")
evolve = partial(columns.evolve, holds=lambda actual, wanted: fits(wanted, actual))


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


def test_a_dropped_column_stands_in_the_way_of_one_that_is_renamed_to_its_name() -> None:
    with pytest.raises(SchemaMismatch, match="still has a column 'b'"):
        evolve(BEFORE, sink_columns(b_1="int"), actual(*BEFORE), title="t")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (sink_columns(a_1="int"), "lacks 'b'"),
        (sink_columns(a_1="int", m_2="string"), "lacks 'b'"),
        (sink_columns(a_1="int", b_2="date"), "has with another type 'b'"),
    ],
)
def test_a_column_that_somebody_else_dropped_renamed_or_changed_is_refused_with_both_schemas(
    found: tuple[SinkColumn, ...], told: str
) -> None:
    with pytest.raises(SchemaMismatch, match=told) as caught:
        evolve(BEFORE, BEFORE, actual(*found), title="t")
    assert "the sink left it with (a int, b string)" in str(caught.value)


def test_a_column_that_somebody_else_widened_is_never_narrowed() -> None:
    wide = actual(*sink_columns(a_1="decimal(12,0)"))
    before, after = sink_columns(a_1="decimal(8,0)"), sink_columns(a_1="decimal(10,0)")
    assert evolve(before, after, wide, title="t").is_empty


def test_a_type_that_no_widening_leads_to_is_refused() -> None:
    before, after = sink_columns(a_1="struct<x:int>"), sink_columns(a_1="struct<x:int,y:int>")
    with pytest.raises(SchemaMismatch, match="another type 'a'"):
        evolve(before, after, actual(*before), title="t")
