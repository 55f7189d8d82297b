"""How often a large migration starts over, without Spark: the attempts themselves are in ``test_spark_copy.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.catalog.back_end import Replaced
from tidemark.catalog.migration import spark_copy
from tidemark.catalog.migration.spark_copy import SparkCopy, _Overtaken
from tidemark.errors import FencedByEpoch, StaleState

if TYPE_CHECKING:
    from collections.abc import Iterable

DONE = Replaced(3, 1)


@dataclass(frozen=True, kw_only=True)
class ScriptedCopy(SparkCopy):
    """A copy whose attempts have the given ends."""

    ends: list[Exception | Replaced] = field(default_factory=list)

    def _to_persist_once(self) -> Replaced:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def scripted(ends: Iterable[Exception | Replaced]) -> ScriptedCopy:
    nothing: Any = None
    return ScriptedCopy(
        spark=nothing, settings=nothing, shard=nothing, stash=nothing, fences=nothing, clock=nothing, ends=list(ends)
    )


def test_a_copy_that_was_overtaken_is_compared_anew() -> None:
    assert scripted([_Overtaken(), _Overtaken(), DONE]).to_persist() == DONE


def test_a_copy_that_is_overtaken_each_time_says_so() -> None:
    copy = scripted([_Overtaken()] * spark_copy._ATTEMPTS + [DONE])
    with pytest.raises(StaleState, match=r"another copy to the persist catalog.* was faster, 3 times") as overtaken:
        copy.to_persist()
    assert overtaken.value.hint == "look again, and run it again"
    assert copy.ends == [DONE], "three attempts, and no more"


@pytest.mark.parametrize("error", [FencedByEpoch("another open"), StaleState("announced")], ids=["fenced", "announced"])
def test_a_fence_or_an_announcement_ends_the_copy_at_once(error: Exception) -> None:
    copy = scripted([error, DONE])
    with pytest.raises(type(error)):
        copy.to_persist()
    assert copy.ends == [DONE]
