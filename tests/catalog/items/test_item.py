from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tidemark.catalog.items.item import Change, Item, canonical_json, net

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@explore(40)
@given(JSON)
def test_the_text_is_canonical_and_reads_back(value: object) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    assert text.isascii(), "each database takes it as it is, even a lone surrogate"
    assert "\x00" not in text, "PostgreSQL refuses it"


def test_equal_values_are_equal_texts() -> None:
    one, two = {"b": [1, 2], "a": "ü"}, {"a": "ü", "b": [1, 2]}
    assert canonical_json(one) == canonical_json(two) == '{"a":"\\u00fc","b":[1,2]}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


def test_net_changes_leave_out_what_cancels_and_retract_first() -> None:
    a, b, c = Item("setting", "1", "1"), Item("setting", "2", "2"), Item("setting", "3", "3")
    changes = [Change(c, 1), Change(a, 1), Change(b, 1), Change(a, -1), Change(b, -2)]
    assert net(changes) == [Change(b, -1), Change(c, 1)]
