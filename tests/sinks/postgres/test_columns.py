from __future__ import annotations

import pytest

from tests.support.sinks import sink_columns
from tidemark.errors import SchemaMismatch
from tidemark.sinks.targets.postgres.columns import check_fit, check_names

BEFORE = sink_columns(a_1="int", b_2="string")
ACTUAL = {"a": "integer", "b": "text"}


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
        check_fit(BEFORE, ACTUAL, with_times=True, title="t")
    check_fit(BEFORE, {**ACTUAL, "_time": "bigint", "_diff": "bigint"}, with_times=True, title="t")


@pytest.mark.parametrize("name", ["x" * 64, "ä" * 32, "xmin"])
def test_a_name_that_postgresql_cuts_or_has_for_itself_is_refused(name: str) -> None:
    column = BEFORE[0]._replace(name=name)
    with pytest.raises(SchemaMismatch, match="63 bytes"):
        check_names((column,), with_times=False, title="t")
    check_names((column._replace(name="x" * 63),), with_times=True, title="t")


def test_more_columns_than_a_table_may_have_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="1601 columns"):
        check_names(BEFORE[:1] * 1_599, with_times=True, title="t")
    check_names(BEFORE[:1] * 1_600, with_times=False, title="t")
