"""Four who open at once, in the one order that gave two leaders the same epoch; the model has all other orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.opening.opening import Direction, Opening
from tidemark.catalog.opening.protocol import FENCE_PERSIST, FENCE_STASH, PROTOCOL, READ_HEADS
from tidemark.errors import FencedByEpoch

if TYPE_CHECKING:
    from tests.support.homes import Home

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def test_who_finds_that_others_open_too_starts_over(any_home: Home) -> None:
    any_home.open(Direction.ROLLBACK, add=["row"])
    first, second, third = (any_home.run_steps((READ_HEADS,), Opening(direction=Direction.MIGRATE)) for _ in range(3))
    late = any_home.run_steps((READ_HEADS,), Opening(direction=Direction.ROLLBACK))
    first, second, third = (any_home.run_steps((FENCE_STASH,), each) for each in (first, second, third))
    any_home.run_steps((FENCE_PERSIST,), second).close()
    for overtaken in (first, third):
        with pytest.raises(FencedByEpoch, match="others open it, too"):
            any_home.run_steps((FENCE_PERSIST,), overtaken)
    with pytest.raises(FencedByEpoch, match="came to epoch 7, the stash to 6"):
        any_home.run_steps(PROTOCOL[Direction.ROLLBACK][1:], late)
    assert any_home.epochs() == (6, 7)
    assert any_home.open() == 8
    assert (any_home.epochs(), any_home.setting_names()) == ((8, 8), {"row"})
