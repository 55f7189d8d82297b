"""Names are quoted for Spark only where they must be, since stored declarations hold such text."""

from __future__ import annotations

import pytest

from tidemark.spark.quoting import quoted


@pytest.mark.parametrize("name", ["tailnum", "_time", "A1"])
def test_a_plain_name_stays(name: str) -> None:
    assert quoted(name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [("a b", "`a b`"), ("a.b", "`a.b`"), ("1st", "`1st`"), ("a`b", "`a``b`"), ("*", "`*`"), ("", "``")],
)
def test_any_other_name_is_in_backquotes(name: str, text: str) -> None:
    assert quoted(name) == text
