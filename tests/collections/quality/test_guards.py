"""Guards are rules over counts: each says no with the figures, the rows and the way out."""

from __future__ import annotations

import pytest

from tidemark.collections.declarations.collection import Guards
from tidemark.collections.quality.guards import (
    Counts,
    Overrides,
    check_delete_ratio,
    check_duplicate_keys,
    check_not_empty,
    check_null_keys,
)
from tidemark.errors import GuardRefused

SAMPLE: list[dict[str, object]] = [{"k": 1}]


def test_null_keys_are_refused_with_count_and_sample() -> None:
    check_null_keys(0, key=["k"], sample=[])
    with pytest.raises(GuardRefused, match=r"3 source rows have a NULL in their key \(k, l\)") as refused:
        check_null_keys(3, key=["k", "l"], sample=SAMPLE)
    assert refused.value.sample == SAMPLE
    assert "on_null_key" in refused.value.hint


def test_null_keys_and_duplicate_keys_are_told_in_one_message() -> None:
    twice = GuardRefused("2 keys (k) occur more than once", hint="set `first_by`", sample=[{"k": 7, "rows": 2}] * 10)
    with pytest.raises(GuardRefused, match=r"3 source rows have a NULL .*; and 2 keys \(k\) occur") as refused:
        check_null_keys(3, key=["k"], sample=[{"k": None}] * 10, also=twice)
    assert "on_null_key" in refused.value.hint
    assert "first_by" in refused.value.hint
    assert refused.value.sample == [{"k": None}] * 5 + [{"k": 7, "rows": 2}] * 5


def test_duplicate_keys_are_refused_with_counts_and_sample() -> None:
    check_duplicate_keys(0, 0, key=["k"], sample=[])
    with pytest.raises(GuardRefused, match=r"2 keys \(k\) occur more than once in the source, on 5 rows") as refused:
        check_duplicate_keys(2, 5, key=["k"], sample=SAMPLE)
    assert refused.value.sample == SAMPLE
    assert "first_by" in refused.value.hint


@pytest.mark.parametrize(
    ("source", "stored", "allow_empty", "is_scoped", "refused"),
    [
        (0, 10, False, False, True),
        (0, 0, False, False, True),
        (0, 10, True, False, False),
        (1, 10, False, False, False),
        (0, 10, False, True, True),
        (0, 0, False, True, False),
    ],
)
def test_empty_source_is_refused_unless_allowed(
    *, source: int, stored: int, allow_empty: bool, is_scoped: bool, refused: bool
) -> None:
    counts, guards = Counts(source=source, stored=stored), Guards(allow_empty=allow_empty)
    if not refused:
        check_not_empty(counts, guards, is_scoped=is_scoped)
        return
    with pytest.raises(GuardRefused, match=f"no rows.*{stored} are stored"):
        check_not_empty(counts, guards, is_scoped=is_scoped)


@pytest.mark.parametrize(
    ("counts", "ratio", "refused"),
    [
        (Counts(source=5, stored=10, vanished=5), 0.5, False),
        (Counts(source=4, stored=10, vanished=6), 0.5, True),
        (Counts(source=10, stored=10, retracted=10, inserted=10), 0.0, False),
        (Counts(source=9, stored=10, vanished=1), 0.0, True),
        (Counts(source=10, stored=10, foreign=11), 0.5, True),
        (Counts(source=10, stored=10, foreign=10), 0.5, False),
        (Counts(source=10, stored=0, inserted=10), 0.0, False),
        (Counts(source=0, stored=10, vanished=10), 0.5, False),
    ],
    ids=["at", "above", "rows that change", "none may vanish", "foreign", "foreign at", "first load", "allowed empty"],
)
def test_delete_ratio_counts_what_readers_would_miss(*, counts: Counts, ratio: float, refused: bool) -> None:
    guards = Guards(max_delete_ratio=ratio)
    if not refused:
        check_delete_ratio(counts, guards, sample=list)
        return
    with pytest.raises(GuardRefused, match="max_delete_ratio is") as error:
        check_delete_ratio(counts, guards, sample=lambda: SAMPLE)
    assert error.value.sample == SAMPLE


def test_overrides_hold_for_what_they_name() -> None:
    declared = Guards(max_delete_ratio=0.1, allow_empty=False)
    assert Overrides().apply(declared) == declared
    assert Overrides(max_delete_ratio=0.0).apply(declared).max_delete_ratio == 0.0
    changed = Overrides(allow_empty=True).apply(declared)
    assert (changed.allow_empty, changed.max_delete_ratio) == (True, 0.1)
    assert Overrides(allow_empty=False).to_json() == {"allow_empty": False}
    assert Overrides().to_json() == {}
