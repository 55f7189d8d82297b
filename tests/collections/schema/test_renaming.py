"""Renames are one mapping, whatever their order: each is made once, also after an apply that died."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.collections.schema.renaming import RENAMED, Renaming, plan_renames, refuse_if_pending
from tidemark.errors import CatalogOutOfSync, CorruptState

NOTHING = Renaming()
NAMES = st.sampled_from("abcde")


@pytest.mark.parametrize(
    ("renames", "present", "needed"),
    [
        ({"a": "c"}, "ab", {"a": "c"}),
        ({"a": "c"}, "abc", {}),  # done, and `a` is another column
        ({"a": "c"}, "bc", {}),
        ({"a": "b", "b": "c"}, "ab", {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, "bc", {}),
        ({"a": "b", "b": "c"}, "abc", {}),
        ({"a": "b", "b": "c"}, "ac", {"a": "b"}),
        ({"a": "b", "b": "a"}, "ab", {"a": "b", "b": "a"}),
        ({"a": "b", "b": "c", "c": "a", "d": "d"}, "abcd", {"a": "b", "b": "c", "c": "a"}),
        ({"a": "b", "b": "a", "d": "a"}, "abd", {"a": "b", "b": "a", "d": "a"}),  # refused later
    ],
)
def test_the_renames_that_are_needed_do_not_depend_on_their_order(
    renames: dict[str, str], present: str, needed: dict[str, str]
) -> None:
    for order in permutations(renames.items()):
        assert plan_renames(dict(order), present, registered={}, said=NOTHING).needed == needed


@given(st.dictionaries(NAMES, NAMES), st.sets(NAMES, min_size=1))
def test_what_is_made_is_done_whether_the_apply_died_or_registered(renames: dict[str, str], present: set[str]) -> None:
    """The table is there with the columns ``present``, each of which is known by the name that it began with."""
    found = plan_renames(renames, present, registered={}, said=NOTHING)
    new = [found.needed.get(name, name) for name in present]
    if len({*new}) < len(new):
        return  # two columns of one name: refused
    added = {*new, *renames.values()}
    died = plan_renames(renames, added, registered={}, said=found.said)
    assert (died.needed, died.moved, died.said) == ({}, found.moved, found.said)
    assert found.moved == {old: new for old, new in found.needed.items() if old != new}
    again = plan_renames(renames, added, registered=renames, said=found.said)
    assert (again.needed, again.moved, again.said) == ({}, {}, found.said)
    other = plan_renames({}, added, registered=renames, said=found.said)
    assert (other.needed, other.moved, other.said) == ({}, {}, NOTHING), "or it would be taken for one that died"


def test_a_circle_that_was_registered_is_made_again_only_if_it_was_left_out_in_between() -> None:
    swap = {"a": "b", "b": "a"}
    assert plan_renames(swap, "ab", registered=swap, said=NOTHING).needed == {}
    assert plan_renames({**swap, "c": "d"}, "abc", registered=swap, said=NOTHING).needed == {"c": "d"}
    assert plan_renames(swap, "ab", registered={"a": "b"}, said=NOTHING).needed == swap
    assert plan_renames(swap, "ab", registered=None, said=NOTHING).needed == {}, "the table was made with these names"


def test_an_apply_that_died_before_another_one_is_remembered() -> None:
    died = plan_renames({"a": "c"}, "ab", registered={}, said=NOTHING)
    after = plan_renames({"c": "d", "a": "e"}, "abc", registered={}, said=died.said)  # `a` is a new one
    assert after.needed == {"c": "d", "a": "e"}
    assert after.moved == {"a": "d"}
    back = plan_renames({"c": "a"}, "bc", registered={}, said=died.said)
    assert (back.moved, back.said) == ({}, NOTHING)


def test_names_that_mean_another_column_are_refused_until_the_declarations_are_stored() -> None:
    said = Renaming({"a": "c"}, {"a": "c"})
    properties = {RENAMED: str(said)}
    assert Renaming.read(properties) == said
    with pytest.raises(CatalogOutOfSync, match="'a' among them"):
        refuse_if_pending(["a"], properties, renames={}, collection="t")
    refuse_if_pending(["b", "c"], properties, renames={}, collection="t")
    refuse_if_pending(["a"], properties, renames={"a": "c"}, collection="t")
    refuse_if_pending(["a"], {}, renames={}, collection="t")
    with pytest.raises(CorruptState):
        Renaming.read({RENAMED: "{}"})
