from __future__ import annotations

import pytest

from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import SchemaMismatch
from tidemark.sinks.progress import SinkColumn
from tidemark.sinks.targets.postgres.columns import Evolution, check_fit, evolve, postgres_type


def columns(**types: str) -> tuple[SinkColumn, ...]:
    """Columns as ``NAME_ID=type``."""
    return tuple(
        SinkColumn(int(name.split("_")[1]), name.split("_")[0], parse_columns(f"c {type_}")[0].type)
        for name, type_ in types.items()
    )


def actual(*found: SinkColumn) -> dict[str, str]:
    return {column.name: postgres_type(column.type) for column in found}


BEFORE = columns(a_1="int", b_2="string")


def test_the_same_columns_need_nothing() -> None:
    assert evolve(BEFORE, BEFORE, actual(*BEFORE), title="t").is_empty


def test_columns_are_added_renamed_and_widened_by_their_ids() -> None:
    after = columns(b_1="bigint", c_2="string", d_3="date")
    found = evolve(BEFORE, after, actual(*BEFORE), title="t")
    assert found == Evolution(renamed=(("a", "b"), ("b", "c")), added=(after[2],), widened=(after[0],))


def test_a_dropped_column_stays() -> None:
    assert evolve(BEFORE, BEFORE[:1], actual(*BEFORE), title="t").kept == BEFORE[1:]


def test_a_dropped_column_stands_in_the_way_of_another_one_of_its_name() -> None:
    after = columns(a_1="int", b_9="date")
    with pytest.raises(SchemaMismatch, match="still has a column 'b'"):
        evolve(BEFORE, after, actual(*BEFORE), title="t")
    assert evolve(BEFORE, after, actual(*BEFORE[:1]), title="t").added == after[1:], "somebody dropped it there"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"a": "integer"}, "lacks 'b'"),
        ({"a": "integer", "b": "text", "z": "date"}, "has besides 'z'"),
        ({"a": "text", "b": "text"}, "has with another type 'a'"),
        ({"a": "smallint", "b": "text"}, "has with another type 'a'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_both_schemas(found: dict[str, str], told: str) -> None:
    with pytest.raises(SchemaMismatch, match=told) as caught:
        check_fit(BEFORE, found, with_times=False, title="t")
    assert "a integer, b text" in str(caught.value)


def test_a_table_of_wider_types_fits() -> None:
    check_fit(BEFORE, {"a": "bigint", "b": "character varying"}, with_times=False, title="t")


def test_changes_need_the_columns_of_changes() -> None:
    with pytest.raises(SchemaMismatch, match="'_time', '_diff'"):
        check_fit(BEFORE, actual(*BEFORE), with_times=True, title="t")
    check_fit(BEFORE, {**actual(*BEFORE), "_time": "bigint", "_diff": "bigint"}, with_times=True, title="t")
