from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.catalog.items_of import collection_item, initialised, setting_item
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import COLLECTION, TOMBSTONE, config_item
from tidemark.errors import CorruptState

ITEMS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy")).map(
    lambda found: Contents(setting_item(*pair) for pair in found.items())
)


@given(ITEMS, ITEMS)
def test_the_difference_leads_from_one_to_the_other(stored: Contents, wanted: Contents) -> None:
    changed = stored.copy()
    assert changed.apply(stored.difference(wanted)) == len(set(stored) ^ set(wanted))
    assert changed == wanted
    assert (changed.digest(), changed.counts(), list(changed)) == (wanted.digest(), wanted.counts(), list(wanted))
    assert (stored == wanted) is (stored.digest() == wanted.digest()), "the copy did not change the original"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([Change(setting_item("a", "x"), 1)], "unexpected multiplicity 2"),
        ([Change(setting_item("a", "y"), 1)], "duplicate keys"),
        ([Change(setting_item("a", "y"), -1)], "unexpected multiplicity -1"),
        ([Change(setting_item("a", "x"), -2)], "unexpected multiplicity -1"),
        ([Change(setting_item("b", "x"), 2)], "unexpected multiplicity 2"),
        ([Change(setting_item("b", "x"), 1), Change(setting_item("b", "y"), 1)], "duplicate keys"),
        ([Change(setting_item("c", "x"), -1)], "unexpected multiplicity -1"),
    ],
)
def test_contents_that_contradict_themselves_are_refused_whole(changes: list[Change], message: str) -> None:
    contents = Contents([setting_item("a", "x")])
    with pytest.raises(CorruptState, match=message):
        contents.apply([Change(setting_item("z", "z"), 1), *changes])
    assert list(contents) == [setting_item("a", "x")]


def test_a_value_may_be_replaced_in_any_order() -> None:
    contents = Contents([setting_item("a", "x")])
    contents.apply([Change(setting_item("a", "y"), 1), Change(setting_item("a", "x"), -1)])
    assert list(contents) == [setting_item("a", "y")]


def test_items_that_come_twice_are_refused() -> None:
    with pytest.raises(CorruptState, match="unexpected multiplicity 2"):
        Contents([setting_item("a", "x"), setting_item("a", "x")])


def test_who_holds_what_is_unique_is_kept_up() -> None:
    contents = Contents([collection_item("a", 1), collection_item("b", 2)])
    assert (contents.holder(COLLECTION, "id", 1), contents.holder(COLLECTION, "id", 3)) == ('{"name":"a"}', None)
    exchanged = [(collection_item("a", 1), -1), (collection_item("b", 2), -1)]
    exchanged += [(collection_item("a", 2), 1), (collection_item("b", 1), 1), (collection_item("c", 3), 1)]
    contents.apply(Change(*change) for change in exchanged)
    assert [contents.holder(COLLECTION, "id", number) for number in (1, 2, 3)] == [
        '{"name":"b"}',
        '{"name":"a"}',
        '{"name":"c"}',
    ]
    contents.apply([Change(collection_item("c", 3), -1)])
    assert contents.holder(COLLECTION, "id", 3) is None


def test_config_is_read_by_its_plain_key() -> None:
    plain = initialised(setting_item("a", "x"))
    marked = plain.copy()
    marked.apply([Change(config_item(TOMBSTONE, 1), 1)])
    assert (plain.config(TOMBSTONE), marked.config(TOMBSTONE)) == (None, 1)
    assert marked != plain


def test_texts_do_not_run_together_in_the_digest() -> None:
    assert Contents([setting_item("ab", "c")]).digest() != Contents([setting_item("a", "bc")]).digest()
    assert Contents().digest() != Contents([setting_item("a", "x")]).digest()
