"""An approval counts for the plan that was shown with the question, and for no other."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.errors import Refused
from tidemark.orchestration.approval import check_approval

APPROVAL = {"approved": True, "plan_digest": "aa", "answered_by": "bob", "answered_at": "2026-01-01T00:00:00+00:00"}


def test_the_approval_of_the_present_plan_says_who_gave_it() -> None:
    assert check_approval(APPROVAL, plan_digest="aa") == "bob"


@pytest.mark.parametrize(
    ("approval", "complaint"),
    [
        (None, "was not approved"),
        ({**APPROVAL, "approved": False}, "was not approved"),
        ({**APPROVAL, "plan_digest": "bb"}, "another plan was approved"),
    ],
)
def test_no_other_answer_lets_anything_change(approval: dict[str, Any] | None, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        check_approval(approval, plan_digest="aa")
