"""The rules of a lifecycle: their defaults, and the contradictions that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tidemark.collections.declarations.lifecycle import Late, LifecycleRules, Limit, Visible


def test_the_defaults() -> None:
    rules = LifecycleRules()
    assert (rules.late_ms, rules.persist_age_ms, rules.max_ahead_ms) == (300_000, 1_800_000, 3_600_000)
    assert (rules.persist_rows, rules.open_rows, rules.limits) == (1_000_000, 100_000, (None, None))
    assert (rules.visible, rules.late) == (Visible.AT_ONCE, Late.APPEND)
    assert rules.persist
    assert rules.persist_when_cold


def test_zero_stands_for_the_default() -> None:
    zeros = dict.fromkeys(["persist_rows", "open_rows", "soft_limit", "hard_limit"], 0)
    assert LifecycleRules.model_validate({**zeros, "late_arrive_window": "0s", "persist_age": 0}) == LifecycleRules()


def test_a_rule_that_is_switched_off_is_no_zero() -> None:
    assert not LifecycleRules(persist_when_cold=False).persist_when_cold


def test_rows_are_not_persisted_before_the_late_ones_are_there() -> None:
    with pytest.raises(ValidationError, match="`persist_age` 9m is less than `late_arrive_window` 10m"):
        LifecycleRules(persist_age="9m", late_arrive_window="10m")
    assert LifecycleRules(persist_age="10m", late_arrive_window="10m").persist_age_ms == 600_000


def test_limits_count_rows_or_bytes() -> None:
    assert LifecycleRules(soft_limit=1_000, hard_limit=1_000).limits == (Limit(1_000, "rows"), Limit(1_000, "rows"))
    assert LifecycleRules(hard_limit="3MiB").limits == (None, Limit(3 << 20, "bytes"))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"soft_limit": 10, "hard_limit": 9}, "`soft_limit` 10 is more than `hard_limit` 9"),
        ({"soft_limit": "1GiB", "hard_limit": 9}, "`soft_limit` counts bytes and `hard_limit` rows"),
        ({"soft_limit": "1 GB"}, "such as `512MiB` or `8GiB`, got '1 GB'"),
        ({"hard_limit": True}, "a limit is a number of rows"),
        ({"persist_rows": -1}, "greater than or equal to 1"),
        ({"late_arrive_window": "five minutes"}, "s, m, h or d, as in `5s`, got 'five minutes'"),
        ({"late_arrive_window": 10}, "s, m, h or d, as in `5s`, got 10"),
        ({"chunks": "memory"}, "declare `visible: when-persisted`, too"),
        ({"late": "drop"}, "'append', 'quarantine' or 'refuse'"),
        ({"persist_ag": "1h"}, "Extra inputs are not permitted"),
    ],
)
def test_a_contradiction_is_refused(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LifecycleRules.model_validate(rules)
