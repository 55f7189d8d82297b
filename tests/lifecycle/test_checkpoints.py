"""The tables of the reference, 5.2: ranges, the order of checkpoints, and how they are put together."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.lifecycle.ranges import Bounds, checkpoint, span, spans, written
from tidemark.lifecycle.checkpoints import NumberRange, PartitionCheckpoint, combine, fold, numbers_json, parse_numbers

LATER, EARLIER, EQUAL, NONE = (True, False), (False, True), (True, True), (False, False)


def test_getters_and_display_of_a_range() -> None:
    some, nothing = span(10, 20), span(None, 20)
    assert (some.start, some.end, some.is_empty, str(some)) == (10, 21, False, "[10, 21)")
    assert (nothing.start, nothing.end, nothing.is_empty, str(nothing)) == (21, 21, True, "[21, 21)")


def test_equal_values_are_a_range_of_one_number() -> None:
    assert not span(10, 10).is_empty


@pytest.mark.parametrize("bounds", [(3, 2), (-1, 2)])
def test_a_range_in_the_wrong_order_is_a_bug(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="negative or reversed"):
        NumberRange(*bounds)


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        ((None, 1), (None, 1), EQUAL),
        ((1, 2), (1, 2), EQUAL),
        ((None, 0), (None, 1), EARLIER),
        ((None, 1), (1, 1), LATER),  # all of 1 is persisted, not only a part
        ((0, 1), (1, 1), EARLIER),
        ((1, 1), (0, 2), NONE),
    ],
)
def test_opt_min_max_partial_cmp(one: Bounds, other: Bounds, order: tuple[bool, bool]) -> None:
    assert (span(*one).covers(span(*other)), span(*other).covers(span(*one))) == order


def test_partition_checkpoint() -> None:
    point = checkpoint({1: (10, 20), 2: (None, 5)}, until_ms=77)
    assert PartitionCheckpoint.from_json(point.partition, point.to_json()) == point
    assert point.to_json() == {"numbers": {"1": [10, 21], "2": [6, 6]}, "until": 77}


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        ({1: (15, 20)}, {1: (15, 20)}, EQUAL),
        ({1: (15, 20), 2: (1, 2)}, {1: (15, 20)}, LATER),
        ({1: (15, 20), 2: (1, 2)}, {1: (15, 20), 3: (1, 2)}, NONE),
        ({1: (None, 0)}, {1: (None, 1)}, EARLIER),
        ({1: (1, 1)}, {1: (0, 2)}, NONE),
        ({1: (10, 20), 2: (1, 1)}, {1: (11, 20)}, NONE),  # earlier numbers, and another sequencer
    ],
)
def test_partition_checkpoint_partial_cmp(
    one: dict[int, Bounds], other: dict[int, Bounds], order: tuple[bool, bool]
) -> None:
    first, second = checkpoint(one, until_ms=5), checkpoint(other, until_ms=9)
    assert (first.covers(second), second.covers(first)) == order, "times do not order them: late rows move them back"


def test_checkpoints_of_two_partitions_have_no_order() -> None:
    one, other = checkpoint({1: (0, 1)}), checkpoint({1: (0, 1)}, partition="2013-01-01T01")
    assert (one.covers(other), other.covers(one)) == NONE


def test_database_checkpoint() -> None:
    database = combine([spans({2: (5, 15), 1: (10, 20)}), spans({3: (None, 7)})])
    assert [*database] == [1, 2, 3], "in the order of sequencers, however partitions name them"
    assert (database[1], database[3], database.get(4)) == (NumberRange(10, 21), NumberRange(8, 8), None)
    assert numbers_json(database) == {"1": [10, 21], "2": [5, 16], "3": [8, 8]}
    assert parse_numbers(numbers_json(database)) == database


@pytest.mark.parametrize(
    ("one", "other", "folded"),
    [
        ({0: (10, 20)}, {0: (11, 21)}, {0: (11, 21)}),
        ({0: (10, 21)}, {0: (11, 20)}, {0: (11, 21)}),
        ({0: (None, 20)}, {0: (10, 20)}, {0: (None, 20)}),
        ({0: (10, 30)}, {0: (None, 20)}, {0: (21, 30)}),
        ({0: (10, 10)}, {0: (10, 10)}, {0: (10, 10)}),
        ({0: (10, 10)}, {1: (None, 5)}, {0: (10, 10), 1: (None, 5)}),
    ],
)
def test_database_checkpoint_fold(one: dict[int, Bounds], other: dict[int, Bounds], folded: dict[int, Bounds]) -> None:
    for order in permutations([spans(one), spans(other)]):
        assert written(fold(order)) == folded


def test_persist_checkpoint_builder_no_other() -> None:
    own: dict[int, Bounds] = {1: (10, 20), 2: (None, 5)}
    assert written(combine([spans(own)])) == own


def test_persist_checkpoint_builder_others() -> None:
    own = {1: (10, 20), 2: (5, 15), 3: (15, 26), 5: (None, 10), 7: (None, 11), 8: (5, 10)}
    other = {2: (2, 16), 3: (20, 25), 4: (13, 14), 6: (None, 10), 7: (5, 10), 8: (None, 11)}
    together = {
        1: (10, 20), 2: (2, 16), 3: (15, 26), 4: (13, 14), 5: (None, 10), 6: (None, 10), 7: (5, 11), 8: (5, 11)
    }  # fmt: skip
    for order in permutations([spans(own), spans(other)]):
        assert written(combine(order)) == together
